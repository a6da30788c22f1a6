"""What travels over a SPEED_ERASURE socket: an edit, for which layers it is, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from ..speed_ops.architectures import Architecture, LayerKey
from ..speed_ops.certificate import Certificate
from ..speed_ops.erasure import LayerEdit
from ..speed_ops.errors import InputError
from ..speed_ops.files.recipe import Recipe
from ..speed_ops.rows import Rows
from ..speed_ops.text.phrases import Concept


@dataclass(frozen=True, eq=False)
class HostErasure:
    """An erasure as the nodes pass it on."""

    edits: dict[str, LayerEdit]
    """By canonical key; strength 1."""
    architecture: Architecture
    layers: tuple[LayerKey, ...]
    strength: float
    """What the node that made it applied."""
    concepts: tuple[Concept, ...] = ()
    certificate: Certificate | None = None
    """None for a LoRA from a file that carries none."""
    recipe: Recipe | None = None
    targets: Rows | None = None
    """Rows that a later erasure must hold."""
    report: str = ""
    source: str = ""
    """The file it was read from, if it was."""

    def check_fits(self, architecture: Architecture, layers: tuple[LayerKey, ...]) -> None:
        """Refuses a model of another family or with other layers, by name."""
        if architecture.name != self.architecture.name:
            raise InputError(
                f"The erasure was made for {self.architecture.title}, but the model is {architecture.title}: make one "
                "for this model with SpeedErase or SpeedApplyRecipe."
            )
        shapes = {layer.canonical: layer.shape for layer in layers}
        for key, edit in self.edits.items():
            if shapes.get(key) != (edit.up.shape[0], edit.down.shape[1]):
                raise InputError(f"The erasure edits {key}, which this model does not have in that shape: solve again.")

    def get_ram_usage(self) -> int:
        """Bytes held; ComfyUI asks for it when memory runs short."""
        return sum(edit.up.nbytes + edit.down.nbytes for edit in self.edits.values())
