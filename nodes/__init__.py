"""The nodes, in the order in which a graph uses them."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .apply import SpeedApplyErasure, SpeedApplyRecipe
from .concepts import ConceptListNode
from .erase import SpeedErase
from .forecast import SpeedForecast
from .inspecting import SpeedInspect
from .leak_probe import SpeedLeakProbe
from .report import SpeedReport
from .retain import RetainSetLoader
from .save import SaveErasedModel
from .settings_node import SpeedSettings

NODES: list[type[io.ComfyNode]] = [
    ConceptListNode,
    RetainSetLoader,
    SpeedErase,
    SpeedSettings,
    SaveErasedModel,
    SpeedReport,
    SpeedForecast,
    SpeedLeakProbe,
    SpeedApplyErasure,
    SpeedApplyRecipe,
    SpeedInspect,
]


class SpeedExtension(ComfyExtension):
    """What ComfyUI asks for when it loads the package."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes."""
        return NODES
