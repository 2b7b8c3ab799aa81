"""Members' keys: X25519 (RFC 7748). The private one is in a file of its member, the public one in the topology."""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

_SIZE = 32


def new_key() -> bytes:
    """A random private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def key_text(key: bytes) -> str:
    """A key as files have it."""
    return base64.b64encode(key).decode()


def decode_key(text: str) -> bytes:
    """The reverse. Raises ValueError."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _SIZE:
        raise ValueError("must be a key, 44 characters in base64, as `frs key` prints it")
    return key


def decode_public_key(text: str) -> bytes:
    """A public key that somebody can have: not a point of low order (RFC 7748, section 6.1). Raises ValueError."""
    key = decode_key(text)
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise ValueError("is a key that nobody can have; `frs key` on that member prints the right one") from None
    return key
