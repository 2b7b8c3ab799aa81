"""Random sequences of operations on a tree, with pauses drawn around the aging time, from a seed: of one user, or of
several at once, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

from journal.inotify import OVERFLOW, InotifySource
from staging.fsops import RENAME_EXCHANGE, fingerprint, renameat2
from tests.localchanges.member import Key, Known, Member, entries, pair, together

AGING_S = 0.06
STAYS = "stays"  # in the root, whatever is done: a set whose root is empty when it is scanned waits
OWN = "own"  # a folder in the root, in which the last of several writers does all that he does
WRITERS = 3
_FAR_BEHIND = 1 << 40
NAMES = ("a", "b", "c", "d")
#: How often each operation is drawn.
WEIGHTS = {
    "write": 4, "append": 3, "truncate": 1, "mkdir": 5, "move": 8, "move_over": 3, "exchange": 3, "swap": 2, "cycle": 2,
    "rotate": 2, "into_new": 2, "delete": 4, "chmod": 2, "touch": 2, "symlink": 1, "hardlink": 1, "replace_kind": 2,
    "save": 2, "copy": 2, "remake": 3, "move_out": 2, "move_in": 2, "deep": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """An operation (its numbers pick what it is done to), a pause of `seconds`, "quiet" (all that was done is known),
    or "deaf": the kernel's events of the next few operations are lost, and then the journal is told that some were.
    Where there are several writers, it is that one's, or everybody's ("quiet", "deaf")."""

    name: str
    picks: tuple[int, int, int] = (0, 0, 0)
    seconds: float = 0.0
    writer: int = 0


def drawn(seed: int) -> list[Step]:
    """The sequence of a seed; every fourth is one of several writers."""
    return draw_writers(seed) if seed % 4 == 3 else draw(seed)


def draw_writers(seed: int) -> list[Step]:
    """A sequence of several writers: what each does between two moments of quiet is done at the same time."""
    rng = random.Random(f"writers {seed}")
    names = list(WEIGHTS)

    def picks() -> tuple[int, int, int]:
        return rng.getrandbits(16), rng.getrandbits(16), rng.getrandbits(16)

    opening = rng.choices(("mkdir", "deep", "copy", "write"), (4, 2, 2, 1), k=rng.randint(2, 6))
    steps = [Step(name, picks()) for name in opening]
    for _ in range(rng.randint(1, 3)):
        steps.append(Step("quiet"))
        if rng.random() < 0.1:
            steps.append(Step("deaf"))
        for _ in range(rng.randint(6, 30)):
            writer = rng.randrange(WRITERS)
            steps.append(Step(rng.choices(names, WEIGHTS.values())[0], picks(), writer=writer))
            if rng.random() < 0.3:
                pause = AGING_S * rng.choice((0.01, 0.05, 0.3, 0.8, 1.0, 1.2, 1.6))
                steps.append(Step("pause", seconds=pause, writer=writer))
    return steps


def draw(seed: int, *, most: int = 14) -> list[Step]:
    """A sequence: operations, and pauses from none to three times the aging time."""
    rng = random.Random(seed)
    names = list(WEIGHTS)
    steps = [
        Step(name, (rng.getrandbits(16), rng.getrandbits(16), rng.getrandbits(16)))
        for name in rng.choices(("mkdir", "deep", "copy", "write"), (4, 2, 2, 1), k=rng.randint(2, 6))
    ]
    steps.append(Step("quiet"))
    for _ in range(rng.randint(2, most)):
        name = rng.choices(names, WEIGHTS.values())[0]
        steps.append(Step(name, (rng.getrandbits(16), rng.getrandbits(16), rng.getrandbits(16))))
        if rng.random() < 0.03:
            steps.append(Step("deaf", (rng.randint(1, 3), 0, 0)))
        if rng.random() < 0.4:
            steps.append(Step("pause", seconds=AGING_S * rng.choice((0.05, 0.3, 0.8, 1.0, 1.2, 1.6, 3.0))))
        elif rng.random() < 0.1:
            steps.append(Step("quiet"))
    return steps


class Hand:
    """Does the operations. What cannot be done to the tree as it is, is left out."""

    def __init__(self, root: str, outside: str) -> None:
        self.root, self.outside = root, outside
        self._number = 0
        self._linked: set[Key] = set()  # local keys of what has had several names
        self.may_be_new: set[Key] = set()  # local keys of what may be another file, or folder, to everybody

    def do(self, step: Step) -> None:
        """Carry out one operation."""
        try:
            getattr(self, f"_{step.name}")(*step.picks)
        except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, shutil.Error):
            pass
        except (IndexError, ZeroDivisionError):
            pass  # there is nothing to pick from
        except OSError as error:
            if "not empty" not in str(error) and "Invalid argument" not in str(error) and "link" not in str(error):
                raise

    def begin(self) -> None:
        """All that was done until now is known."""
        self._linked.clear()
        self.may_be_new.clear()

    def note_writers(self) -> None:
        """To be called when several writers have ended: what one has linked, others may have done anything to."""
        self.may_be_new |= self._linked

    def note(self, before: Known) -> None:
        """To be called after each step: what has had several names, and has no longer the one it had `before`, may be
        new. Each name of a hard link is a file of its own to everybody: that the first of them goes is the deletion of
        one file, even if another name of the inode stays."""
        seen = entries(self.root)
        self._linked.update(found[:3] for found in seen.values() if found.nlink > 1 and not S_ISDIR(found.mode))
        for path, record in before.records.items():
            key = record.dev, record.ino, record.btime_ns
            if key in self._linked and (path not in seen or seen[path][:3] != key):
                self.may_be_new.add(key)

    # -- picking

    def _all(self, kind: str = "") -> list[str]:
        found = []
        for folder, names, files in os.walk(self.root):
            names.sort()
            files = [name for name in files if name != STAYS]
            links = [n for n in names if os.path.islink(os.path.join(folder, n))]
            found += [os.path.join(folder, n) for n in names if kind != "file" and n not in links]
            found += [os.path.join(folder, n) for n in sorted(files) + links if kind != "folder"]
        return found

    def _pick(self, number: int, kind: str = "") -> str:
        found = self._all(kind)
        return found[number % len(found)] if found else os.path.join(self.root, "nothing here")

    def _folder(self, number: int) -> str:
        found = [self.root, *self._all("folder")]
        return found[number % len(found)]

    def _place(self, p: int, q: int) -> str:
        return os.path.join(self._folder(p), NAMES[q % len(NAMES)])

    def _fresh(self) -> str:
        self._number += 1
        return os.path.join(self.outside, f"x{self._number}")

    def _content(self, path: str, number: int) -> None:
        self._number += 1
        with open(path, "w") as file:
            file.write(f"{self._number} " + "x" * (number % 50))

    # -- operations

    def _write(self, p: int, q: int, r: int) -> None:
        self._content(self._place(p, q), r)

    def _append(self, p: int, q: int, r: int) -> None:
        with open(self._pick(p, "file"), "a") as file:
            file.write("y" * (1 + r % 50))

    def _truncate(self, p: int, q: int, r: int) -> None:
        os.truncate(self._pick(p, "file"), r % 10)

    def _mkdir(self, p: int, q: int, r: int) -> None:
        path = self._place(p, q)
        os.mkdir(path)
        for number in range(r % 4):
            self._content(os.path.join(path, NAMES[number]), r)

    def _deep(self, p: int, q: int, r: int) -> None:
        path = self._place(p, q)
        os.makedirs(os.path.join(path, *NAMES[: 1 + r % 4]))
        self._content(os.path.join(path, *NAMES[: 1 + r % 4], "x"), r)

    def _move(self, p: int, q: int, r: int) -> None:
        target = self._place(q, r)
        if not os.path.lexists(target):
            os.rename(self._pick(p), target)

    def _move_over(self, p: int, q: int, r: int) -> None:
        os.rename(self._pick(p), self._pick(q))

    def _exchange(self, p: int, q: int, r: int) -> None:
        renameat2(None, self._pick(p), None, self._pick(q), RENAME_EXCHANGE)

    def _swap(self, p: int, q: int, r: int) -> None:
        a, b = self._pick(p), self._pick(q)
        if a == b or a.startswith(b + "/") or b.startswith(a + "/"):
            return
        third = self._fresh() if r % 2 else os.path.join(self.root, "third")
        os.rename(a, third)
        os.rename(b, a)
        os.rename(third, b)

    def _cycle(self, p: int, q: int, r: int) -> None:
        """A folder and one in it change places."""
        a = self._pick(p, "folder")
        inside = sorted(e.name for e in os.scandir(a) if e.is_dir(follow_symlinks=False))
        b = inside[q % len(inside)]
        third = os.path.join(self.root, "third")
        os.rename(os.path.join(a, b), third)
        below = os.path.join(third, b)
        os.rename(a, below if not os.path.lexists(below) else os.path.join(third, "z"))
        os.rename(third, a)

    def _rotate(self, p: int, q: int, r: int) -> None:
        """As backups do: what bears a name goes to the next one, and is made anew."""
        folder = self._folder(p)
        names = [os.path.join(folder, n) for n in NAMES]
        shutil.rmtree(names[-1], ignore_errors=True)
        for old, new in zip(reversed(names[:-1]), reversed(names[1:])):
            if os.path.lexists(old) and not os.path.lexists(new):
                os.rename(old, new)
        if os.path.isdir(names[1]) and not os.path.islink(names[1]) and r % 2:
            shutil.copytree(names[1], names[0], symlinks=True)
        else:
            os.mkdir(names[0])
            self._content(os.path.join(names[0], "new"), r)

    def _into_new(self, p: int, q: int, r: int) -> None:
        """A folder is moved into a new folder of its own name."""
        path = self._pick(p, "folder")
        third = os.path.join(self.root, "third")
        os.rename(path, third)
        if r % 3 == 0:
            os.rename(self._pick(q, "file"), path + "~")
        os.mkdir(path)
        os.rename(third, os.path.join(path, NAMES[q % len(NAMES)]))

    def _remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def _delete(self, p: int, q: int, r: int) -> None:
        self._remove(self._pick(p))

    def _chmod(self, p: int, q: int, r: int) -> None:
        path = self._pick(p)
        if not os.path.islink(path):
            os.chmod(path, (0o700, 0o755, 0o750)[r % 3])

    def _touch(self, p: int, q: int, r: int) -> None:
        os.utime(self._pick(p, "file"), ns=(1, 1_600_000_000_000_000_000 + r), follow_symlinks=False)

    def _symlink(self, p: int, q: int, r: int) -> None:
        os.symlink(NAMES[r % len(NAMES)], self._place(p, q))

    def _hardlink(self, p: int, q: int, r: int) -> None:
        path, target = self._pick(p, "file"), self._place(q, r)
        self._linked.add(fingerprint(path)[:3])
        os.link(path, target, follow_symlinks=False)
        self._linked.add(fingerprint(target)[:3])

    def _replace_kind(self, p: int, q: int, r: int) -> None:
        path = self._pick(p)
        was_folder = os.path.isdir(path) and not os.path.islink(path)
        self._remove(path)
        if was_folder:
            self._content(path, r)
        else:
            os.mkdir(path)
            self._content(os.path.join(path, "in"), r)

    def _save(self, p: int, q: int, r: int) -> None:
        """As editors do: a new file is renamed over the old one."""
        path = self._pick(p, "file")
        self._content(path + "~", r)
        os.rename(path + "~", path)

    def _copy(self, p: int, q: int, r: int) -> None:
        path, target = self._pick(p, "folder"), self._place(q, r)
        if not target.startswith(path + "/"):
            shutil.copytree(path, target, symlinks=True)

    def _remake(self, p: int, q: int, r: int) -> None:
        path = self._pick(p)
        was_folder = os.path.isdir(path) and not os.path.islink(path)
        if r % 2:
            os.rename(path, self._fresh())
        else:
            self._remove(path)
        if was_folder:
            os.mkdir(path)
        else:
            self._content(path, r)

    def _move_out(self, p: int, q: int, r: int) -> None:
        os.rename(self._pick(p), self._fresh())

    def _move_in(self, p: int, q: int, r: int) -> None:
        away = sorted(os.listdir(self.outside))
        target = self._place(q, r)
        if not os.path.lexists(target):
            source = os.path.join(self.outside, away[p % len(away)])
            self.may_be_new.add(fingerprint(source)[:3])  # it was outside the tree for a while
            if os.path.isdir(source) and not os.path.islink(source):
                self.may_be_new.update(found[:3] for found in entries(source).values())
            os.rename(source, target)


async def carry_out(one: Member, other: Member, hand: Hand, steps: Sequence[Step]) -> None:
    """Do the steps on one member, then hold the invariants against what is there and on the other one."""
    await together(one, other)
    before = one.assert_tree_is_known()
    deaf = 0
    for step in steps:
        if step.name == "deaf":
            deaf = deaf or _deafen(one, step.picks[0])
            continue
        deaf = deaf - 1 if deaf > 1 else _hears(one, deaf)
        if step.name == "pause":
            await asyncio.sleep(step.seconds)
        elif step.name == "quiet":
            deaf = _hears(one, deaf)
            await together(one, other)
            before = one.assert_tree_is_known()
            hand.begin()
        else:
            hand.do(step)
            hand.note(before)
    _hears(one, deaf)
    await together(one, other)
    now = one.assert_tree_is_known()
    assert_identities(before, now, one.root, hand.may_be_new)
    one.assert_scan_finds_nothing()
    assert_same(one, other)


async def carry_out_together(one: Member, other: Member, hands: Sequence[Hand], steps: Sequence[Step]) -> None:
    """Do the steps of several writers on one member, those of each in a thread; whenever it is quiet hold the
    invariants against what is there, and in the end against the other member."""
    await together(one, other)
    before = one.assert_tree_is_known()
    for part in _parts(steps):
        deaf = any(step.name == "deaf" for step in part)
        if deaf:
            _deafen(one, 0)
        turns = ([step for step in part if step.writer == number] for number in range(len(hands)))
        await asyncio.gather(*(asyncio.to_thread(_turn, hand, turn) for hand, turn in zip(hands, turns)))
        _hears(one, int(deaf))
        await together(one, other)
        now = one.assert_tree_is_known()
        for hand in hands:
            hand.note_writers()
        assert_identities(before, now, one.root, set[Key]().union(*(hand.may_be_new for hand in hands)))
        for hand in hands:
            hand.begin()
        before = now
    one.assert_scan_finds_nothing()
    assert_same(one, other)


def _parts(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """What is done between two moments of quiet."""
    part: list[Step] = []
    for step in steps:
        if step.name == "quiet":
            yield part
            part = []
        else:
            part.append(step)
    yield part


def _turn(hand: Hand, steps: Sequence[Step]) -> None:
    """What one writer does. His folder may have gone with what another one has moved or removed."""
    for step in steps:
        if step.name == "pause":
            time.sleep(step.seconds)
        elif step.name != "deaf":
            with contextlib.suppress(OSError):
                os.makedirs(hand.root, exist_ok=True)
            hand.do(step)


def _source(one: Member) -> InotifySource:
    watch = one.replica.watching.watch
    assert watch is not None
    source = watch.journal._source
    assert isinstance(source, InotifySource)
    return source


def _deafen(one: Member, steps: int) -> int:
    """For so many steps what the kernel tells is more than can be kept."""
    _source(one)._read_bytes += _FAR_BEHIND
    return steps + 1


def _hears(one: Member, deaf: int) -> int:
    if deaf:
        source = _source(one)
        source._read_bytes += len(OVERFLOW) - _FAR_BEHIND
        source._put(OVERFLOW)
    return 0


def assert_same(one: Member, other: Member) -> None:
    """Both have the same files and folders, with the same GUIDs; and nothing was displaced where nobody edits."""
    here, there = one.assert_tree_is_known(), other.assert_tree_is_known()
    assert here.records.keys() == there.records.keys(), (
        f"not on the other: {sorted(here.records.keys() - there.records.keys())}, "
        f"only there: {sorted(there.records.keys() - here.records.keys())}"
    )
    for path, record in here.records.items():
        assert there.records[path].file_guid == record.file_guid, f"{path} is another file there"
        assert there.records[path].md5 == record.md5, f"{path} has another content there"
    other.assert_scan_finds_nothing()
    assert not other.kept.list(), f"kept on the other: {[item.path for item in other.kept.list()]}"


def assert_identities(before: Known, now: Known, root: str, but: Collection[Key] = ()) -> None:
    """What was known, and still is in the tree, is the same file or folder to everybody, except for those in `but` (see
    Hand.may_be_new)."""
    seen = entries(root)
    for path, record in now.records.items():
        found = seen[path]
        was = before.guids.get(found[:3]) if found[:3] not in but else None
        if was is not None and (found.nlink == 1 or record.kind == "folder"):
            assert was == record.file_guid, f"{path} was called deleted and made anew"


def run(folder: Path, seeds: Sequence[int], *, told: bool = False) -> list[tuple[int, str]]:
    """Carry out the sequences of some seeds, each in a tree of its own; returns what went wrong, by seed."""
    failures = []
    for seed in seeds:
        steps = drawn(seed)
        if (failure := fault(folder / f"s{seed}", steps)) is not None:
            failures.append((seed, failure))
            if told:
                print(f"seed {seed}: {failure}", flush=True)
    return failures


def fault(folder: Path, steps: Sequence[Step]) -> str | None:
    """What goes wrong with these steps; None when nothing does."""
    shutil.rmtree(folder, ignore_errors=True)
    several = any(step.writer for step in steps)
    outside = [folder / f"outside{number}" for number in range(WRITERS if several else 1)]
    for place in outside:
        place.mkdir(parents=True)

    async def all_of_it() -> None:
        async with pair(folder, aging_s=AGING_S) as (one, other):
            Path(one.root, STAYS).touch()
            roots = [one.root] * (len(outside) - 1) + [os.path.join(one.root, OWN) if several else one.root]
            hands = [Hand(root, str(place)) for root, place in zip(roots, outside)]
            if several:
                await carry_out_together(one, other, hands, steps)
            else:
                await carry_out(one, other, hands[0], steps)

    try:
        asyncio.run(all_of_it())
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error) else repr(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def shortened(folder: Path, steps: Sequence[Step], tries: int = 3) -> list[Step]:
    """The same fault with fewer steps, as far as leaving out one after the other leads. Timing takes part in it, so
    each shorter sequence gets several tries."""
    steps = list(steps)
    at = 0
    while at < len(steps):
        fewer = steps[:at] + steps[at + 1 :]
        if any(fault(folder, fewer) is not None for _ in range(tries)):
            steps = fewer
        else:
            at += 1
    return steps
