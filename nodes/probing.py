"""Forecast and leak probe between sockets and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..speed_ops.errors import InputError
from ..speed_ops.forecast import Forecast
from ..speed_ops.leaks import LeakReport, probe_leaks
from ..speed_ops.pipeline import predict
from ..speed_ops.settings import EraseSettings
from ..speed_ops.text.phrases import Concept
from ..speed_ops.text.retain import RetainSet
from .host_erasure import HostErasure
from .solving import job_from, outside_inference_mode, wire


@outside_inference_mode
def forecast_names(
    model: Any, clip: Any, concepts: Sequence[Concept], retain: RetainSet | None, settings: EraseSettings
) -> Forecast:
    """The retained names by how far the bare edit would move them."""
    job = job_from(concepts, retain, settings)
    with wire(model, clip, settings) as wired:
        return predict(wired.reader, wired.model.weights, job, wired.progress)


def forecast_text(forecast: Forecast, shown: int) -> str:
    """The most endangered names, one a line."""
    lines = [
        f"{shift:6.1%}  {name}" for name, shift in zip(forecast.names[:shown], forecast.shifts[:shown], strict=True)
    ]
    return "\n".join([f"{len(forecast.names)} retained names; predicted shift with nothing protected:", *lines])


@outside_inference_mode
def leaks_of(
    model: Any, clip: Any, erasure: HostErasure, concepts: Sequence[Concept], templates: int, description: str
) -> LeakReport:
    """Which phrases still draw what was erased; `model` is the one that the erasure was made from."""
    if not concepts:
        raise InputError("This erasure came from a file without names: wire the concepts to probe for.")
    with wire(model, clip, EraseSettings(layers="KV")) as wired:
        erasure.check_fits(wired.model.architecture, wired.model.layers)
        return probe_leaks(
            wired.reader,
            wired.model.weights,
            erasure.edits,
            concepts,
            strength=erasure.strength,
            templates=templates,
            description=description,
            progress=wired.progress,
        )
