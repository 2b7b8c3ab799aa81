"""A shared or object-store place for samples: S3 and folders by pyarrow, whatever else fsspec reaches.

Nobody ever sees a part of a file there: an object appears when it is whole, and where there are names that can be
changed a file is written beside its place, under a name that begins with a dot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs as pafs

from config.storeurl import S3, StoreUrl, parse_store

#: Where an object appears as a whole, once all of it is there.
_WHOLE: Final = (*S3, "gs", "gcs", "abfs", "abfss", "az", "oss", "memory")
#: No file of samples is larger.
_MOST: Final = 256 << 20
_CONNECT_S: Final = 10.0
_REQUEST_S: Final = 60.0
_SECRET: Final = re.compile("KEY|SECRET|TOKEN|PASSW|CREDENTIAL", re.IGNORECASE)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class StoreError(Exception):
    """What cannot be reached, read or written there; the text says which, and why, and holds no credentials."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file there. `url` is its name, without the options of the place."""

    url: str
    path: str = field(compare=False)
    size: int
    mtime_ns: int
    store: Store = field(compare=False, repr=False)


class Store:
    """The place that a URL names."""

    def __init__(self, url: str) -> None:
        """Raises ``StoreError``. Nothing is asked of the place yet."""
        try:
            self.at: StoreUrl = parse_store(url)
        except ValueError as error:
            raise StoreError(f"the URL of the samples {error}") from None
        with self._telling("cannot be reached"):
            self._fs, self._path = _filesystem(self.at)

    def files(self, suffix: str) -> list[Stored]:
        """All whole files with that ending, at any depth, by their names. Raises ``StoreError``."""
        with self._telling("cannot be read"):
            found = self._fs.get_file_info(pafs.FileSelector(self._path, recursive=True))
        return sorted(
            (
                Stored(self._url(one.path), one.path, one.size or 0, _ns(one.mtime), self)
                for one in found
                if one.type == pafs.FileType.File and one.base_name[:1] not in "._" and one.path.endswith(suffix)
            ),
            key=lambda one: one.url,
        )

    @contextmanager
    def opened(self, stored: Stored) -> Iterator[Any]:
        """A file there as pyarrow reads it, without fetching all of it. Raises ``OSError`` where it is not there or
        cannot be reached, also from what is done with it."""
        with _plainly(), self._fs.open_input_file(stored.path) as file:
            yield file

    def fetch(self, stored: Stored, into: Path) -> None:
        """Copy a file from there. Raises ``OSError``."""
        with _plainly(), self._fs.open_input_stream(stored.path, compression=None) as file:
            into.write_bytes(file.read())

    def put(self, name: str, data: bytes) -> None:
        """A file there, of that name below the place, whole and durable once it is seen. Raises ``StoreError``."""
        path = f"{self._path}/{name}"
        folder, _, base = path.rpartition("/")
        with self._telling(f"{name} cannot be written"):
            if len(data) > _MOST:
                raise OSError(f"it has {len(data)} bytes: no file of samples has more than {_MOST}")
            whole = self.at.scheme in _WHOLE
            beside = path if whole else f"{folder}/.{base}.tmp"
            if not whole:
                self._fs.create_dir(folder, recursive=True)
            with self._fs.open_output_stream(beside, compression=None) as file:
                file.write(data)
            if self.at.scheme == "file":
                _durable(beside)
            if (size := self._fs.get_file_info(beside).size) != len(data):
                raise OSError(f"{size} bytes are there, of {len(data)}")
            if not whole:
                self._fs.move(beside, path)

    def _url(self, path: str) -> str:
        return self.at.base + path.removeprefix(self._path)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # libraries have errors of their own for each place
            raise StoreError(f"{self.at.base}: {what}: {told(error)}") from None


def told(error: BaseException, environment: Iterable[tuple[str, str]] | None = None) -> str:
    """What an error says, in a line, without anything secret of the environment."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in environment if environment is not None else os.environ.items():
        if len(value) >= 4 and _SECRET.search(name):
            text = text.replace(value, f"({name})").replace(quote(value, safe=""), f"({name})")
    return text[:500]


def _filesystem(at: StoreUrl) -> tuple[pafs.FileSystem, str]:
    if at.scheme == "file":
        return pafs.LocalFileSystem(), at.path
    if at.scheme in S3:
        options = dict(at.options)
        made = pafs.S3FileSystem(
            **options, connect_timeout=_CONNECT_S, request_timeout=_REQUEST_S,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=3),
        )  # fmt: skip
        return made, at.path
    try:
        import fsspec
    except ImportError:
        raise StoreError(f"{at.base}: needs the extra `objectstore`: pip install 'frs-agent[objectstore]'") from None
    there, path = fsspec.core.url_to_fs(at.base, use_listings_cache=False)
    return pafs.PyFileSystem(pafs.FSSpecHandler(there)), path.rstrip("/")


@contextmanager
def _plainly() -> Iterator[None]:
    """What is no ``OSError`` nor pyarrow's becomes one: each library of fsspec has errors of its own."""
    try:
        yield
    except (OSError, pa.ArrowException):
        raise
    except Exception as error:
        raise OSError(told(error)) from None


def _durable(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _ns(when: Any) -> int:
    """A time of the last change as nanoseconds since 1970; 0 where there is none."""
    with suppress(TypeError, ValueError, OverflowError):
        return int((when - _EPOCH) / timedelta(microseconds=1)) * 1000
    return 0
