"""SPEED Apply Erasure: an erasure made before, on this model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import InputError, SpeedError
from ..speed_ops.files.lora import read_lora
from ..speed_ops.job import check_strength
from ..speed_ops.provenance import read_provenance
from ..speed_ops.strength import at_strength
from .erasing import apply
from .host.paths import NONE, lora_names, model_file, state_of
from .host.progress import HostProgress, outside_inference_mode
from .host.weights import open_model
from .previous_erasures import job_in
from .sockets import CATEGORY, ErasureSocket, found_by, strength_input


class SpeedApplyErasure(io.ComfyNode):
    """Its inputs, its outputs, and the call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedApplyErasure",
            display_name="SPEED Apply Erasure",
            category=CATEGORY,
            **found_by(),
            description=(
                "Applies an erasure, or a LoRA that holds one, and checks that it fits the model."
            ),
            inputs=[
                io.Model.Input("model", tooltip="The model to apply it to."),
                io.Combo.Input(
                    "lora",
                    options=lora_names(),
                    default=NONE,
                    tooltip="A saved erasure. 'none' uses the erasure input.",
                ),
                strength_input("1 applies the exact edit, 0 leaves the model unchanged."),
                ErasureSocket.Input(
                    "erasure",
                    optional=True,
                    tooltip="An erasure from another node, used if lora is 'none'.",
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    tooltip="A copy with the erasure applied; the input model is unchanged.",
                ),
                ErasureSocket.Output(
                    display_name="erasure", tooltip="The erasure that was applied."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, strength=None) -> bool | str:
        try:
            check_strength(1.0 if strength is None else strength)
        except SpeedError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, lora=NONE, strength=None, **wired) -> str:
        return f"{lora}{strength}{state_of(model_file(f'loras/{lora}')) if lora not in (None, NONE) else ''}"

    @classmethod
    def execute(cls, model, lora=NONE, strength=1.0, erasure=None) -> io.NodeOutput:
        if lora not in (None, NONE):
            erasure = erasure_from_lora(model, model_file(f"loras/{lora}"))
        if erasure is None:
            raise InputError("There is no erasure to apply: choose a LoRA or wire an erasure.")
        return io.NodeOutput(*applied(model, erasure, strength))


@outside_inference_mode
def applied(model: Any, erasure: Erasure, strength: float) -> tuple[Any, Erasure]:
    """A clone with the erasure on it, and the erasure at that strength; one of another family is
    refused.
    """
    host = open_model(model, "KV")
    erasure.check_fits(host.architecture, host.layers)
    outcome = at_strength(erasure, check_strength(strength), host, HostProgress())
    return apply(model, outcome), outcome


def erasure_from_lora(model: Any, path: Path) -> Erasure:
    """A LoRA file as an erasure of this model, with its recipe where it carries one."""
    host = open_model(model, "KV")
    file = read_lora(path, host.layers)
    if file.unmatched:
        raise InputError(
            f"{path.name} also changes {len(file.unmatched)} layers that are not text layers, such"
            f" as {file.unmatched[0]}, so it is not an erasure. Use a LoRA loader for it."
        )
    provenance = read_provenance(file.metadata, path.name)
    recipe = provenance.recipe if provenance is not None else None
    job = job_in(recipe)
    return Erasure(
        edits=dict(file.edits),
        family=host.architecture,
        layers=host.layers,
        concepts=job.concepts if job is not None else (),
        recipe=recipe,
        source=path.name,
    )
