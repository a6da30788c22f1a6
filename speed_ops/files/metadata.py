"""What our files say about themselves in the safetensors header: where they come from and what was done to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError
from ..models.families import Architecture
from .header import read_header
from .recipe import Recipe, Redactor
from .untrusted import Fields, check_version, dump_json, load_json

VERSION = "1.0"
MAX_CERTIFICATE_BYTES = 2_000_000


@dataclass(frozen=True)
class Provenance:
    """What a header of ours says."""

    version: str
    recipe: Recipe | None
    certificate: dict[str, Any]
    """The certificate's short form; empty when the file has none."""
    base_hash: str
    """sha256 of the file the edit was made for."""
    encoder_hash: str


def build_metadata(
    architecture: Architecture,
    content: Literal["checkpoint", "diffusion_model", "lora"],
    recipe: Recipe,
    certificate: Mapping[str, Any],
    *,
    title: str = "",
    existing: Mapping[str, str] | None = None,
    salt: bytes | str | None = None,
) -> dict[str, str]:
    """The header's strings for a file we write. Hashes are the recipe's.

    `existing`: the source's metadata, whose own `modelspec.*` statements stay. `salt`: names become salted hashes.
    """
    facts = dict(certificate)
    if salt is not None:
        plain = {"settings": facts["settings"]} if "settings" in facts else {}  # choices, which may look like names
        facts = Redactor(salt).everywhere(facts, recipe.names) | plain
        recipe = recipe.redacted_with(salt)
    proof = dump_json(facts, "The certificate", MAX_CERTIFICATE_BYTES)
    ours = {
        "speed.version": VERSION,
        "speed.recipe": recipe.to_json(),
        "speed.certificate": proof,
        "speed.base_hash": recipe.base_hash,
        "speed.encoder_hash": recipe.encoder_hash,
    }
    return _modelspec(architecture, content, title, existing or {}) | ours


def _modelspec(architecture: Architecture, content: str, title: str, existing: Mapping[str, str]) -> dict[str, str]:
    """The common statements about a model; what the source says about itself is not overruled, but for the title."""
    suffix = "/lora" if content == "lora" else ""
    values = {"modelspec.sai_model_spec": "1.0.0", "modelspec.architecture": architecture.modelspec + suffix}
    if architecture.name.startswith("sdxl"):
        values["modelspec.implementation"] = "sgm"
    values = {name: existing.get(name, value) for name, value in values.items()}
    return values | ({"modelspec.title": title} if title else {})


def read_provenance(metadata: Mapping[str, str], what: str = "The header") -> Provenance | None:
    """What a header says, checked; None when it is not ours."""
    if not any(name.startswith("speed.") for name in metadata):
        return None
    fields = Fields(metadata, what)
    check_version(metadata.get("speed.version"), VERSION, what)
    recipe = None
    if "speed.recipe" in metadata:
        recipe = Recipe.from_json(metadata["speed.recipe"], f"{what}: the recipe")
    proof = f"{what}: the certificate"
    facts = load_json(metadata.get("speed.certificate", "{}"), proof, MAX_CERTIFICATE_BYTES)
    return Provenance(
        version=fields.text("speed.version"),
        recipe=recipe,
        certificate=dict(Fields.of(facts, proof).values),
        base_hash=fields.text("speed.base_hash", ""),
        encoder_hash=fields.text("speed.encoder_hash", ""),
    )


def package_version() -> str:
    """The installed version; empty where the package runs from a plain folder."""
    try:
        return metadata.version("speed-erase")
    except metadata.PackageNotFoundError:
        return ""


def load_recipe(path: Path) -> Recipe:
    """From a recipe file, or from the header of a file that we wrote."""
    if path.suffix.lower() != ".safetensors":
        return Recipe.read(path)
    found = read_provenance(read_header(path).metadata, str(path))
    if found is None or found.recipe is None:
        raise FileError(f"{path} has no recipe in its header: it was not written by speed-erase.")
    return found.recipe
