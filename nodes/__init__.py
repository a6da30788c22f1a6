"""The nodes, in the order in which the menu shows them."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .concepts import ConceptListNode
from .erase import SpeedErase
from .retain import RetainSetLoader

NODES: list[type[io.ComfyNode]] = [ConceptListNode, RetainSetLoader, SpeedErase]


class SpeedExtension(ComfyExtension):
    """What ComfyUI asks for when it loads the package."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes."""
        return NODES
