"""Charts and grids of pictures as IMAGE tensors: `1 x height x width x 3`, values in 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..speed_ops.certificate.forecast import Forecast
from ..speed_ops.erasure import Erasure
from ..speed_ops.report.chart import Pixels, certificate_chart, forecast_chart, picture_grid


def erasure_image(erasure: Erasure) -> Tensor:
    """The certificate as a chart; a blank picture if there is none."""
    if erasure.certificate is None:
        return torch.ones(1, 64, 64, 3)
    return _image(certificate_chart(erasure.certificate))


def forecast_image(forecast: Forecast) -> Tensor:
    """The most endangered names as bars."""
    return _image(forecast_chart(forecast))


def grid_image(rows: Sequence[tuple[str, Sequence[Tensor]]]) -> Tensor:
    """Rows of pictures (`height x width x 3`), each row under its title."""
    grid = [
        (title, [(picture * 255).round().byte().numpy() for picture in pictures])
        for title, pictures in rows
    ]
    return _image(picture_grid(grid))


def _image(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).float().div(255)[None]
