"""A statement with signatures on it (a DSSE envelope), made and checked with keys in PEM files:
Ed25519, or ECDSA on the curves P-256, P-384 and P-521.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError, MissingPackageError
from ..files.schema import Fields, read_bounded

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAX_KEY_BYTES = 20_000
_MAX_SIGNATURES = 20
_KEYS = "Give an Ed25519 key, or an ECDSA key on P-256, P-384 or P-521, as a PEM file"


@dataclass(frozen=True)
class Envelope:
    """A statement, byte for byte, and signatures that may be anyone's."""

    payload: bytes
    signatures: tuple[bytes, ...]

    @classmethod
    def of(cls, fields: Fields) -> Envelope:
        """Reads an envelope that anyone may have written."""
        kind = fields.values.get("payloadType")
        if kind != PAYLOAD_TYPE:
            raise FileError(f"{fields.title} is an envelope of something else than a statement.")
        signatures = fields.objects("signatures", _MAX_SIGNATURES)
        return cls(
            _decoded(fields.values.get("payload"), f"{fields.title}: the payload"),
            tuple(_decoded(item.values.get("sig"), item.title) for item in signatures),
        )

    def signed_by(self, key: Key) -> bool:
        """Whether a signature is that of this public key."""
        return any(key.verifies(signature, self.payload) for signature in self.signatures)

    def to_json(self) -> str:
        """As it is in a file."""
        signatures = [{"sig": base64.b64encode(sig).decode()} for sig in self.signatures]
        payload = base64.b64encode(self.payload).decode()
        content = {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": signatures}
        return json.dumps(content, indent=1)


def signed_bytes(payload: bytes) -> bytes:
    """What a signature is made of: the type counts as well as the content."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class Key:
    """A private or a public key."""

    _key: Any
    _scheme: tuple[Any, ...]
    """The hash that goes with a curve, as OpenSSF's tools choose it."""

    @classmethod
    def read(cls, path: Path, kind: Literal["private", "public"]) -> Key:
        """Reads a PEM file."""
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        except ImportError as error:
            raise MissingPackageError(
                "Signatures need another package. Run `pip install cryptography`.",
                package="cryptography",
            ) from error
        content = read_bounded(path, _MAX_KEY_BYTES)
        try:
            key: Any = (
                serialization.load_pem_private_key(content, password=None)
                if kind == "private"
                else serialization.load_pem_public_key(content)
            )
        except TypeError:
            raise FileError(f"{path} has a password. Give a key without one.") from None
        except (ValueError, UnsupportedAlgorithm):
            raise FileError(f"{path} is not a {kind} key. {_KEYS}.") from None
        if isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
            return cls(key, ())
        curves = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
        name = getattr(getattr(key, "curve", None), "name", "")
        if name not in curves:
            raise FileError(f"{path} is a key of another type. {_KEYS}.")
        return cls(key, (ec.ECDSA(getattr(hashes, curves[name])()),))

    def sign(self, payload: bytes) -> Envelope:
        """A statement with the signature of this private key."""
        return Envelope(payload, (self._key.sign(signed_bytes(payload), *self._scheme),))

    def verifies(self, signature: bytes, payload: bytes) -> bool:
        """Whether a signature of a statement is that of this public key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, signed_bytes(payload), *self._scheme)
        except InvalidSignature:
            return False
        return True


def _decoded(value: object, title: str) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise FileError(f"{title} is not base64.") from None
