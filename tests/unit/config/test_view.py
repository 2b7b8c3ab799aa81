"""Views of the topology: what is in one, and that `compare` misses nothing of what differs between two."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from config.model import Connection, LocalSet, Member, ReplicaSet, Secret
from config.view import (
    AUTHENTICATION,
    Authentication,
    DirectoryView,
    Key,
    Subscription,
    applied,
    by_set,
    compare,
    set_objects,
    view_of_sets,
)

NAMES = ["a", "b", "c", "d"]
SCHEDULES = st.sampled_from([None, bytes(84), b"\xff" * 84])


def guid(*parts: object) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).bytes_le


@st.composite
def local_sets(draw: st.DrawFn, name: str) -> LocalSet:
    """A set whose members, connections and attributes are drawn; "a" is always among its members."""
    names = ["a", *draw(st.sets(st.sampled_from(NAMES[1:])))]
    members = {
        one: Member(one, guid(name, one, draw(st.integers(0, 1))), draw(st.sampled_from(["h", "i"])), 28700)
        for one in names
    }
    pairs = [(up, down) for up in names for down in names if up != down]
    connections = tuple(
        Connection(
            guid(name, up, down),
            f"{up}->{down}",
            up,
            down,
            priority=draw(st.integers(0, 7)),
            enabled=draw(st.booleans()),
            schedule=draw(SCHEDULES),
        )
        for up, down in (draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    )
    replica_set = ReplicaSet(
        name=name,
        guid=guid(name),
        type=draw(st.sampled_from(["dfs", "sysvol", "enterprise", "other"])),
        members=MappingProxyType(members),
        connections=connections,
        primary=draw(st.sampled_from(names)),
        file_filter=draw(st.sampled_from([(), ("*.tmp",)])),
        schedule=draw(SCHEDULES),
    )
    root = Path(draw(st.sampled_from(["/x", "/y"])), name)
    return LocalSet(replica_set, members["a"], root, Path("/state", name), draw(st.sampled_from([1 << 20, 1 << 30])))


def by_secret(password: str) -> Authentication:
    return Authentication(None, Secret("FRS", "frs", password))


@st.composite
def views(draw: st.DrawFn) -> DirectoryView:
    names = draw(st.sets(st.sampled_from(["docs", "tools", "mail"])))
    authentication = by_secret(draw(st.sampled_from(["one", "two"])))
    return view_of_sets([draw(local_sets(name)) for name in sorted(names)], authentication, draw(st.integers(0, 3)))


@given(views(), views())
def test_the_changes_applied_to_the_old_view_give_the_new_one(old: DirectoryView, new: DirectoryView) -> None:
    assert applied(old, compare(old, new)) == new


@given(views(), views())
def test_nothing_is_told_of_what_is_the_same(old: DirectoryView, new: DirectoryView) -> None:
    assert compare(new, new) == ()
    changed = {change.key for change in compare(old, new)}
    same = {key for key in old.objects.keys() & new.objects.keys() if old.objects[key] == new.objects[key]}
    assert changed == (old.objects.keys() | new.objects.keys()) - same


@given(views(), views())
def test_a_change_says_which_fields_differ(old: DirectoryView, new: DirectoryView) -> None:
    for change in compare(old, new):
        assert str(change)
        assert bool(change.fields) == (change.before is not None and change.after is not None)


@given(st.sampled_from(["docs", "mail"]).flatmap(local_sets))
def test_what_is_put_together_again_is_what_this_member_needs_of_the_set(local: LocalSet) -> None:
    (again,) = view_of_sets([local], by_secret("x")).local_sets()
    own = tuple(one for one in local.set.connections if "a" in (one.upstream, one.downstream))
    assert again == dataclasses.replace(local, set=dataclasses.replace(local.set, connections=own))


@given(views(), views())
def test_a_set_that_is_kept_is_as_it_was(old: DirectoryView, new: DirectoryView) -> None:
    kept = new.keeping(old, old.set_guids)
    assert set(by_set(compare(old, kept))).isdisjoint(old.set_guids)
    assert set(kept.set_guids) == {*old.set_guids, *new.set_guids}
    assert len(kept.local_sets()) == len(kept.set_guids)


@given(local_sets("docs"))
def test_an_object_of_an_earlier_generation_is_older_whatever_it_says(local: LocalSet) -> None:
    old, new = view_of_sets([local], by_secret("x"), 3), view_of_sets([local], by_secret("x"), 4)
    assert old == new
    assert set(old.older_than(new)) == {
        key for key in new.objects if key.kind not in ("authentication", "subscription")
    }
    assert new.older_than(old) == []
    assert compare(old, new) == ()


def docs(**changed: object) -> LocalSet:
    members = {one: Member(one, guid(one), f"{one}.example", 28700) for one in "abc"}
    pairs = [("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")]
    connections = tuple(Connection(guid(up, down), f"{up}->{down}", up, down) for up, down in pairs)
    replica_set = ReplicaSet("docs", guid("docs"), "other", MappingProxyType(members), connections, "a")
    return LocalSet(dataclasses.replace(replica_set, **changed), members["a"], Path("/x"), Path("/state"))  # type: ignore[arg-type]


def told(before: LocalSet, after: LocalSet, password: str = "x") -> list[str]:
    old, new = view_of_sets([before], by_secret("x")), view_of_sets([after], by_secret(password))
    return [str(change) for change in compare(old, new)]


def test_changes_are_told_in_words() -> None:
    plain = docs()
    assert told(plain, docs(primary="b")) == ["the set docs: primary a becomes b"]
    assert told(plain, docs(file_filter=("*.tmp", "~*"))) == ["the set docs: file filter nothing becomes *.tmp, ~*"]
    first = dataclasses.replace(plain.set.connections[0], priority=1, schedule=bytes(84))
    assert told(plain, docs(connections=(first, *plain.set.connections[1:]))) == [
        "the connection a->b: priority 7 becomes 1, another schedule"
    ]
    assert told(plain, docs(connections=plain.set.connections[1:])) == ["the connection a->b is gone"]
    moved = dict(plain.set.members, b=dataclasses.replace(plain.set.members["b"], host="new.example"))
    assert told(plain, docs(members=MappingProxyType(moved))) == ["the member b: host b.example becomes new.example"]
    assert told(plain, dataclasses.replace(plain, root=Path("/y"))) == ["the root /y: root /x becomes /y"]


def test_no_secret_and_no_key_is_ever_told() -> None:
    assert told(docs(), docs(), "topsecret") == ["authentication: another secret"]
    with_key = [view_of_sets([docs()], Authentication(bytes([n]) * 32, None)) for n in (1, 2)]
    assert [str(change) for change in compare(*with_key)] == ["authentication: another key"]
    assert "01" not in repr(with_key[0].objects[AUTHENTICATION])


def test_connections_of_others_are_no_part_of_the_view() -> None:
    found = set_objects(docs().set, "a")
    assert {key.guid for key in found if key.kind == "connection"} == {
        guid("a", "b"), guid("b", "a"), guid("a", "c"),
    }  # fmt: skip
    assert {key.guid for key in found if key.kind == "member"} == {guid(one) for one in "abc"}


def test_what_goes_goes_before_its_set() -> None:
    """And what comes comes after it."""
    view = view_of_sets([docs()], by_secret("x"))
    nothing = DirectoryView({AUTHENTICATION: view.objects[AUTHENTICATION]})
    assert [change.key.kind for change in compare(view, nothing)][-1] == "set"
    assert next(change.key.kind for change in compare(nothing, view)) == "set"


def test_the_staging_area_lies_in_the_folder_of_the_set() -> None:
    view = view_of_sets([docs()], by_secret("x"))
    subscription = view.objects[Key(guid("docs"), "subscription", guid("a"))].value
    assert isinstance(subscription, Subscription)
    assert subscription.staging == Path("/state/staging")
