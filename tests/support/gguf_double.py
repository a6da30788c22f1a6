"""A double of the extension that loads GGUF files, in what its models show to others.

Weights are a tensor class over packed bytes that reports the shape of its numbers and gives itself
for a copy. A layer unpacks them when it runs (`get_weight`), then adds the patches that hang on the
tensor. The state dict shows empty stand-ins, and the room that the largest weight needs. Checked by
hand against the extension itself, with its Q8_0.
"""

from __future__ import annotations

from typing import Any

import comfy.lora
import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.utils
import mini_families as minis
import torch
from torch import Tensor, nn


class PackedTensor(Tensor):
    """Bytes with one scale, under the shape of the numbers."""

    @classmethod
    def pack(cls, weight: Tensor) -> PackedTensor:
        scale = weight.float().abs().max() / 127
        packed = (weight.float() / scale).round().to(torch.int8).reshape(-1, 1).as_subclass(cls)
        packed.scale, packed.tensor_shape, packed.patches = scale, weight.shape, []
        return packed

    @property
    def shape(self) -> Any:
        return getattr(self, "tensor_shape", None) or self.size()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        new = super().to(*args, **kwargs)
        if hasattr(self, "scale"):
            new.scale, new.tensor_shape, new.patches = (
                self.scale,
                self.tensor_shape,
                list(self.patches),
            )
        return new

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def detach(self, *args: Any, **kwargs: Any) -> Any:
        return self


class Ops(comfy.ops.manual_cast):
    """Layers that unpack."""

    class Linear(comfy.ops.manual_cast.Linear):
        comfy_cast_weights = True

        def is_ggml_quantized(self) -> bool:
            return isinstance(self.weight, PackedTensor)

        def get_weight(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
            if not isinstance(tensor, PackedTensor):
                return tensor.to(dtype)
            numbers = tensor.as_subclass(Tensor).to(dtype).reshape(
                tensor.tensor_shape
            ) * tensor.scale.to(dtype)
            for patches, key in tensor.patches:
                numbers = comfy.lora.calculate_weight(patches, numbers, key)
            return numbers

        def forward_comfy_cast_weights(self, rows: Tensor) -> Tensor:
            bias = None if self.bias is None else self.bias.to(rows.dtype)
            return nn.functional.linear(rows, self.get_weight(self.weight, rows.dtype), bias)

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            if not self.is_ggml_quantized():
                return super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}weight"] = torch.zeros(self.weight.size(), device="meta")
            if self.bias is not None:
                destination[f"{prefix}bias"] = torch.zeros(self.bias.shape, device="meta")
            destination[f"{prefix}temp.weight"] = torch.empty(self.weight.shape, device="meta")


class GGUFModelPatcher(comfy.model_patcher.ModelPatcher):
    """Hangs patches on the tensors instead of adding them."""

    def patch_weight_to_device(
        self, key: str, device_to: Any = None, inplace_update: bool = False
    ) -> None:
        weight = comfy.utils.get_attr(self.model, key)
        if not isinstance(weight, PackedTensor):
            return super().patch_weight_to_device(key, device_to, inplace_update)
        if key in self.patches:
            weight.patches = [(self.patches[key], key)]

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> Any:
        for parameter in self.model.parameters() if unpatch_weights else ():
            if isinstance(parameter, PackedTensor):
                parameter.patches = []
        return super().unpatch_model(device_to, unpatch_weights)

    def load(self, *args: Any, force_patch_weights: bool = False, **kwargs: Any) -> Any:
        return super().load(*args, force_patch_weights=True, **kwargs)


def load_model(name: str) -> Any:
    """A mini family with packed matrices."""
    tensors = {
        key: minis._tame(key, value.shape).half() for key, value in minis.smallest(name).items()
    }
    with torch.inference_mode():
        model = comfy.sd.load_diffusion_model_state_dict(tensors, {"custom_operations": Ops})
    _pack(model.model)
    return _as_gguf(model)


def packed_text(name: str, changed: bool) -> Any:
    """Its text encoder, packed; `changed`: another one."""
    clip = minis.load_text(name, custom_operations=Ops)
    if changed:
        with torch.inference_mode():
            next(
                p
                for n, p in clip.cond_stage_model.named_parameters()
                if n.endswith("SelfAttention.q.weight")
            ).mul_(-1)
    _pack(clip.cond_stage_model)
    clip.patcher = _as_gguf(clip.patcher)
    return clip


def _pack(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Ops.Linear):
            module.weight = nn.Parameter(
                PackedTensor.pack(module.weight.detach()), requires_grad=False
            )


def _as_gguf(patcher: Any) -> Any:
    return GGUFModelPatcher(patcher.model, patcher.load_device, patcher.offload_device)
