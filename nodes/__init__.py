"""The nodes, in the order in which a graph uses them.

ComfyUI imports this when it starts, so a node's module imports only what its schema needs.
Everything else is imported when the node runs.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import ComfyExtension, io

from .concept_list import ConceptListNode, check, suggest
from .host.paths import checkpoint_folder, comfyui_folder
from .host.routes import Answer, serve
from .retain_set_loader import RetainSetLoader, look
from .save_erased_model import SaveErasedModel
from .speed_apply_erasure import SpeedApplyErasure
from .speed_apply_recipe import SpeedApplyRecipe
from .speed_compare import SpeedCompare, prompts_for
from .speed_erase import SpeedErase
from .speed_evaluate import SpeedEvaluate
from .speed_forecast import SpeedForecast
from .speed_inspect import SpeedInspect
from .speed_leak_probe import SpeedLeakProbe
from .speed_name_probe import SpeedNameProbe
from .speed_never_draw import SpeedNeverDraw
from .speed_report import SpeedReport
from .speed_settings import SpeedSettings

NODES: list[type[io.ComfyNode]] = [
    ConceptListNode,
    RetainSetLoader,
    SpeedErase,
    SpeedNeverDraw,
    SpeedSettings,
    SaveErasedModel,
    SpeedReport,
    SpeedForecast,
    SpeedLeakProbe,
    SpeedNameProbe,
    SpeedCompare,
    SpeedApplyErasure,
    SpeedApplyRecipe,
    SpeedInspect,
    SpeedEvaluate,
]


def place_demo(question: dict[str, Any]) -> dict[str, Any]:
    """Puts the demo model among the checkpoints, after the user agreed."""
    from ..speed_ops.demo.demo import place_among

    folder = checkpoint_folder()
    folder.mkdir(parents=True, exist_ok=True)  # a fresh base directory has none
    path, new = place_among(folder)
    return {"name": path.name, "new": new}


def report(report_id: str) -> str:
    """The page of a run of SPEED Erase."""
    from .erase_output import page_of

    return page_of(report_id)


def trade(question: dict[str, Any]) -> dict[str, Any]:
    """What a run of SPEED Erase would show with another side-effect limit, from what it kept."""
    from .erase_output import panel_of

    return panel_of(
        str(question.get("run")), question.get("limit", 0.0), question.get("strength", 1.0)
    )


def doctor(question: dict[str, Any]) -> dict[str, Any]:
    """What this installation has, what is missing, and how to fix it, one line each."""
    from ..speed_ops.doctor import examine

    findings = examine(comfyui=comfyui_folder())
    lines = (f"{item.topic}: {item.found or 'missing'}  {item.fix}".strip() for item in findings)
    return {"text": "\n".join(lines)}


ANSWERS: dict[str, Answer] = {
    "doctor": doctor,
    "concepts/check": check,
    "concepts/suggest": suggest,
    "retain/look": look,
    "compare/prompts": prompts_for,
    "demo/place": place_demo,
    "trade": trade,
}
"""What the UI may ask, below `/speed/`."""


class SpeedExtension(ComfyExtension):
    """What ComfyUI asks for when it loads the package."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes. From here on SPEED answers the questions of the UI."""
        serve(ANSWERS, report)
        return NODES
