"""A signature counts only over these bytes, of this type, and with this key."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forge
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from speed_erase.speed_ops.checkpoints.envelope import PAYLOAD_TYPE, Envelope, Key
from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.errors import FileError, MissingPackageError
from speed_erase.speed_ops.files.schema import Fields

pytestmark = pytest.mark.usefixtures("own_cache")

KINDS: dict[str, Callable[[], Any]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
}
STATEMENT = b'{"a": 1}'


def write_keys(folder: Path, name: str, private: Any, password: bytes = b"") -> tuple[Path, Path]:
    """A private and a public key as PEM files."""
    locked = serialization.BestAvailableEncryption(password) if password else None
    paths = folder / f"{name}.key", folder / f"{name}.pub"
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    paths[0].write_bytes(private.private_bytes(pem, form, locked or serialization.NoEncryption()))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    paths[1].write_bytes(private.public_key().public_bytes(pem, public))
    return paths


def envelope_of(text: str) -> Envelope:
    return Envelope.of(Fields.of(json.loads(text), "envelope"))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_right_key_verifies(tmp_path: Path, kind: str) -> None:
    private, public = write_keys(tmp_path, "ours", KINDS[kind]())
    others = [write_keys(tmp_path, f"other {name}", make())[1] for name, make in KINDS.items()]
    read = envelope_of(Key.read(private, "private").sign(STATEMENT).to_json())
    assert read.payload == STATEMENT and read.signed_by(Key.read(public, "public"))
    assert not any(read.signed_by(Key.read(other, "public")) for other in others)


def test_the_signature_is_that_of_the_standard(tmp_path: Path) -> None:
    """Made without our code, after the specification of DSSE."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = write_keys(tmp_path, "ours", key)
    scheme = ec.ECDSA(hashes.SHA256())
    signed = b'DSSEv1 28 application/vnd.in-toto+json 8 {"a": 1}'
    ours = Key.read(private, "private").sign(STATEMENT)
    key.public_key().verify(ours.signatures[0], signed, scheme)  # raises if it is another
    theirs = Envelope(STATEMENT, (b"someone else's", key.sign(signed, scheme)))
    assert theirs.signed_by(Key.read(public, "public"))
    bare = Envelope(STATEMENT, (key.sign(STATEMENT, scheme),))
    assert not bare.signed_by(Key.read(public, "public"))


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


# name -> (change of the envelope, whether it can still be read)
TAMPERED: dict[str, tuple[Callable[[dict], Any], bool]] = {
    "other content": (lambda e: e.update(payload=_encoded(b'{"a": 2}')), True),
    "a space more": (lambda e: e.update(payload=_encoded(STATEMENT + b" ")), True),
    "no signature": (lambda e: e.update(signatures=[]), True),
    "an empty signature": (lambda e: e["signatures"][0].update(sig=""), True),
    "half a signature": (
        lambda e: e["signatures"][0].update(
            sig=_encoded(base64.b64decode(e["signatures"][0]["sig"])[:20])
        ),
        True,
    ),
    "zeros": (lambda e: e["signatures"][0].update(sig=_encoded(bytes(64))), True),
    "another type": (lambda e: e.update(payloadType="text/plain"), False),
    "no type": (lambda e: e.pop("payloadType"), False),
    "no payload": (lambda e: e.pop("payload"), False),
    "payload as a list": (lambda e: e.update(payload=[1]), False),
    "not base64": (lambda e: e.update(payload="é"), False),
    "base64 cut off": (lambda e: e.update(payload=e["payload"][:-3]), False),
    "a signature that is a number": (lambda e: e["signatures"][0].update(sig=7), False),
    "signatures as text": (lambda e: e.update(signatures="abc"), False),
    "a thousand signatures": (lambda e: e.update(signatures=e["signatures"] * 1000), False),
}


@pytest.mark.parametrize("kind", ["ed25519", "P-256"])
@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_envelope_does_not_verify(tmp_path: Path, name: str, kind: str) -> None:
    private, public = write_keys(tmp_path, "ours", KINDS[kind]())
    change, readable = TAMPERED[name]
    content = json.loads(Key.read(private, "private").sign(STATEMENT).to_json())
    change(content)
    if readable:
        assert not envelope_of(json.dumps(content)).signed_by(Key.read(public, "public"))
    else:
        with pytest.raises(FileError):
            envelope_of(json.dumps(content))


def test_a_file_that_is_no_fitting_key_is_refused(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "ours", KINDS["P-256"]())
    weak = write_keys(tmp_path, "rsa", rsa.generate_private_key(65537, 2048))
    odd = write_keys(tmp_path, "odd", ec.generate_private_key(ec.SECP256K1()))
    locked = write_keys(tmp_path, "locked", KINDS["ed25519"](), b"secret")
    for name, content in (("empty", b""), ("noise", b"\xff" * 99), ("long", b"-" * 10**6)):
        (tmp_path / name).write_bytes(content)
    noise = [tmp_path / name for name in ("empty", "noise", "long", "absent")]
    for path in (private, weak[1], odd[1], *noise):
        with pytest.raises(FileError):
            Key.read(path, "public")
    for path in (public, weak[0], odd[0], locked[0], *noise):
        with pytest.raises(FileError):
            Key.read(path, "private")


def test_without_the_package_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, public = write_keys(tmp_path, "ours", KINDS["ed25519"]())
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingPackageError, match="pip install cryptography"):
        Key.read(public, "public")


def test_signed_and_checked_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smithy = forge.Forge(tmp_path)
    file = tmp_path / "out" / "m-erased.safetensors"
    private, public = write_keys(tmp_path, "ours", KINDS["ed25519"]())
    stranger = write_keys(tmp_path, "theirs", KINDS["ed25519"]())
    base = ["--base", str(smithy.base)]

    def attest(name: str, *sign: object) -> Path:
        arguments = [str(file), *base, "--out", str(tmp_path / name), "--quiet"]
        assert main(["attest", *arguments, *map(str, sign)]) == 0
        return tmp_path / name

    def codes(statement: Path, *more: object) -> list[str]:
        capsys.readouterr()
        arguments = [str(file), *base, "--attestation", str(statement), *map(str, more)]
        code = main(["verify", *arguments, "--json"])
        faults = [fault["code"] for fault in json.loads(capsys.readouterr().out)["faults"]]
        assert code == bool(faults)
        return faults

    signed, bare = attest("signed.json", "--sign", private), attest("bare.json")
    assert codes(signed, "--key", public) == codes(signed) == codes(bare) == []
    assert codes(signed, "--key", stranger[1]) == ["attested-signature"]
    assert codes(bare, "--key", public) == ["attested-signature"]
    # A signature makes nothing true.
    content = json.loads(bare.read_bytes())
    content["subject"][0]["digest"]["sha256"] = "0" * 64
    false = Key.read(private, "private").sign(json.dumps(content).encode())
    (tmp_path / "false.json").write_text(false.to_json())
    assert codes(tmp_path / "false.json", "--key", public) == ["attested-file"]
    # A statement with an envelope's field is still not signed.
    posing = json.loads(bare.read_bytes()) | {"payloadType": PAYLOAD_TYPE}
    (tmp_path / "posing.json").write_text(json.dumps(posing))
    arguments = [str(file), *base, "--attestation", str(tmp_path / "posing.json")]
    assert main(["verify", *arguments, "--key", str(public), "--quiet"]) == 1
    assert main(["verify", str(file), *base, "--key", str(public), "--quiet"]) == 2
