"""What our files say about themselves in the safetensors header: where they come from and what was
done to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from .errors import FileError
from .files.header import read_header
from .files.redaction import Redactor, blanked, refuse_leaks
from .files.untrusted import Fields, check_version, dump_json, load_json
from .models.architecture import Architecture
from .models.families import ARCHITECTURES
from .recipe import MAX_HISTORY, Recipe

VERSION = "1.0"
MAX_CERTIFICATE_BYTES = 8_000_000
"""Room for the most concepts that one list may have."""
HEADER_WARNINGS = 100
"""Warnings that a header holds; the report has them all."""
LISTED_NAMES = 10
"""Kept names that any part of a certificate lists."""


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
    others: Sequence[Mapping[str, str]] = (),
    salt: bytes | str | None = None,
    fixed: str = "",
) -> dict[str, str]:
    """The header's strings for a file we write. Hashes are the recipe's.

    `existing`: the source's metadata, whose own `modelspec.*` statements stay; `others`: that of
    the further files of a folder. `salt`: names become salted hashes, also in what the copy carries
    on of these. `fixed`: what the sentences of the certificate say besides names.
    """
    facts, hidden, names = dict(certificate), recipe, recipe.names
    known = _modelspec(architecture, content, title, existing or {})
    if salt is not None:
        redactor = Redactor(salt)
        facts, hidden = redactor.certificate(facts, names, fixed), recipe.redacted_with(salt)
        known = _redacted_statements(known, [existing or {}, *others], redactor, names)
    proof = dump_json(facts, "The certificate", MAX_CERTIFICATE_BYTES)
    if salt is not None:
        refuse_leaks(
            proof, names, "The certificate in the header", f"{fixed} {blanked(certificate)}"
        )
    ours = {
        "speed.version": VERSION,
        "speed.recipe": hidden.to_json(),
        "speed.certificate": proof,
        "speed.base_hash": recipe.base_hash,
        "speed.encoder_hash": recipe.encoder_hash,
    }
    return known | ours


_MACHINE_KEYS = re.compile(r"(modelspec|ss|sshs|speed)[._]\w+|format|prompt|workflow")
"""Names of metadata that programs give; any other may be somebody's words."""
_MACHINE_VALUES = {
    "pt",
    "sgm",
    "1.0.0",
    *(row.modelspec + end for row in ARCHITECTURES for end in ("", "/lora")),
}


def _redacted_statements(
    known: Mapping[str, str],
    carried: Sequence[Mapping[str, str]],
    redactor: Redactor,
    names: tuple[str, ...],
) -> dict[str, str]:
    """Our statements and, in the place of what the source's own would give away, their redacted
    form.
    """
    found = dict(known)
    for values in (*carried, known):
        for name, value in values.items():
            replaced = name in known and values is not known
            if replaced or name.startswith("speed.") or value in _MACHINE_VALUES:
                continue
            if (hidden := redactor.text(value, names)) != value:
                found[name] = hidden
            refuse_leaks(
                "" if _MACHINE_KEYS.fullmatch(name) else name,
                names,
                "The name of an entry in the header",
            )
            refuse_leaks(hidden, names, f"The entry {name} in the header")
    return found


def history_of(metadata: Mapping[str, str]) -> tuple[Recipe, ...]:
    """The earlier recipes of what is made from a source with this metadata: the source's own
    history, and its recipe.

    A header that cannot be read is no history; that must not keep anybody from erasing more.
    """
    try:
        said = read_provenance(metadata)
    except FileError:
        return ()
    if said is None or said.recipe is None:
        return ()
    return (*said.recipe.history, said.recipe.as_earlier())[-MAX_HISTORY:]


def _modelspec(
    architecture: Architecture, content: str, title: str, existing: Mapping[str, str]
) -> dict[str, str]:
    """The common statements about a model; what the source says about itself is not overruled, but
    for the title.
    """
    suffix = "/lora" if content == "lora" else ""
    values = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": architecture.modelspec + suffix,
    }
    if architecture.name.startswith("sdxl"):
        values["modelspec.implementation"] = "sgm"
    values = {name: existing.get(name, value) for name, value in values.items()}
    return values | ({"modelspec.title": title} if title else {})


def header_size(recipe: Recipe, certificate: Mapping[str, Any]) -> int:
    """Bytes that the two take in a file's header, where text in quotes is quoted once more."""
    proof = dump_json(certificate, "The certificate", MAX_CERTIFICATE_BYTES)
    return len(json.dumps([recipe.to_json(), proof]))


def widest_certificate(
    concepts: Sequence[tuple[str, str]], kept: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """A certificate as long as that of an erasure can become. `concepts`: name and kind; `kept`:
    names to keep.
    """
    widest = -1.2345678901234567e-100  # no number has a longer text
    names = sorted(kept, key=_stored_size, reverse=True)[:LISTED_NAMES]
    longest = max((name for name, _ in concepts), key=_stored_size, default="")
    numbers = (
        "solved_median",
        "solved_worst",
        "probe_median",
        "probe_worst",
        "probe_to_go",
        "energy_lost",
    )
    listed = [[name, widest] for name in names]
    drift = {
        "group": "held_out",
        "where": "context",
        "names": 10**6,
        "worst": listed,
        **dict.fromkeys(("median", "p95", "maximum", "mean"), widest),
    }
    point = dict.fromkeys(("lam", "left", "drift", "spread", "to_go"), widest)
    part = {
        "concepts": [
            {"name": name, "kind": kind, "verdict": "unproven"} | dict.fromkeys(numbers, widest)
            for name, kind in concepts
        ],
        "drift": [drift] * 6,
        "sot_drift": widest,
        "null_text_drift": widest,
        "layers": 10**6,
        "rounds": [{"number": 20, "mean_leak": widest, "worst_leak": widest, "kept": False}] * 21,
        "seconds": {f"part {number} of the work": widest for number in range(20)},
        "warnings": [" ".join(["a sentence" * 50, longest, *names[:3]])] * (HEADER_WARNINGS + 1),
        "settings": {
            name: widest if isinstance(value, float) else value for name, value in settings.items()
        },
        "curve": {
            "points": [point] * 20,
            "chosen": point,
            "budget": widest,
            "names": 10**6,
            "unseen": False,
            "in_the_way": listed,
        },
    }
    return part | {"pooled": part} if settings.get("pooled") else part


def _stored_size(name: str) -> int:
    return len(json.dumps(name))


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
