"""What differs between two trees, told by rsync, getfattr and getfacl."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

#: What rsync may say of a file where one of two file systems cannot have that, by what it cannot have
#: (docs/filesystems.md). The letters are rsync's: size, time, permissions, owner, group, list, attributes.
LACKS: dict[str, frozenset[str]] = {
    "ext4": frozenset(),
    "ext4-128": frozenset("t"),
    "xfs": frozenset(),
    "btrfs": frozenset(),
    "tmpfs": frozenset(),
    "overlay": frozenset(),
    "ramfs": frozenset("ax"),
    "vfat": frozenset("tpogax"),
    "ntfs": frozenset("tpogax"),
}
_RSYNC = (
    "rsync", "-nirlptgoAXHS", "--omit-dir-times", "--numeric-ids", "--delete", "--checksum", "--modify-window=-1",
    "--filter=-x user.frs.*", "--filter=-x trusted.*", "--filter=-x security.*", "--filter=- /.frs-preinstall*",
    "--8-bit-output",
)  # fmt: skip
_LINE = re.compile(rb"(?P<what>[<>ch.*][fdLDS][.+?a-zA-Z]{9}|\*deleting  ) (?P<path>.*)", re.DOTALL)


def by_rsync(one: Path, other: Path, lacking: frozenset[str]) -> list[str]:
    """What rsync would have to do to make `other` what `one` is, less what is `lacking`."""
    done = subprocess.run([*_RSYNC, f"{one}/", f"{other}/"], capture_output=True, check=False)
    if done.returncode:
        return [f"rsync ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"]
    found = []
    for line in done.stdout.split(b"\n"):
        match = _LINE.match(line)
        if match is None:
            if line.strip():
                found.append(os.fsdecode(line))  # the rest of a name with a line feed in it
            continue
        changes = set(match["what"].decode()[2:]) - set(".+ ")
        if "a" in changes & lacking:
            changes.discard("p")  # what the group may do is not what the list says, but what it gives to the group
        if match["what"].startswith(b".") and changes <= lacking:
            continue
        found.append(os.fsdecode(line))
    return found


def by_attributes(one: Path, other: Path) -> list[str]:
    """What getfattr says of one tree alone: user attributes, of files and folders."""
    return _lines(["getfattr", "-R", "-P", "-h", "-d", "-e", "hex", "-m", "^user[.]", "."], one, other)


def by_lists(one: Path, other: Path) -> list[str]:
    """What getfacl says of one tree alone: owner, group, mode and lists."""
    return _lines(["getfacl", "-R", "-P", "-n", "-p", "."], one, other)


def _lines(command: list[str], one: Path, other: Path) -> list[str]:
    told = [_blocks(command, root) for root in (one, other)]
    return [f"{command[0]}: {block!r}" for block in sorted(told[0] ^ told[1])]


def _blocks(command: list[str], root: Path) -> set[str]:
    """What the program says of each file, the agent's own attributes left out."""
    done = subprocess.run(command, cwd=root, capture_output=True, check=True)
    blocks = done.stdout.decode("utf-8", "surrogateescape").split("\n\n")
    told = set()
    for block in blocks:
        lines = [line for line in block.split("\n") if line and not line.startswith("user.frs.")]
        if len(lines) > 1 and ".frs-preinstall" not in lines[0]:
            told.add("\n".join([lines[0], *sorted(lines[1:])]))
    return told
