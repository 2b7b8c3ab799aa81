"""What the journal need not be told of: each install's file, once, the first time it comes."""

from __future__ import annotations

from agent.files.underway import UnderWay

CO, OTHER = b"c" * 16, b"o" * 16
KEY, MORE = (1, 2, 3), (1, 4, 5)


def install(under_way: UnderWay, co: bytes, file: bytes, key: tuple[int, int, int]) -> None:
    under_way.begin(co, [file], [(b"p" * 16, "name")])
    under_way.made(co, key)


def test_a_file_of_an_install_is_an_echo_once() -> None:
    under_way = UnderWay()
    assert not under_way.awaited
    install(under_way, CO, b"f" * 16, KEY)
    assert under_way.awaited
    assert not under_way.echo(MORE)
    assert not under_way.echo((1, 2, 4)), "the inode was given to another file"
    assert under_way.echo(KEY)
    assert not under_way.awaited
    assert not under_way.echo(KEY)


def test_where_no_time_of_birth_is_known_all_is_looked_at() -> None:
    """A file that somebody moves in may have the inode of one that is gone."""
    under_way = UnderWay()
    install(under_way, CO, b"f" * 16, (1, 2, 0))
    assert not under_way.awaited
    assert not under_way.echo((1, 2, 0))


def test_what_was_not_told_of_is_forgotten_with_its_install() -> None:
    """The kernel may have dropped the event: memory is bounded by what is under way."""
    under_way = UnderWay()
    install(under_way, CO, b"f" * 16, KEY)
    install(under_way, OTHER, b"g" * 16, MORE)
    under_way.look({b"g" * 16})
    assert not under_way.echo(KEY)
    assert under_way.echo(MORE)
