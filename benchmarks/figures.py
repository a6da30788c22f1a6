"""What the pages of the benchmarks share: plots and tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .storage import write_whole


def plots() -> Any:
    """pyplot, without a window."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, path: Path, dpi: int) -> Path:
    """Writes a PNG of 256 colors: a third of the size."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
    image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    write_whole(path, lambda file: image.save(file, format="PNG", optimize=True))
    plots().close(figure)
    return path


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
