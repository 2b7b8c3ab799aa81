"""The handshake Noise_IK_25519_AESGCM_SHA256 of the Noise Protocol Framework (revision 34), and the ciphers it ends in.

Both sides have a static X25519 key; the initiator knows the responder's beforehand and sends its own, encrypted. Two
messages give both sides a key for each direction that only holders of these two static keys can have, and that is lost
with the ephemeral ones. What a key means is not decided here.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent.rpc.errors import RpcAuthError

KEY_SIZE: Final = 32
TAG_SIZE: Final = 16
_NAME: Final = b"Noise_IK_25519_AESGCM_SHA256"


class KeyPair:
    """A private key of 32 bytes, and what can be done with it. It never shows in a repr."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> KeyPair:
        """A random one."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    def shared(self, public: bytes) -> bytes:
        """What the two pairs have in common. Raises RpcAuthError for a public key that has nothing in common with any
        (a point of low order)."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise RpcAuthError("a public key that cannot be one") from None


class Cipher:
    """One direction: messages are numbered, each has its number in its nonce, and none can be left out, sent again or
    moved without the next one failing."""

    __slots__ = ("_aead", "_number")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._number = 0

    def _nonce(self) -> bytes:
        nonce = self._number.to_bytes(12, "big")
        self._number += 1
        return nonce

    def encrypt(self, text: bytes | memoryview, beside: bytes | memoryview) -> bytes:
        """`text` encrypted, with a tag of 16 bytes behind it that also covers `beside`."""
        return self._aead.encrypt(self._nonce(), text, beside)

    def decrypt(self, sealed: bytes | bytearray | memoryview, beside: bytes | memoryview) -> bytes:
        """The reverse. Raises RpcAuthError when it is not the next message of whoever has the key."""
        try:
            return self._aead.decrypt(self._nonce(), sealed, beside)
        except InvalidTag:
            raise RpcAuthError("a message does not decrypt") from None


class Handshake:
    """One side of the handshake. The initiator gives `remote`, the responder learns it from the first message.

    `prologue` is what both sides have to agree about beforehand. `ephemeral` is for tests with known answers only.
    """

    def __init__(
        self, own: KeyPair, remote: bytes | None, prologue: bytes, *, ephemeral: KeyPair | None = None
    ) -> None:
        self._own = own
        self._ephemeral = ephemeral if ephemeral is not None else KeyPair.new()
        #: the static public key of the other side
        self.remote = remote if remote is not None else b""
        self._remote_ephemeral = b""
        self._chaining = self.hash = _NAME.ljust(32, b"\0")
        self._cipher: Cipher | None = None
        self._mix_hash(prologue)
        self._mix_hash(remote if remote is not None else own.public)  # the responder's: the pre-message

    # The initiator.

    def write_first(self, payload: bytes = b"") -> bytes:
        """e, es, s, ss."""
        self._mix_hash(self._ephemeral.public)
        self._mix_key(self._ephemeral.shared(self.remote))
        static = self._encrypt(self._own.public)
        self._mix_key(self._own.shared(self.remote))
        return self._ephemeral.public + static + self._encrypt(payload)

    def read_second(self, message: bytes) -> bytes:
        """e, ee, se; gives the payload. Raises RpcAuthError."""
        if len(message) < KEY_SIZE + TAG_SIZE:
            raise RpcAuthError("the second message of the handshake is too short")
        self._remote_ephemeral = message[:KEY_SIZE]
        self._mix_hash(self._remote_ephemeral)
        self._mix_key(self._ephemeral.shared(self._remote_ephemeral))
        self._mix_key(self._own.shared(self._remote_ephemeral))
        return self._decrypt(message[KEY_SIZE:])

    # The responder.

    def read_first(self, message: bytes) -> bytes:
        """The reverse of `write_first`; `remote` is known then. Raises RpcAuthError, also for a message to another."""
        static = KEY_SIZE + KEY_SIZE + TAG_SIZE
        if len(message) < static + TAG_SIZE:
            raise RpcAuthError("the first message of the handshake is too short")
        self._remote_ephemeral = message[:KEY_SIZE]
        self._mix_hash(self._remote_ephemeral)
        self._mix_key(self._own.shared(self._remote_ephemeral))
        self.remote = self._decrypt(message[KEY_SIZE:static])
        self._mix_key(self._own.shared(self.remote))
        return self._decrypt(message[static:])

    def write_second(self, payload: bytes = b"") -> bytes:
        """The reverse of `read_second`."""
        self._mix_hash(self._ephemeral.public)
        self._mix_key(self._ephemeral.shared(self._remote_ephemeral))
        self._mix_key(self._ephemeral.shared(self.remote))
        return self._ephemeral.public + self._encrypt(payload)

    # Both.

    def split(self) -> tuple[Cipher, Cipher]:
        """The ciphers of the two directions, the initiator's first."""
        to_responder, to_initiator = self._derive(b"")
        return Cipher(to_responder), Cipher(to_initiator)

    def _derive(self, material: bytes) -> tuple[bytes, bytes]:
        key = hmac.digest(self._chaining, material, "sha256")
        first = hmac.digest(key, b"\x01", "sha256")
        return first, hmac.digest(key, first + b"\x02", "sha256")

    def _mix_key(self, material: bytes) -> None:
        self._chaining, key = self._derive(material)
        self._cipher = Cipher(key)

    def _mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.sha256(self.hash + data).digest()

    def _encrypt(self, text: bytes) -> bytes:
        assert self._cipher is not None
        sealed = self._cipher.encrypt(text, self.hash)
        self._mix_hash(sealed)
        return sealed

    def _decrypt(self, sealed: bytes) -> bytes:
        assert self._cipher is not None
        text = self._cipher.decrypt(sealed, self.hash)
        self._mix_hash(sealed)
        return text
