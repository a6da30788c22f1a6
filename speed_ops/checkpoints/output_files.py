"""Which files a run writes, and under which names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import SettingsError, suggestion

Product = Literal["checkpoint", "lora", "recipe", "card", "report"]
PRODUCTS: tuple[Product, ...] = ("checkpoint", "lora", "recipe", "card", "report")
_ENDINGS: dict[Product, str] = {
    "checkpoint": "-erased.safetensors",
    "lora": "-eraser-lora.safetensors",
    "recipe": "-recipe.json",
    "card": "-README.md",
    "report": "-report.html",
}
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NOT_PORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$')


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
    no_names: bool = False
    """Numbers instead of names in every file."""
    url: str = ""
    """Where the results end up, if `folder` is only a local copy."""

    def __post_init__(self) -> None:
        name = self.name
        if Path(name).name != name or name in (".", "..") or "\\" in name:
            raise SettingsError(f"{name!r} is not a file name. Give one without folders.")
        # Results are passed on, also to Windows.
        if _RESERVED.fullmatch(name) or _NOT_PORTABLE.search(name):
            raise SettingsError(
                f"Windows cannot store a file called {name!r}. Choose another name."
            )

    def below(self, inner: Path) -> OutputFiles:
        """The same in a subfolder."""
        url = f"{self.url}/{inner.as_posix()}" if self.url and inner.name else self.url
        return replace(self, folder=self.folder / inner, url=url)

    def label(self, path: Path) -> str:
        """URL or path of a result, for messages."""
        return f"{self.url}/{path.name}" if self.url else str(path)

    def labels(self, paths: Mapping[Any, Path]) -> dict[str, str]:
        """{product: URL or path}"""
        return {str(product): self.label(path) for product, path in paths.items()}

    def stem(self, model: Path) -> str:
        """What the results of a model are called, without their endings."""
        stem = self.name or (model.resolve().name if model.is_dir() else model.stem)
        if stem in ("", ".", ".."):
            raise SettingsError(f"{stem!r} is not a file name. Give one without folders.")
        return stem

    def paths(self, model: Path) -> dict[Product, Path]:
        """Where each product of one model goes."""
        stem = self.stem(model)
        paths = {product: self.folder / (stem + _ENDINGS[product]) for product in self.products}
        if model.is_dir() and "checkpoint" in paths:
            paths["checkpoint"] = self.folder / f"{stem}-erased"
        return paths


def parse_products(names: Sequence[str]) -> tuple[Product, ...]:
    """Products by their names, in the order they are written in."""
    names = [name.strip() for name in names if name.strip()]
    for name in names:
        if name not in PRODUCTS:
            choices = ", ".join(PRODUCTS)
            raise SettingsError(
                f"Cannot save {name!r}{suggestion(name, PRODUCTS)}. Choose from {choices}."
            )
    if not names:
        raise SettingsError(f"There is nothing to save. Choose from {', '.join(PRODUCTS)}.")
    return tuple(product for product in PRODUCTS if product in names)
