"""Security descriptors of owner, group, mode and access control lists."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import posixacl, sd
from staging.attributes import Attributes, descriptor, keep
from staging.errors import StagingError
from staging.fsops import Fingerprint
from staging.posixacl import Acl
from staging.sd import Posix, build, parse

ids = st.integers(0, 0xFFFFFFFE)
perms = st.integers(0, 7)
named = st.dictionaries(ids, perms, max_size=4).map(lambda d: tuple(sorted(d.items())))


@st.composite
def acls(draw, mode=None):
    """A list the kernel would keep; an access list agrees with the mode."""
    users, groups = draw(named), draw(named)
    mask = draw(perms) if users or groups or mode is not None else draw(st.none() | perms)
    owner, other = draw(perms), draw(perms)
    if mode is not None:
        owner, mask, other = mode >> 6 & 7, mode >> 3 & 7, mode & 7
    return posixacl.encode(Acl(owner, users, draw(perms), groups, mask, other))


@st.composite
def posixes(draw):
    kind = draw(st.sampled_from([stat.S_IFREG, stat.S_IFDIR]))
    mode = kind | draw(st.integers(0, 0o7777))
    access = draw(st.none() | acls(mode=mode))
    default = draw(st.none() | acls()) if kind == stat.S_IFDIR else None
    return Posix(mode, draw(ids), draw(ids), access, default)


@given(posixes())
@settings(max_examples=300)
def test_round_trip(posix):
    data = build(posix)
    assert parse(data, stat.S_IFMT(posix.mode)) == posix
    assert parse(data, stat.S_IFMT(posix.mode) ^ (stat.S_IFREG ^ stat.S_IFDIR)) is None


def test_plain_file():
    data = build(Posix(stat.S_IFREG | 0o640, 1000, 100))
    found = [(a.kind, a.flags, a.mask, a.sid) for a in sd.aces(data)]
    assert found == [
        (1, 0, 0, sd.sid(5, 88, 3, 0o100640)),
        (0, 0, 0x120089 | 0x120116 | 0xD0000, sd.sid(22, 1, 1000)),
        (0, 0, 0x120089, sd.sid(22, 2, 100)),
        (0, 0, 0, sd.sid(1, 0)),
    ]
    assert data[2:4] == b"\x04\x90"  # self-relative, DACL protected and present


def granted(data: bytes, sids: set[bytes]) -> int:
    """What a reader of the descriptor grants somebody who has these SIDs: rwx bits."""
    undecided, got = 7, 0
    for ace in sd.aces(data):
        if ace.sid not in sids or ace.flags & 8:
            continue
        perm = sum(bit for bit, right in ((4, 1), (2, 2), (1, 0x20)) if ace.mask & right) & undecided
        undecided &= ~perm
        if ace.kind == 0:
            got |= perm
    return got


@given(posixes())
@settings(max_examples=300)
def test_the_descriptor_grants_what_the_list_grants(posix):
    """To the owner and to strangers exactly; to named users never more than the mask lets through."""
    data = build(posix)
    everyone = sd.sid(1, 0)
    acl = posixacl.decode(posix.access) if posix.access else None
    users = dict(acl.users) if acl else {}
    stranger = next(i for i in range(10) if i != posix.uid and i not in users)
    mode = posix.mode
    if posix.uid not in users:
        assert granted(data, {everyone, sd.user_sid(posix.uid)}) == mode >> 6 & 7
    assert granted(data, {everyone, sd.user_sid(stranger)}) == mode & 7
    for uid, perm in users.items():
        if uid != posix.uid:
            assert granted(data, {everyone, sd.user_sid(uid)}) == perm & (mode >> 3 & 7)
    if acl is None:
        assert granted(data, {everyone, sd.group_sid(posix.gid)}) == mode >> 3 & 7


@pytest.mark.parametrize("section", ["4.5.2.3", "4.5.6.3"])
def test_descriptors_of_windows_are_foreign(captures, section):
    data = bytes.fromhex(captures[section]["streams"][0]["data_hex"])
    want = captures[section]["security_descriptor"]
    assert parse(data, stat.S_IFREG) is None
    assert [(a.kind, a.flags, a.mask) for a in sd.aces(data)] == [
        (a["type"], a["flags"], a["mask"]) for a in want["dacl"]
    ]
    assert sd.mode_for(data, stat.S_IFREG) == 0o644  # authenticated users may read
    assert sd.mode_for(data, stat.S_IFDIR) == 0o755


def test_foreign_descriptors_that_let_nobody_in_stay_closed():
    private = build(Posix(stat.S_IFREG | 0o600, 5, 5))
    assert sd.mode_for(private, stat.S_IFREG) == 0o600
    assert sd.mode_for(b"", stat.S_IFDIR) == 0o700


@given(posixes(), st.data())
@settings(max_examples=300)
def test_changed_descriptors_are_foreign_or_another_one_of_ours(posix, draw):
    data = bytearray(build(posix))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    for value in (bytes(data), cut):
        found = parse(value, stat.S_IFMT(posix.mode))
        assert found is None or build(found) == value
        assert sd.mode_for(value, stat.S_IFREG) in (0o600, 0o644)


@given(st.binary(max_size=100))
def test_any_bytes(data):
    assert parse(data, stat.S_IFREG) is None
    try:
        posixacl.decode(data)
    except ValueError:
        pass
    with pytest.raises(StagingError):
        build(Posix(stat.S_IFREG, 0, 0, b"\1" + data))


def test_a_list_too_long_for_a_descriptor():
    acl = posixacl.encode(Acl(7, tuple((i, 7) for i in range(4000)), 7, (), 7, 7))
    with pytest.raises(StagingError):
        build(Posix(stat.S_IFREG, 0, 0, acl))


def at(mode: int, uid: int, gid: int) -> Fingerprint:
    return Fingerprint(1, 2, 3, 4, 5, 6, mode, uid, gid, 1)


class TestKept:
    """A descriptor that could not be applied is sent on until somebody changes what it stands for."""

    mode = stat.S_IFREG | 0o644
    windows = b"\1\0\4\x80" + bytes(40)

    def test_as_long_as_nothing_changed(self):
        kept = Attributes({}, kept=keep(self.windows, self.mode, 1, 2, None, None))
        assert descriptor(at(self.mode, 1, 2), kept) == self.windows

    @pytest.mark.parametrize("now", [(0o100600, 1, 2), (0o100644, 9, 2), (0o100644, 1, 9)])
    def test_not_after_a_change(self, now):
        kept = Attributes({}, kept=keep(self.windows, self.mode, 1, 2, None, None))
        assert descriptor(at(*now), kept) == build(Posix(*now))

    def test_not_after_a_list_was_set(self):
        acl = posixacl.encode(Acl(6, ((5, 7),), 4, (), 4, 4))
        kept = Attributes({}, kept=keep(self.windows, self.mode, 1, 2, None, None), access=acl)
        assert descriptor(at(self.mode, 1, 2), kept) == build(Posix(self.mode, 1, 2, acl))

    def test_chmod_does_not_take_a_file_from_its_owner_elsewhere(self):
        theirs = build(Posix(self.mode, 777, 888))
        kept = Attributes({}, kept=keep(theirs, self.mode, 1, 2, None, None))
        assert descriptor(at(0o100600, 1, 2), kept) == build(Posix(0o100600, 777, 888))
        assert descriptor(at(0o100600, 1, 3), kept) == build(Posix(0o100600, 777, 3))

    def test_what_others_could_have_written_is_not_believed(self, monkeypatch):
        monkeypatch.setattr("os.geteuid", lambda: 1)
        forged = build(Posix(stat.S_IFREG | 0o4755, 0, 0))
        for mode, uid, believed in ((0o644, 1, True), (0o664, 1, False), (0o646, 1, False), (0o644, 5, False)):
            full = stat.S_IFREG | mode
            found = Attributes({}, kept_by_user=keep(forged, full, uid, 2, None, None))
            assert (descriptor(at(full, uid, 2), found) == forged) is believed

    @given(st.binary(max_size=60))
    def test_any_bytes(self, data):
        descriptor(at(self.mode, 1, 2), Attributes({}, kept=data))
