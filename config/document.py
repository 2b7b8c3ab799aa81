"""One TOML file, read, checked against its schema, and able to say where each of its keys stands."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from config.errors import ConfigError, joined
from config.positions import KeyPath, dotted, key_lines, line_of

_Model = TypeVar("_Model", bound=BaseModel)
_MAX_BYTES = 16 << 20

_KINDS = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "bytes_type": "a text in quotes",
}


def read_text(path: Path, what: str, advice: str) -> str:
    """The text of `path`. `what` names the file ("the topology"), `advice` says what to do where it is
    missing.

    Raises ConfigError for what cannot be read or is not UTF-8.
    """
    try:
        with open(path, "rb") as stream:
            return decoded(path, what, stream)
    except FileNotFoundError:
        raise ConfigError(path, None, "", f"{what} does not exist; {advice}") from None
    except OSError as error:
        raise ConfigError(path, None, "", f"{what} cannot be read: {error.strerror}") from None


def resolve(file: Path, text: str) -> Path:
    """The absolute path that `text` in `file` means: relative to its folder, "~" is the user's home."""
    return Path(os.path.normpath(file.parent / os.path.expanduser(text)))


def decoded(path: Path, what: str, stream: BinaryIO) -> str:
    """The text in `stream`, which `path` was opened as; `what` as for read_text.

    Raises ConfigError for what is not UTF-8, or too large, OSError for what cannot be read.
    """
    data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ConfigError(path, None, "", f"{what} is larger than {_MAX_BYTES >> 20} MiB: this is another file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, line, "", "is not UTF-8; save it in that encoding") from None


class Document:
    """A parsed TOML file. `values` is what stands in it; `fail` makes an error that names a place in it."""

    def __init__(self, path: Path, text: str) -> None:
        """Raises ConfigError where `text` is not TOML."""
        self.path = path
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            match = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)", message)
            line = (int(match[1]) if match[1] else text.rstrip().count("\n") + 1) if match else None
            message = message[: match.start()] if match else message
            raise ConfigError(path, line, "", f"is not valid TOML: {message}; correct this line") from None
        except RecursionError:
            raise ConfigError(path, None, "", "is not valid TOML: nested too deeply") from None
        self._lines = key_lines(text)

    def line(self, *key: str | int) -> int | None:
        """The line of a key, or of the nearest table around it."""
        return line_of(self._lines, key)

    def fail(self, key: KeyPath, message: str) -> ConfigError:
        """The error of this file at `key`."""
        return ConfigError(self.path, line_of(self._lines, key), dotted(key), message)

    def validate(self, model: type[_Model]) -> _Model:
        """The file as `model`; raises ConfigError with everything that is wrong."""
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            faults = [self._translate(model, dict(fault)) for fault in error.errors(include_url=False)]
            raise joined(faults) from None

    def _translate(self, model: type[BaseModel], fault: dict[str, Any]) -> ConfigError:
        key: KeyPath = tuple(fault["loc"])
        kind, given, context = fault["type"], fault["input"], fault.get("ctx", {})
        if kind == "extra_forbidden":
            known = sorted(_keys_of(model, key[:-1]))
            return self.fail(key, f"is not a known key; {suggestion(str(key[-1]), known)}")
        if kind == "missing":
            return self.fail(key, f"is missing; add {dotted(key[-1:])} here")
        if kind == "literal_error":
            return self.fail(key, f"must be one of {context['expected']}, not {given!r}")
        if kind in ("too_short", "string_too_short"):
            return self.fail(key, "must not be empty")
        if kind in _KINDS:
            return self.fail(key, f"must be {_KINDS[kind]}, not {given!r}")
        if kind == "value_error":
            return self.fail(key, str(context["error"]))
        message = str(fault["msg"]).replace("Input should", "must", 1)
        return self.fail(key, f"{message}, not {given!r}")


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """What may have been meant by `wrong`: the nearest of `known`, else all of them."""
    known = list(known)
    near = difflib.get_close_matches(wrong.lower(), known, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return "known here: " + ", ".join(known) if known else "none is known here"


def _keys_of(model: type[BaseModel], path: KeyPath) -> Iterable[str]:
    """The keys that the table at `path` under `model` may hold."""
    current = model
    for part in path:
        if isinstance(part, int):
            continue
        found = _model_in(current.model_fields[part].annotation)
        if found is None:
            return ()
        current = found
    return current.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := _model_in(inner):
            return found
    return None
