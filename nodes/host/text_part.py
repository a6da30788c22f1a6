"""The part of a diffusion model that only text goes through, run as ComfyUI has it."""

from __future__ import annotations

import copy
from typing import Any

import comfy.ops
import torch
from torch import Tensor, nn

from ...speed_ops.devices import Workplace
from ...speed_ops.errors import UnsupportedModelError
from ...speed_ops.files.tensors import tensors_hash
from ...speed_ops.models.architecture import TextPart
from .weights import effective_weight


class HostTextPart:
    """ComfyUI's own modules with the weights in effect in float32: patches, LoRAs and all."""

    def __init__(
        self, patcher: Any, part: TextPart, width: int, workplace: Workplace | None = None
    ) -> None:
        """
        Args:
            patcher: ComfyUI's patcher of the model.
            part: Which modules.
            width: Of the rows that the edited layers read.
            workplace: Where to compute; None: on the CPU.
        """
        self.part, self.width, self._workplace = part, width, workplace or Workplace()
        self._modules = self._workplace.run(
            lambda device: [_twin(patcher, path, device) for path in part.modules]
        )
        # Read on the CPU, so that what is offloaded does not go to the device to be hashed.
        self.fingerprint = tensors_hash(
            (f"{path}.{name}", effective_weight(patcher, f"diffusion_model.{path}.{name}"))
            for path, module in zip(part.modules, self._modules, strict=True)
            for name, _ in module.named_parameters()
        )

    @torch.no_grad()
    def __call__(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        """Rows of one prompt, or of any where they do not depend on each other, to those that the
        edited layers read; both are on the CPU.
        """

        def work(device: torch.device) -> Tensor:
            further = () if ids is None else (ids[None].to(device),)
            states = rows[None].to(device)
            if self.part.states > 1:
                states = states.unflatten(-1, (self.part.states, -1))
            for module in self._modules:
                states = module.to(device)(states, *further)
                further = ()
            return states[0].cpu()

        return self._workplace.run(work)


def _twin(patcher: Any, path: str, device: torch.device) -> nn.Module:
    """A module that computes the same from weights of its own."""
    try:
        module = patcher.model.get_submodule(f"diffusion_model.{path}")
    except AttributeError:
        raise UnsupportedModelError(
            f"The model lacks {path}, which its text goes through. Load the complete model."
        ) from None
    return _copied(patcher, module, f"diffusion_model.{path}", device)


def _copied(patcher: Any, module: nn.Module, path: str, device: torch.device) -> Any:
    twin: Any = copy.copy(module)
    twin.__dict__.pop("forward", None)  # that of a LoRA in bypass mode, which the weights contain
    twin._forward_hooks, twin._forward_pre_hooks = type(module._forward_hooks)(), {}
    operation = getattr(comfy.ops.disable_weight_init, type(module).__name__, None)
    names = list(module._parameters)
    if operation is not None and hasattr(module, "weight"):
        # ComfyUI's plain layer instead of one that casts, unpacks or patches its weight.
        twin.__class__ = operation
        twin.comfy_cast_weights, twin.weight_function, twin.bias_function = False, [], []
        names = [name for name in ("weight", "bias") if getattr(module, name, None) is not None]
        twin._parameters = dict.fromkeys(("weight", "bias"))
    else:
        twin._parameters = dict.fromkeys(names)
    for name in names:
        if getattr(module, name) is not None:
            value = effective_weight(patcher, f"{path}.{name}", device)
            twin._parameters[name] = nn.Parameter(value, requires_grad=False)
    twin._buffers = dict(module._buffers)
    twin._modules = {
        name: None if child is None else _copied(patcher, child, f"{path}.{name}", device)
        for name, child in module._modules.items()
    }
    return twin
