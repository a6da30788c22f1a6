"""The nodes, in the order in which a graph uses them."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .concept_list import ConceptListNode, check, suggest
from .host.routes import Answer, serve
from .retain_set_loader import RetainSetLoader, look
from .save_erased_model import SaveErasedModel
from .speed_apply_erasure import SpeedApplyErasure
from .speed_apply_recipe import SpeedApplyRecipe
from .speed_compare import SpeedCompare
from .speed_erase import SpeedErase
from .speed_evaluate import SpeedEvaluate
from .speed_forecast import SpeedForecast
from .speed_inspect import SpeedInspect
from .speed_leak_probe import SpeedLeakProbe
from .speed_report import SpeedReport
from .speed_settings import SpeedSettings

NODES: list[type[io.ComfyNode]] = [
    ConceptListNode,
    RetainSetLoader,
    SpeedErase,
    SpeedSettings,
    SaveErasedModel,
    SpeedReport,
    SpeedForecast,
    SpeedLeakProbe,
    SpeedCompare,
    SpeedApplyErasure,
    SpeedApplyRecipe,
    SpeedInspect,
    SpeedEvaluate,
]

ANSWERS: dict[str, Answer] = {"concepts/check": check, "concepts/suggest": suggest, "retain/look": look}
"""What the screen may ask, below `/speed/`."""


class SpeedExtension(ComfyExtension):
    """What ComfyUI asks for when it loads the package."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes; what their screens ask is answered from here on, too."""
        serve(ANSWERS)
        return NODES
