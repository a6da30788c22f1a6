"""Charts as IMAGE tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..speed_ops.forecast import Forecast
from ..speed_ops.report.chart_image import Pixels, certificate_chart, forecast_chart
from .host_erasure import HostErasure


def erasure_chart(erasure: HostErasure) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    if erasure.certificate is None:
        return torch.ones(1, 64, 64, 3)
    return _image(certificate_chart(erasure.certificate))


def forecast_image(forecast: Forecast) -> Tensor:
    """`1 x height x width x 3` in 0 to 1."""
    return _image(forecast_chart(forecast))


def _image(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).float().div(255)[None]
