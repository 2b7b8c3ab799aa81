"""`frs` in locales of other encodings: names are bytes, and what is printed can be shown."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.reporting.log import setup_logging
from agent.reporting.shown import shown
from tests.locales import KINDS, locale_environment
from tests.unit.cli.test_conflicts import Member

REPOSITORY = Path(__file__).parents[3]
ENCODINGS = {"C": "ascii", "POSIX": "ascii", "ISO-8859-1": "latin-1", "UTF-8": "utf-8"}
NAME = "caf\N{LATIN SMALL LETTER E WITH ACUTE}-\N{EURO SIGN}".encode() + b"-\xff"
PRINTED = {
    "C": r"$'caf\xc3\xa9-\xe2\x82\xac-\xff'",
    "POSIX": r"$'caf\xc3\xa9-\xe2\x82\xac-\xff'",
    "ISO-8859-1": r"$'café-\xe2\x82\xac-\xff'",
    "UTF-8": r"$'café-€-\xff'",
}
SHOWN = {
    "C": r"caf\xe9-\u20ac-\udcff",
    "POSIX": r"caf\xe9-\u20ac-\udcff",
    "ISO-8859-1": r"café-\u20ac-\udcff",
    "UTF-8": r"café-€-\udcff",
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def environment(kind: str, tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "locales"
    folder.mkdir()
    return locale_environment(kind, folder) | {"PYTHONPATH": str(REPOSITORY)}


def frs(environment: dict[str, str], *arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """`frs` itself, in an environment."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "agent.cli", *arguments], env=environment, capture_output=True, check=False
    )


def test_a_name_is_printed_and_restored(kind: str, environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "member"
    folder.mkdir()
    member = Member(folder)
    item = member.keep(os.fsdecode(NAME))
    config = str(member.config)
    done = frs(environment, "conflicts", "list", "--json", "--config", config)
    assert [os.fsencode(one["path"]) for one in json.loads(done.stdout.decode("ascii"))] == [NAME], done.stderr
    done = frs(environment, "conflicts", "list", "--config", config)
    assert PRINTED[kind] in done.stdout.decode(ENCODINGS[kind]), done.stderr
    done = frs(environment, "conflicts", "restore", item, "--config", config, "--to", b"new-" + NAME)
    assert done.returncode == 0, done.stderr
    assert os.listdir(os.fsencode(member.root)) == [b"new-" + NAME]


def test_an_error_is_printed(kind: str, environment: dict[str, str]) -> None:
    done = frs(environment, "status", "--config", b"/nowhere/" + NAME)
    assert done.returncode == 2
    assert f"/nowhere/{SHOWN[kind]}: " in done.stderr.decode(ENCODINGS[kind])
    done = frs(environment, "status", NAME)  # of the command line, not of the configuration
    assert done.returncode == 2
    assert SHOWN[kind] in done.stderr.decode(ENCODINGS[kind])


def test_a_log_line(environment: dict[str, str], kind: str) -> None:
    """A line, whatever is in it, on a stderr of any encoding."""
    program = (
        "import logging, os; from agent.cli.output import open_output; from agent.cli.utf8 import require_utf8;"
        "from agent.reporting.log import setup_logging; open_output(); require_utf8(); setup_logging('info');"
        f"logging.getLogger('x').info('%s and %r', os.fsdecode({NAME!r}), os.fsdecode({NAME!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert f"x: {SHOWN[kind]} and '{SHOWN[kind]}'\n" in done.stderr.decode(ENCODINGS[kind])


def test_python_cannot_be_started_again(tmp_path: Path) -> None:
    """Then nothing begins with names that are other names elsewhere."""
    program = (
        "import sys; sys.executable = '/nowhere'; sys.argv[1:] = ['--version']; from agent.cli import main; main()"
    )
    environment = locale_environment("C", tmp_path) | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.returncode == 4
    assert b"UTF-8 mode" in done.stderr
    assert done.stdout == b""


def test_shown() -> None:
    assert shown("plain ü €") == "plain ü €"
    assert shown("plain ü €", "ascii") == r"plain \xfc \u20ac"
    assert shown("a\n\x1b[2J\u202e\udc80") == r"a\n\x1b[2J\u202e\udc80"
    assert shown("a\nb\t", keep="\n") == "a\nb\\t"


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_name_makes_no_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", sys.stderr)
    try:
        raise ValueError("a\x1b[2J\udcff")
    except ValueError:
        logging.getLogger("x").exception("of %s", "a\n2026-01-01 ERROR   y: forged\x1b[2J")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(r"x: 20000 of a\n2026-01-01 ERROR   y: forged\x1b[2J")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == r"ValueError: a\x1b[2J\udcff"
    assert not [line for line in lines if re.search(r"[\x00-\x1f]", line)]
