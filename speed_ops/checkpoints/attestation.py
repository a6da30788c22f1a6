"""A statement about a cleaned file that others can sign: what it is, what it was made from, by
which recipe, and what was measured. Everything in it can be computed again from the base.

The form is an in-toto statement (v1), in an envelope if it is signed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PACKAGE_VERSION, FileError, Notice
from ..files.atomic import write_bytes
from ..files.checkpoint import file_hash
from ..files.header import MAX_HEADER_BYTES
from ..files.schema import Fields, load_json, read_bounded
from ..recipe import Recipe
from .claims import broken_claims
from .envelope import Envelope, Key
from .erased_file import ErasedFile
from .verify import Verification

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://github.com/comfyui-speed/ComfyUI-SPEED/erasure/v1"
_FIELDS = ("_type", "subject", "predicateType", "predicate")
_PREDICATE_FIELDS = ("base", "recipe", "recipeDigest", "measured", "tool")
"""All that a statement has. What is not checked here is not in it."""
_MAX_BYTES = MAX_HEADER_BYTES
_MAX_FILES = 1000


@dataclass(frozen=True)
class Attestation:
    """A statement as it was read: every field checked, and nothing in it true yet."""

    files: dict[str, str]
    """{name, relative to the folder: sha256}."""
    base: str
    recipe: Recipe
    recipe_hash: str
    measured: dict[str, Any]
    signature: str
    """What is wrong about its signature; empty where it is right, or no key was given."""

    @classmethod
    def read(cls, path: Path, key: Path | None = None) -> Attestation:
        """Reads a statement that anyone may have written. `key`: the public key of whoever should
        have signed it.
        """
        public = Key.read(key, "public") if key else None
        title, envelope, signature = str(path), None, ""
        limit = 2 * _MAX_BYTES  # an envelope is longer by a third
        fields = Fields.of(load_json(read_bounded(path, limit), title, limit), title)
        if "payloadType" in fields.values:
            envelope = Envelope.of(fields)
            fields = Fields.of(load_json(envelope.payload, title, _MAX_BYTES), title)
        if public and not (envelope and envelope.signed_by(public)):
            signature = "was signed with another key" if envelope else "is not signed"
        if (fields.values.get("_type"), fields.values.get("predicateType")) != (
            STATEMENT,
            PREDICATE,
        ):
            raise FileError(f"{path} is not a statement about an erasure. Run `attest` again.")
        fields.refuse_unknown(_FIELDS)
        predicate = Fields.of(fields.values.get("predicate"), f"{title}: the predicate")
        predicate.refuse_unknown(_PREDICATE_FIELDS)
        recipe = predicate.values.get("recipe")
        subjects = [
            (item.text("name"), Fields.of(item.values.get("digest"), item.title).text("sha256"))
            for item in fields.objects("subject", _MAX_FILES)
        ]
        files = dict(subjects)
        if len(files) < len(subjects):
            raise FileError(f"{path} names a file twice. Run `attest` again.")
        return cls(
            files,
            predicate.text("base"),
            Recipe.from_json(json.dumps(recipe), f"{title}: the recipe"),
            predicate.text("recipeDigest"),
            dict(Fields.of(predicate.values.get("measured"), f"{title}: the measurements").values),
            signature,
        )

    def faults(
        self, file: Path, erased: ErasedFile, verification: Verification
    ) -> Iterator[Notice]:
        """Where the statement is about another file, base or recipe, or has other numbers than were
        measured, or is signed with another key.

        Args:
            file: The file it should be about.
            erased: The same, as it was read.
            verification: Its verification.
        """
        if self.signature:
            yield Notice(f"The attestation {self.signature}.", code="attested-signature")
        if self.files != _digests(file):
            yield Notice("The attestation is about another file.", code="attested-file")
        if self.base != erased.source.checkpoint.sha256():
            yield Notice("The attestation is about another base.", code="attested-base")
        same = self.recipe.to_json() == erased.recipe.to_json()
        if not same or self.recipe_hash != _recipe_hash(self.recipe):
            yield Notice("The attestation is about another recipe.", code="attested-recipe")
        if not self.measured:
            yield Notice("The attestation has no measurements.", code="attested-numbers")
        if extra := sorted(self.measured.keys() - verification.measured.short().keys()):
            text = f"The attestation has other measurements: {', '.join(extra)[:200]}."
            yield Notice(text, code="attested-numbers")
        for fault in broken_claims(self.measured, self.recipe, verification.measured):
            yield Notice(f"The attestation: {fault}", code="attested-numbers")


def write_attestation(
    target: Path,
    file: Path,
    erased: ErasedFile,
    verification: Verification,
    *,
    key: Key | None = None,
    force: bool = False,
) -> None:
    """Writes the statement of a verified file.

    Args:
        target: Where to.
        file: The cleaned file.
        erased: The same, as it was read.
        verification: Its verification.
        key: The private key to sign it with.
        force: Replace an existing file.
    """
    if verification.faults:
        raise FileError(f"{file} was not verified, so nothing is attested. Run `verify` on it.")
    # A file without names has its numbers under the names of its header, which say nothing.
    hidden = not erased.recipe.has_names
    measured = verification.claimed if hidden else verification.measured.short()
    predicate = {
        "base": erased.source.checkpoint.sha256(),
        "recipe": json.loads(erased.recipe.to_json()),
        "recipeDigest": _recipe_hash(erased.recipe),
        "measured": {name: value for name, value in measured.items() if name != "seconds"},
        "tool": {"name": "speed-erase", "version": PACKAGE_VERSION},
    }
    content = {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in _digests(file).items()
        ],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
    if key is not None:
        text = key.sign(text.encode()).to_json()
    write_bytes(target, text.encode(), force=force)


def _digests(file: Path) -> dict[str, str]:
    """{name: sha256} of the file, or of every file in a folder: loaders read more than weights."""
    if not file.is_dir():
        return {file.name: file_hash(file)}
    parts = (part for part in sorted(file.rglob("*")) if part.is_file())
    return {part.relative_to(file).as_posix(): file_hash(part) for part in parts}


def _recipe_hash(recipe: Recipe) -> str:
    return hashlib.sha256(recipe.to_json().encode()).hexdigest()
