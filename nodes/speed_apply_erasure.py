"""Load Erasure: an earlier erasure, on this model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..speed_ops.errors import InputError
from .host.paths import NONE, lora_names, model_file, state_of
from .host.progress import HostProgress, comfy_workplace, outside_inference_mode
from .sockets import CATEGORY, ErasureSocket, search_aliases, strength_input, validation

if TYPE_CHECKING:
    from ..speed_ops.erasure import Erasure


class SpeedApplyErasure(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyErasure",
            display_name="Load Erasure",
            category=CATEGORY,
            **search_aliases(),
            description=(
                "Loads a saved erasure at any strength, and checks that it fits the model."
            ),
            inputs=[
                io.Model.Input("model", tooltip="The model to erase from."),
                io.Combo.Input(
                    "lora",
                    options=lora_names(),
                    default=NONE,
                    tooltip=(
                        "A LoRA from Save Erased Model. Choose 'none' to use the erasure input."
                    ),
                ),
                strength_input("1 applies the edit as saved. 0 leaves the model unchanged."),
                ErasureSocket.Input(
                    "erasure",
                    optional=True,
                    tooltip="An erasure from another node. Used if lora is 'none'.",
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    tooltip="A copy with the erasure. The input model stays unchanged.",
                ),
                ErasureSocket.Output(
                    display_name="erasure", tooltip="The erasure at this strength."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, strength: float | None = None) -> bool | str:
        from ..speed_ops.job import check_strength

        return validation(lambda: check_strength(1.0 if strength is None else strength))

    @classmethod
    def fingerprint_inputs(
        cls, lora: str | None = NONE, strength: float | None = None, **wired: Any
    ) -> str:
        state = "" if lora in (None, NONE) else state_of(model_file(f"loras/{lora}"))
        return f"{lora}{strength}{state}"

    @classmethod
    @outside_inference_mode
    def execute(
        cls,
        model: Any,
        lora: str | None = NONE,
        strength: float = 1.0,
        erasure: Erasure | None = None,
    ) -> io.NodeOutput:
        from ..speed_ops.erasure import at_strength
        from ..speed_ops.job import check_strength
        from .erasing import apply_erasure
        from .host.patching import check_fits
        from .host.weights import open_model
        from .previous_erasures import erasure_from_lora

        workplace = comfy_workplace()
        editable = open_model(model, "KV", workplace)
        if lora not in (None, NONE):
            erasure = erasure_from_lora(editable, model_file(f"loras/{lora}"))
        if erasure is None:
            raise InputError("There is no erasure to load. Choose a LoRA, or connect erasure.")
        check_fits(erasure, editable)
        whole, strength, progress = erasure, check_strength(strength), HostProgress()
        erasure = workplace.run(
            lambda device: at_strength(whole, strength, editable, progress, device)
        )
        erasure = replace(erasure, notes=(*erasure.notes, *workplace.notes))
        return io.NodeOutput(apply_erasure(model, erasure), erasure)
