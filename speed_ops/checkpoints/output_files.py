"""Which files a run writes, and under which names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SettingsError, suggestion

Product = Literal["checkpoint", "lora", "recipe", "report"]
PRODUCTS: tuple[Product, ...] = ("checkpoint", "lora", "recipe", "report")
_ENDINGS: dict[Product, str] = {
    "checkpoint": "-erased.safetensors",
    "lora": "-eraser-lora.safetensors",
    "recipe": "-recipe.json",
    "report": "-report.html",
}


@dataclass(frozen=True)
class OutputFiles:
    """What to write, where and how."""

    folder: Path
    products: tuple[Product, ...]
    name: str = ""
    """What the files are called; empty: after the model."""
    force: bool = False
    strict: bool = False
    """Nothing is written unless every concept counts as erased."""
    salt: str | None = None
    """Given: hashes stand in the place of names."""

    def __post_init__(self) -> None:
        _check_stem(self.name)

    def paths(self, model: Path, *, is_folder: bool = False) -> dict[Product, Path]:
        """Where each product of one model goes."""
        stem = self.name or (model.resolve().name if is_folder else model.stem)
        _check_stem(stem)
        paths = {product: self.folder / (stem + _ENDINGS[product]) for product in self.products}
        if is_folder and "checkpoint" in paths:
            paths["checkpoint"] = self.folder / f"{stem}-erased"
        return paths


def parse_products(names: Sequence[str]) -> tuple[Product, ...]:
    """Products by their names, in the order they are written in."""
    names = [name.strip() for name in names if name.strip()]
    for name in names:
        if name not in PRODUCTS:
            known = ", ".join(PRODUCTS)
            raise SettingsError(f"Cannot save {name!r}{suggestion(name, PRODUCTS)}: choose from {known}.")
    if not names:
        raise SettingsError(f"There is nothing to save: choose from {', '.join(PRODUCTS)}.")
    return tuple(product for product in PRODUCTS if product in names)


def _check_stem(stem: str) -> None:
    if Path(stem).name != stem or stem in (".", ".."):
        raise SettingsError(f"{stem!r} is not a file name: give one without folders.")
