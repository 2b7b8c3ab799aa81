"""Three members whose topology comes from a real domain, and all that may become of it, as root:
python -m tests.activedirectory.campaign. Prints a line for each scenario; exits 1 where one failed. script/test has the
first ones.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.activedirectory.domain import ADDRESSES, SERVER, DomainController, Namespace, missing
from tests.activedirectory.fleet import HOSTS, Fleet
from tests.activedirectory.scenarios import SCENARIOS
from tests.activedirectory.threemembers import site_of


def main() -> int:
    """Run them all, or those that are named, after the first two."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = [one.__name__ for one in SCENARIOS[2:]]
    parser.add_argument("scenarios", nargs="*", metavar="NAME", help=f"of {', '.join(known)} [default: all]")
    chosen = parser.parse_args().scenarios or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no such scenario: {', '.join(unknown)}")
    if missing():
        print(f"needs {', '.join(missing())}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="frs-domain."))
    space = Namespace(folder, ADDRESSES | HOSTS)
    controller = DomainController(folder, space)
    failed = 0
    try:
        controller.provision()
        controller.start()
        controller.tool("spn", "add", f"ldap/{SERVER}", "DC1$")
        with site_of(Fleet(folder, space, controller), folder).running() as site:
            for one in SCENARIOS:
                if one not in SCENARIOS[:2] and one.__name__ not in chosen:
                    continue
                began = time.monotonic()
                try:
                    one(site)
                    said = "holds"
                except Exception:
                    traceback.print_exc()
                    failed += 1
                    said = "FAILED"
                print(f"{one.__name__:12} {said} after {time.monotonic() - began:.0f} s", flush=True)
                if failed:
                    break
    finally:
        controller.stop()
        space.close()
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
