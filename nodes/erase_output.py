"""What a node that erases gives: its outputs, the panel in the UI, and the report as a page."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from comfy_api.latest import io

from ..speed_ops.engine.settings import EraseSettings
from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import NotFoundError
from ..speed_ops.job import check_strength
from ..speed_ops.report.html import report_page
from ..speed_ops.report.panel import panel, panel_within
from .erasing import run_erase
from .host.patching import lora_state
from .sockets import ui_text
from .speed_report import erasure_chart

if TYPE_CHECKING:
    from ..speed_ops.job import Job

_MAX_RECIPE = 200_000
"""Characters of a recipe that the UI gets to copy. A longer one is saved as a file."""
_OFFERED = 8
_offered: OrderedDict[str, tuple[Erasure, int]] = OrderedDict()
"""Id of a report -> erasure and bytes of the model, for the last runs."""


def erase_output(
    node: type[io.ComfyNode],
    model: Any,
    clip: Any,
    job: Job,
    strength: float,
    notes: Sequence[str] = (),
) -> io.NodeOutput:
    """Erases and returns the outputs of a node that erases.

    Args:
        node: The node class that runs.
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        job: What to erase and how.
        strength: Factor on the edit.
        notes: Sentences for the report.
    """
    patched, erasure, report, ui = erase_and_report(node, model, clip, job, strength, notes)
    lora = lora_state(erasure.edits, erasure.layers)
    return io.NodeOutput(patched, lora, erasure, report, erasure_chart(erasure), ui=ui)


def erase_and_report(
    node: type[io.ComfyNode],
    model: Any,
    clip: Any,
    job: Job,
    strength: float,
    notes: Sequence[str] = (),
) -> tuple[Any, Erasure, str, dict[str, Any]]:
    """The erased MODEL, the erasure, its report, and what the UI shows of it.

    Args:
        node: The node class that runs.
        model: ComfyUI's MODEL.
        clip: ComfyUI's CLIP.
        job: What to erase and how.
        strength: Factor on the edit.
        notes: Sentences for the report.
    """
    patched, erasure = run_erase(model, clip, job, strength, node.hidden)
    erasure = replace(erasure, notes=(*erasure.notes, *notes))
    report = erasure.text(verbose=True)
    facts = panel(erasure) | {"page": offer_report(erasure, model.model_size())}
    recipe = "" if erasure.recipe is None else erasure.recipe.to_json()
    ui = ui_text(node, report, erasure.text()) | {
        "speed": (facts,),
        "recipe": (recipe if len(recipe) <= _MAX_RECIPE else "",),
    }
    return patched, erasure, report, ui


def offer_report(erasure: Erasure, model_bytes: int) -> str:
    """The id by which the UI may open the report of a run. It cannot be guessed."""
    report_id = secrets.token_hex(16)
    _offered[report_id] = erasure, model_bytes
    while len(_offered) > _OFFERED:
        _offered.popitem(last=False)
    return report_id


def page_of(report_id: str) -> str:
    """The page of a run that this process offered."""
    erasure, model_bytes = _offered_run(report_id)
    return report_page(erasure, "the model in the graph", model_bytes)


def panel_of(report_id: str, limit: float, strength: float) -> dict[str, Any]:
    """What the panel of a run that this process offered would show within another limit.

    Args:
        report_id: The id of its report.
        limit: Side-effect limit.
        strength: Factor on the edit.
    """
    # These two refuse what is out of range.
    settings, factor = EraseSettings(drift_budget=limit), check_strength(strength)
    erasure, _ = _offered_run(report_id)
    with torch.inference_mode():
        return panel_within(erasure, settings.drift_budget, factor)


def _offered_run(report_id: str) -> tuple[Erasure, int]:
    if report_id not in _offered:
        raise NotFoundError("There is no report for this run any more. Run the graph again.")
    return _offered[report_id]
