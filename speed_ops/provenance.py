"""What the header of our files records: where they come from and what was done to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .certificate.certificate import Drift
from .certificate.summary import SideEffects, side_effects
from .certificate.verdicts import VERDICT_WORDS
from .errors import FileError, SpeedError
from .files.header import read_header
from .files.schema import Fields, check_version, dump_json, load_json
from .models.architecture import Architecture
from .recipe import MAX_HISTORY, Recipe
from .text.names import MAX_CONCEPTS

VERSION = "1.0"
Content = Literal["checkpoint", "diffusion_model", "lora"]
"""What a file that we write holds."""
MAX_CERTIFICATE_BYTES = 8_000_000
"""Room for the most concepts that one list may have."""
_MAX_GROUPS, _MAX_NAMES = 12, 20
"""Of names whose drift a header records, and listed names of a group."""


@dataclass(frozen=True)
class Claim:
    """What a header says about one concept; not measured."""

    name: str
    verdict: str
    """One of `VERDICT_WORDS`."""
    left: float | None
    """Share that is left in new prompts."""


@dataclass(frozen=True)
class Provenance:
    """What a header records. Anyone can write one: nothing in it is true until it is verified."""

    version: str
    recipe: Recipe | None
    certificate: dict[str, Any]
    """The certificate's short form; empty when the file has none."""
    base_hash: str
    """sha256 of the file the edit was made for."""
    encoder_hash: str

    def claims(self) -> tuple[tuple[Claim, ...], str]:
        """The certificate's concepts, checked; and a sentence if they cannot be read."""
        claims = []
        try:
            for concept in Fields(self.certificate, "The report").objects("concepts", MAX_CONCEPTS):
                verdict = concept.text("verdict")
                if verdict not in VERDICT_WORDS:
                    raise FileError(f"{concept.title}: there is no verdict {verdict[:40]!r}.")
                stated = concept.values.get("probe_median") is not None
                left = concept.number("probe_median", 0.0) if stated else None
                claims.append(Claim(concept.text("name"), verdict, left))
        except FileError as fault:
            return (), str(fault)
        return tuple(claims), ""

    def side_effects(self) -> SideEffects | None:
        """What the certificate says about other names, checked."""
        groups = []
        for group in Fields(self.certificate, "The report").objects("drift", _MAX_GROUPS):
            worst = []
            for pair in group.items("worst", _MAX_NAMES):
                if not (isinstance(pair, list) and list(map(type, pair)) == [str, float]):
                    raise FileError(
                        f"{group.title}: an entry of 'worst' must be a name and a number."
                    )
                worst.append((pair[0], pair[1]))
            mean, where = group.number("mean", 0.0), group.text("where")
            drift = Drift(group.text("group"), where, 0, 0.0, 0.0, 0.0, tuple(worst), mean)
            groups.append(drift)
        return side_effects(groups)


def build_metadata(
    architecture: Architecture,
    content: Content,
    recipe: Recipe,
    certificate: Mapping[str, Any],
    *,
    title: str = "",
    existing: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The header's strings for a file that we write.

    Args:
        architecture: The model's family.
        content: What the file holds.
        recipe: How it was made; its hashes are recorded as well.
        certificate: The certificate's short form.
        title: The model's title.
        existing: The source's metadata, whose own `modelspec.*` entries stay.
    """
    values = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": architecture.modelspec + ("/lora" if content == "lora" else ""),
    }
    if architecture.name.startswith("sdxl"):
        values["modelspec.implementation"] = "sgm"
    values = {name: (existing or {}).get(name, value) for name, value in values.items()}
    return {
        **values,
        **({"modelspec.title": title} if title else {}),
        "speed.version": VERSION,
        "speed.recipe": recipe.to_json(),
        "speed.certificate": dump_json(certificate, "The report", MAX_CERTIFICATE_BYTES),
        "speed.base_hash": recipe.base_hash,
        "speed.encoder_hash": recipe.encoder_hash,
    }


def history_of(metadata: Mapping[str, str]) -> tuple[Recipe, ...]:
    """The earlier recipes of what is made from a source with this metadata: the source's own
    history, and its recipe.
    """
    recipe = header_recipe(metadata)
    return () if recipe is None else (*recipe.history, recipe.as_earlier())[-MAX_HISTORY:]


def header_recipe(metadata: Mapping[str, str]) -> Recipe | None:
    """The recipe in a header; None if there is none, or it cannot be read."""
    try:
        provenance = read_provenance(metadata)
    except SpeedError:
        return None
    return provenance.recipe if provenance else None


def read_provenance(metadata: Mapping[str, str], label: str = "The header") -> Provenance | None:
    """What a header records, checked; None when it is not ours."""
    if not any(name.startswith("speed.") for name in metadata):
        return None
    fields = Fields(metadata, label)
    check_version(metadata.get("speed.version"), VERSION, label)
    recipe = None
    if "speed.recipe" in metadata:
        recipe = Recipe.from_json(metadata["speed.recipe"], f"{label}: the recipe")
    proof = f"{label}: the report"
    facts = load_json(metadata.get("speed.certificate", "{}"), proof, MAX_CERTIFICATE_BYTES)
    return Provenance(
        version=fields.text("speed.version"),
        recipe=recipe,
        certificate=dict(Fields.of(facts, proof).values),
        base_hash=fields.text("speed.base_hash", ""),
        encoder_hash=fields.text("speed.encoder_hash", ""),
    )


def load_recipe(path: Path) -> Recipe:
    """From a recipe file, or from the header of a file that we wrote."""
    if path.suffix.lower() != ".safetensors":
        return Recipe.read(path)
    provenance = read_provenance(read_header(path).metadata, str(path))
    if provenance is None or provenance.recipe is None:
        raise FileError(f"{path} has no recipe in its header. Use a file that speed-erase wrote.")
    return provenance.recipe
