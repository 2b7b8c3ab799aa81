"""An object of the directory, what is left of one that was deleted, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.directory.objects.table import BESIDE, IDENTIFIER, NAME, PROPERTIES, Type, type_of
from agent.directory.objects.values import Value, encode_value
from agent.wire.errors import WireError

MQ_OK: Final = 0
MQ_ERROR: Final = 0xC00E0001
MQ_ERROR_ILLEGAL_PROPERTY_VALUE: Final = 0xC00E0018
MQ_ERROR_ACCESS_DENIED: Final = 0xC00E0025
MQ_ERROR_ILLEGAL_PROPID: Final = 0xC00E0039
MQDS_WRONG_OBJ_TYPE: Final = 0xC00E0506
MQDS_OBJECT_NOT_FOUND: Final = 0xC00E050F


class DirectoryError(Exception):
    """What was asked of the directory cannot be done; `status` is the HRESULT that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class DsObject:
    """An object. `seq` is the number of its last change in its partition; the properties are all that it has, by
    identifier, without those that say the same as a field here."""

    type: Type
    guid: bytes
    partition: bytes
    seq: int
    properties: Mapping[int, Value]

    @property
    def name(self) -> str | None:
        """What it can be found by beside its GUID."""
        value = self.properties.get(NAME.get(self.type, 0))
        return value if isinstance(value, str) else None

    def text(self, prop: int) -> str:
        """A property that is a text, empty where it is not there."""
        value = self.properties.get(prop, "")
        return value if isinstance(value, str) else ""

    def number(self, prop: int) -> int:
        """A property that is a number, 0 where it is not there."""
        value = self.properties.get(prop, 0)
        return value if isinstance(value, int) else 0

    def data(self, prop: int) -> bytes:
        """A property that is a GUID or a blob, empty where it is not there."""
        value = self.properties.get(prop, b"")
        return value if isinstance(value, bytes) else b""

    def texts(self, prop: int) -> tuple[str, ...]:
        """A property that is a list of texts, empty where it is not there."""
        value = self.properties.get(prop, ())
        return tuple(str(one) for one in value) if isinstance(value, tuple) else ()


@dataclass(frozen=True, slots=True)
class DeletedObject:
    """A tombstone ([MC-MQDSRP] 3.1.1.2.2): the object is gone since the change `seq`."""

    guid: bytes
    partition: bytes
    seq: int
    type: Type
    scope: int = 1


_LINES: Final = {
    type_: [line for line in PROPERTIES.values() if line.type == type_ and line.id not in (*BESIDE, prop)]
    for type_, prop in IDENTIFIER.items()
}
_REQUIRED: Final = {type_: [line for line in lines if line.required] for type_, lines in _LINES.items()}
_DEFAULTS: Final = {
    type_: {line.id: line.default for line in lines if line.default is not None} for type_, lines in _LINES.items()
}


def checked(properties: Mapping[int, Value], type_: Type) -> dict[int, Value]:
    """These properties, where each is one of that type of object and has a value of its own type; those that are kept
    beside an object left out. Raises DirectoryError."""
    found: dict[int, Value] = {}
    for prop, value in properties.items():
        line = PROPERTIES.get(prop)
        if line is None or line.type != type_:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{prop} is no property of {type_.name}")
        try:
            encode_value(line.vt, value)
        except WireError as error:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"{line.name}: {error.message}") from None
        if prop not in BESIDE and prop != IDENTIFIER.get(type_):
            found[prop] = value
    return found


def new_object(type_: Type, guid: bytes, partition: bytes, properties: Mapping[int, Value]) -> DsObject:
    """An object as somebody asks for it, with defaults for what he leaves out, and without a number yet. `guid` may
    stand among the properties, too. Raises DirectoryError."""
    if type_ not in IDENTIFIER:
        raise DirectoryError(MQDS_WRONG_OBJ_TYPE, f"no object of type {type_.name} can be made")
    given = checked(properties, type_)
    for line in _REQUIRED[type_]:
        if line.id not in given:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{line.name} is missing")
    return DsObject(type_, guid, partition, 0, _DEFAULTS[type_] | given)


def type_of_change(properties: Mapping[int, Value]) -> Type:
    """The type of object that a change is of: the first property says it ([MC-MQDSRP] 3.1.1.4). Raises
    DirectoryError."""
    for prop in properties:
        try:
            return type_of(prop)
        except ValueError:
            break
    raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "no property says what type of object this is")
