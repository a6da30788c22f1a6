"""What a run can write, and under which names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..errors import SettingsError
from ..files.nearest import suggestion

Product = Literal["checkpoint", "lora", "recipe", "report"]
PRODUCTS: tuple[Product, ...] = ("checkpoint", "lora", "recipe", "report")
_ENDINGS: dict[Product, str] = {
    "checkpoint": "-erased.safetensors",
    "lora": "-eraser-lora.safetensors",
    "recipe": "-recipe.json",
    "report": "-report.html",
}


def parse_products(text: str) -> tuple[Product, ...]:
    """`checkpoint,lora` as a tuple, in the order they are written in."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PRODUCTS:
            known = ", ".join(PRODUCTS)
            raise SettingsError(f"Cannot save {name!r}{suggestion(name, PRODUCTS)}: choose from {known}.")
    if not names:
        raise SettingsError(f"There is nothing to save: choose from {', '.join(PRODUCTS)}.")
    return tuple(product for product in PRODUCTS if product in names)


def product_paths(
    folder: Path, model: Path, products: Sequence[Product], *, is_folder: bool = False, name: str = ""
) -> dict[Product, Path]:
    """The files of a run: named after the model, or after `name`."""
    stem = name or (model.resolve().name if is_folder else model.stem)
    if Path(stem).name != stem or stem in (".", ".."):
        raise SettingsError(f"{stem!r} is not a file name: give one without folders.")
    paths = {product: folder / (stem + _ENDINGS[product]) for product in products}
    if is_folder and "checkpoint" in paths:
        paths["checkpoint"] = folder / f"{stem}-erased"
    return paths
