"""A model card for a cleaned model: Markdown that Hugging Face and Civitai show."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from ..certificate.summary import LEVEL_MARKS, Summary
from ..certificate.verdicts import decimals, verdict_in_words
from ..erasure import Erasure
from ..errors import InputError, SpeedError
from ..text.names import read_text_file

_SHOWN = 200
_LICENSES = {
    "apache-2.0": "apache-2.0",
    "mit": "mit",
    "creativeml open rail-m": "creativeml-openrail-m",
    "creativeml openrail-m": "creativeml-openrail-m",
    "creativeml-openrail-m": "creativeml-openrail-m",
    "creativeml open rail++-m": "openrail++",
    "openrail++": "openrail++",
    "cc0-1.0": "cc0-1.0",
    "cc-by-4.0": "cc-by-4.0",
}
"""What headers call licenses, and what Hugging Face calls the same ones."""
LIMITS = (
    "The erasure works by name. A description without the name can get through.",
    "It doesn't stop img2img, IP-Adapter, textual inversion or new training.",
    "The values were measured at the layers that read text, not on images.",
    "This is not a statement about what the model was trained on.",
)
_PRODUCTS = {
    "checkpoint": "Cleaned model",
    "lora": "The same edit as a LoRA",
    "recipe": "Recipe",
    "report": "Report",
}
"""The files that a card lists."""
_MARKUP = re.compile(r"([\\`*_\[\]|~#])")
_SEAL = re.compile(r"<!-- speed-erase ([0-9a-f]{64}) -->\n\Z")


def model_card(
    erasure: Erasure, title: str, license: str = "", files: Mapping[str, str] | None = None
) -> str:
    """The card. The last line is a digest of the rest and of the base, by which `is_ours` knows it.

    Args:
        erasure: What was done; it has a recipe and a certificate.
        title: The original model's name.
        license: What the original's header has.
        files: Names of the files that were written, by product.
    """
    summary, recipe = erasure.summary(), erasure.recipe
    if summary is None or recipe is None:
        raise InputError("This erasure was not measured, so it has no model card. Erase again.")
    body = "\n".join(_lines(erasure, summary, title, license, files or {})) + "\n"
    return f"{body}\n<!-- speed-erase {_digest(body, recipe.base_hash)} -->\n"


def is_ours(path: Path, base_hash: str) -> bool:
    """Whether a card was written for this base and not changed since."""
    try:
        text = read_text_file(path)
    except SpeedError:
        return False
    seal = _SEAL.search(text)
    return seal is not None and seal[1] == _digest(text[: seal.start() - 1], base_hash)


def _digest(body: str, base_hash: str) -> str:
    return hashlib.sha256(f"{base_hash}\n{body}".encode("utf-8", "replace")).hexdigest()


def _lines(
    erasure: Erasure, summary: Summary, title: str, license: str, files: Mapping[str, str]
) -> Iterator[str]:
    recipe, count = erasure.recipe, len(summary.concepts)
    assert recipe is not None
    known = _LICENSES.get(license.strip().lower())
    yield from ("---", *([f"license: {known}"] if known else []))
    yield from ("tags:", "- concept-erasure", "- speed-erase", "---", "")
    yield f"# {_plain(title)}, with {count:,} {'concept' if count == 1 else 'concepts'} erased"
    yield ""
    yield f"{erasure.architecture.title}, edited without training, with SPEED (speed-erase)."
    yield from ("", "## What was erased", "", "| concept | becomes | result | remaining |")
    yield "| --- | --- | --- | --- |"
    for concept, replacement in summary.concepts[:_SHOWN]:
        becomes = "" if replacement is None else _plain(replacement) or "(nothing)"
        verdict = verdict_in_words(concept.verdict)
        yield f"| {_plain(concept.name)} | {becomes} | {verdict} | {concept.left:.0%} |"
    if count > _SHOWN:
        yield from ("", f"The recipe lists {count - _SHOWN:,} more.")
    yield from (
        "",
        "*Remaining* is the share that is left in new prompts, which the edit didn't use.",
        "",
    )
    yield from ("## What else changed", "")
    for label, effects in summary.effects():
        mean = decimals(effects.mean, *LEVEL_MARKS)
        yield f"- {label} (average change {mean}): {_plain(effects.text())}"
    yield f"- Blank prompt: {'un' if summary.blank_prompt_unchanged else ''}changed"
    yield from ("", "## Limits", "", *(f"- {limit}" for limit in LIMITS), "")
    yield from ("## Verify and repeat", "")
    of_layers, _, digest = recipe.base_hash.rpartition(":")
    yield f"- Original{', layers that were edited' if of_layers else ''}: sha256 `{digest}`"
    yield f"- Strength {erasure.strength:g}, SPEED {recipe.package_version}"
    named = {key: name.replace("`", "") for key, name in files.items() if key in _PRODUCTS}
    for product, name in named.items():
        yield f"- {_PRODUCTS[product]}: `{name}`"
    if "checkpoint" in named:
        yield ""
        yield "`speed-erase verify` compares the cleaned model with the original, tensor by tensor."
    yield from ("", "## License", "")
    if license.strip():
        yield f"The original file lists this license: {_plain(license)}"
    else:
        yield "The original file lists no license. The terms of the original model apply."


def _plain(text: str) -> str:
    """Text that no renderer takes for markup, in one line."""
    return _MARKUP.sub(r"\\\1", escape(" ".join(text.split()), quote=False))
