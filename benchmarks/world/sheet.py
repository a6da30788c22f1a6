"""Contact sheets: pictures in a grid, as PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from .storage import write_whole


def to_bytes(pictures: Tensor) -> np.ndarray:
    """(n, 3, H, W) in [-1, 1] to (n, H, W, 3) bytes."""
    colours = pictures[:, :3].clamp(-1, 1).permute(0, 2, 3, 1).float().numpy()
    return np.round((colours + 1) * 127.5).astype(np.uint8)


def save_sheet(path: Path, pictures: Tensor, columns: int, gap: int = 2) -> None:
    """Rows of `columns` pictures with a thin white gap between them."""
    from PIL import Image

    framed = np.pad(to_bytes(pictures), ((0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
    lines = [
        np.concatenate(list(framed[i : i + columns]), axis=1)
        for i in range(0, len(framed), columns)
    ]
    image = Image.fromarray(np.concatenate(lines, axis=0))
    write_whole(path, lambda part: image.save(part, format="PNG"))
