"""What is held for all clients together, against a simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.rpc.memory import Memory


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.integers(1, 60), st.booleans())))
def test_memory_is_as_a_table_would_be(steps: list[tuple[str, str, int, bool]]) -> None:
    """Holders are pairs, so that each belongs to one source."""
    memory: Memory[tuple[str, str]] = Memory(100, 50)
    model: dict[tuple[str, str], int] = {}

    def of(source: str) -> int:
        return sum(size for (_, s), size in model.items() if s == source)

    for name, source, size, take in steps:
        holder = (name, source)
        if not take:
            memory.give(holder, size)
            model[holder] = max(0, model.get(holder, 0) - size)
        else:
            before = {s: of(s) for s in "xyz"}
            granted, victim = memory.take(holder, source, size)
            if victim is not None:
                assert before[victim[1]] == max(before.values())
                assert before[victim[1]] > before[source] + size, "who has less does not make room for who has more"
                model[victim] = 0
            if granted:
                model[holder] = model.get(holder, 0) + size
            elif victim is None:
                assert of(source) + size > 50 or sum(model.values()) + size > 100
        assert memory.total == sum(model.values()) <= 100
        for known, held in model.items():
            assert memory.held(known) == held
            assert of(known[1]) <= 50
