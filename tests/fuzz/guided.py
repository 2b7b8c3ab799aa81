"""Gives one parser inputs that atheris makes: it changes those that have reached something new in the code.

python -m tests.fuzz.guided TARGET --count N. A finding ends it: the input is in a file that is named then, and the exit
code is not 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["agent", "staging"]):
    from tests.fuzz.campaign import HANG_S
    from tests.fuzz.seeds import frozen
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """The command line; does not return."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    add = parser.add_argument
    add("target", choices=TARGETS)
    add("--count", type=int, default=1_000_000, metavar="N", help="inputs (%(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="other inputs (%(default)s)")
    add("--findings", type=Path, default=Path("findings"), metavar="DIR", help="where findings go (%(default)s)")
    args = parser.parse_args()
    target, findings = TARGETS[args.target], args.findings / args.target
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus, frozen(), target.begin() as parse:

        def one(data: bytes) -> None:
            try:
                parse(data)
            except target.refusals:
                pass

        with atheris.instrument_imports(include=["agent", "staging"]):
            for number, data in enumerate(target.seeds()):
                one(data)  # which imports what is imported late
                Path(corpus, str(number)).write_bytes(data)
        limits = f"-timeout={HANG_S:.0f}", "-rss_limit_mb=2048", f"-max_len={0x20000}"
        run = f"-runs={args.count}", f"-seed={args.seed}", f"-artifact_prefix={findings}/"
        atheris.Setup([sys.argv[0], corpus, *limits, *run, "-print_final_stats=1"], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
