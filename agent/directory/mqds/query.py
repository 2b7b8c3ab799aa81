"""What S_DSLookupBegin asks for ([MS-MQDS] 3.1.6.7): restrictions, columns, sort keys."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent.directory.mqds.methods import Restriction, SortKey
from agent.directory.mqds.ndr import Variant
from agent.directory.objects.model import MQ_ERROR_ILLEGAL_PROPID, DirectoryError
from agent.directory.objects.table import PROPERTIES, Type, type_of
from agent.directory.objects.values import Value

MQ_ERROR_INVALID_PARAMETER: Final = 0xC00E0006
#: PRLT, PRLE, PRGT, PRGE, PREQ, PRNE (2.2.11).
_RELATIONS: Final[tuple[Callable[[Any, Any], bool], ...]] = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
)  # fmt: skip
#: Objects that can be looked for.
FOUND: Final = (Type.QUEUE, Type.MACHINE, Type.SITE, Type.ENTERPRISE, Type.USER, Type.ROUTING_LINK)


def type_of_columns(columns: Sequence[int]) -> Type:
    """The type of object that is asked for: that of all columns. Raises DirectoryError."""
    try:
        found = {type_of(prop) for prop in columns}
    except ValueError:
        found = set()
    if len(found) != 1 or not found <= set(FOUND):
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "the columns are not of one type of object")
    return found.pop()


def check(restrictions: Sequence[Restriction]) -> None:
    """Whether values can be compared so. Raises DirectoryError."""
    for one in restrictions:
        if one.rel >= len(_RELATIONS) or one.value[0] != PROPERTIES[one.prop].vt:
            raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, f"relation {one.rel}, type {one.value[0]}")


def satisfies(values: Mapping[int, Value | None], restrictions: Sequence[Restriction]) -> bool:
    """Whether an object with these values meets all restrictions; one without the property meets none but "other than".
    Texts are compared without regard to case."""
    return all(_holds(one.rel, values.get(one.prop), one.value) for one in restrictions)


def _holds(rel: int, found: Value | None, wanted: Variant) -> bool:
    if found is None or wanted[1] is None:
        return _RELATIONS[rel] is operator.ne
    return _RELATIONS[rel](_folded(found), _folded(wanted[1]))


def _folded(value: Value) -> Any:
    return value.casefold() if isinstance(value, str) else value


async def in_order(rows: list[tuple[bytes, dict[int, Value | None]]], sort: Sequence[SortKey]) -> list[bytes]:
    """The identifiers of the rows, by the first key, where that is the same by the second, and so on (the text has the
    order of importance the other way round than pSort says); what has no value comes first."""
    for key in reversed(sort):

        def by(row: tuple[bytes, dict[int, Value | None]], prop: int = key.prop) -> tuple[bool, Any]:
            value = row[1].get(prop)
            return value is not None, _folded(value) if value is not None else 0

        rows.sort(key=by, reverse=key.descending)
        await asyncio.sleep(0)  # there may be many keys, and rows
    return [guid for guid, _ in rows]
