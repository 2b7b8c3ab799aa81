"""Who gives way, and how often something may happen, against simple models of both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.edge.places import Places
from agent.edge.sources import source_of
from agent.work.rates import Rate, SourceRates


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd"), st.booleans()), max_size=80))
def test_places_are_as_a_list_would_be(steps: list[tuple[int, str, bool]]) -> None:
    places: Places[int] = Places()
    model: list[tuple[int, str]] = []
    for item, source, add in steps:
        there = any(item == x for x, _ in model)
        if add and not there:
            places.add(item, source)
            model.append((item, source))
        elif not add:
            assert places.discard(item) == there
            model = [(x, s) for x, s in model if x != item]
        assert len(places) == len(model)
        assert list(places) == [x for x, _ in model]
        held = {s: [x for x, of in model if of == s] for s in "abcd"}
        for one, items in held.items():
            assert places.of(one) == len(items)
            assert places.items_of(one) == items
        if model:
            fullest = places.fullest()
            assert len(held[fullest]) == max(map(len, held.values()))
            assert places.giving_way() == held[fullest][0]


def test_of_sources_that_have_as_many_the_first_gives_way() -> None:
    places: Places[str] = Places()
    for number, source in enumerate(["a", "b", "c", "b"]):
        places.add(f"{source}{number}", source)
    assert places.giving_way() == "b1"
    places.discard("b1")
    assert places.giving_way() == "a0"
    places.discard("a0")
    assert places.giving_way() == "c2"


def test_a_rate_allows_a_burst_and_then_so_many() -> None:
    now = [0.0]
    rate = Rate(2.0, 3, lambda: now[0])
    assert [rate.take() for _ in range(5)] == [True, True, True, False, False]
    now[0] = 0.5
    assert [rate.take() for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [rate.take() for _ in range(4)] == [True, True, True, False]


def test_each_source_has_a_rate_of_its_own() -> None:
    rates = SourceRates(1.0, 2, lambda: 0.0)
    assert [rates.take("a") for _ in range(3)] == [True, True, False]
    assert rates.take("b")
    for number in range(2000):
        rates.take(str(number))
    assert len(rates._rates) == 1024


def test_sources() -> None:
    assert source_of("192.0.2.7") == "192.0.2.7"
    assert source_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert source_of("2001:db8:1:2:3:4:5:6") == source_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert source_of("fe80::1%eth0") == "fe80::/64"
    assert source_of("::1") == "::/64"
    assert source_of("no:address") == "no:address"
