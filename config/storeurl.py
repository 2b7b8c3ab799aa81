"""Where samples are kept for others to read: a URL that names a folder of a shared or object-store place.

It holds no credentials: those are in the environment of the program, or in the files of the library for that place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

_FORM: Final = re.compile(r"[a-z][a-z0-9+.-]+://.+", re.DOTALL)
S3: Final = ("s3", "s3a")
#: What may follow the `?` of an S3 URL.
S3_OPTIONS: Final = ("region", "endpoint_override", "scheme")
#: What is reached without the extra `objectstore`.
BUILT_IN: Final = ("file", *S3)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """`base` is the folder without options, and without a slash at its end; `path` what the library for `scheme` calls
    it: of S3 the bucket, and the folder in it."""

    scheme: str
    base: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)


def is_url(text: str) -> bool:
    """Whether a text is a URL, and not a path of this host."""
    return _FORM.fullmatch(text) is not None


def parse_store(text: str) -> StoreUrl:
    """Raises `ValueError`, whose text goes on behind the name of a setting, and has nothing of credentials."""
    if not is_url(text) or any(ord(c) <= 32 for c in text) or "::" in text:
        raise ValueError(f"must be a URL such as s3://bucket/folder or file:///srv/samples, not {_harmless(text)!r}")
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError("is no URL that can be understood") from None
    if "@" in parts.netloc:
        raise ValueError(
            "must hold no user name and no password: give them to the program in its environment (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or in the files of the library for that place"
        )
    allowed = S3_OPTIONS if parts.scheme in S3 else ()
    if unknown := sorted({name for name, _ in options} - set(allowed)):
        of = f"there are {', '.join(allowed)}" if allowed else f"a {parts.scheme} URL has none"
        raise ValueError(f"has an option that is not known, {unknown[0]!r}: {of}")
    if parts.fragment:
        raise ValueError("must have no # in it")
    path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else parts.path.rstrip("/")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not path:
            raise ValueError("must name a folder by its whole path, as file:///srv/samples does")
        return StoreUrl("file", f"file://{parts.path.rstrip('/')}", path)
    if parts.scheme in S3 and not parts.netloc:
        raise ValueError("must name a bucket, as s3://bucket/folder does")
    return StoreUrl(parts.scheme, f"{parts.scheme}://{parts.netloc}{path}", f"{parts.netloc}{path}", dict(options))


def _harmless(text: str) -> str:
    """Without what stands before an @."""
    return text.rpartition("@")[2]
