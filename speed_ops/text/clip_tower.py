"""One CLIP text encoder at work: `transformers`' model over tensors that stay in the file until they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError, SettingsError
from .clip_tokenizer import END_TOKEN
from .clip_weights import ClipWeights

HEAD_WIDTH = 64
"""Width of one attention head in every CLIP text encoder."""
RESIDENT_BYTES = 2**30
"""Encoders larger than this in float32 hold one block at a time: CLIP-G (2.8 GB) runs in an eighth of its size."""


class ClipTower:
    """Computes hidden states of one encoder in float32."""

    def __init__(self, weights: ClipWeights, clip_skip: int | None, device: torch.device) -> None:
        self.weights = weights
        self.hidden = weights.row.hidden if clip_skip is None else clip_skip
        self.blocks = self._blocks_needed(clip_skip)
        self.width = weights.width
        self.tick: Callable[[], None] = lambda: None
        """Called before every block: the place to report progress or to stop."""
        self._device = device
        self._next = 0
        self._forget()

    def close(self) -> None:
        """Lets go of the weights in memory at once; the next call reads them again.

        The modules refer to each other and to this tower, and would stay until Python next looks for cycles.
        """
        for module in (self._core_call, self._layers, self._final_norm):
            for parameter in module.parameters() if module is not None else ():
                parameter.data = parameter.new_empty(0)
        self._forget()

    def _forget(self) -> None:
        self._core: Any = None
        self._core_call: Any = None
        self._layers: nn.ModuleList | None = None
        self._final_norm: nn.Module | None = None
        self._content: dict[nn.Module, int] = {}
        """Which block's weights a module holds."""

    @property
    def rule(self) -> str:
        """What besides the weights decides the output."""
        row = self.weights.row
        return f"{row.name}:{self.blocks}:{'norm' if row.final_norm else 'raw'}:{row.pad_token}:{self._activation}"

    @property
    def _activation(self) -> str:
        return "quick_gelu" if self.weights.row.name == "clip_l" else "gelu"

    @torch.no_grad()
    def states(self, ids: Tensor) -> Tensor:
        """`batch x length` token ids to `batch x length x d`: what the diffusion model receives."""
        norm = self.weights.row.final_norm
        return self._run(ids, self.blocks, norm)

    @torch.no_grad()
    def pooled(self, ids: Tensor, ends: Tensor) -> Tensor:
        """`batch x pooled width`: the last state at the end token (`ends`), projected."""
        states = self._run(ids, self.weights.layers, True)
        at_end = states[torch.arange(len(ids)), ends.to(states.device)]
        projection = self.weights.projection()
        return at_end if projection is None else at_end @ projection.to(self._device, torch.float32).T

    def _run(self, ids: Tensor, blocks: int, norm: bool) -> Tensor:
        if self._core is None:
            self._build()
        assert self._layers is not None and self._final_norm is not None
        self._core.encoder.layers = self._layers[:blocks]
        self._core.final_layer_norm = self._final_norm if norm else nn.Identity()
        self._next = 0
        states: Tensor = self._core_call(input_ids=ids.to(self._device)).last_hidden_state
        return states

    def _build(self) -> None:
        from transformers import CLIPTextConfig, CLIPTextModel

        weights = self.weights
        if weights.vocabulary <= END_TOKEN or weights.width % HEAD_WIDTH:
            raise FileError(
                f"The text encoder '{weights.row.name}' has {weights.vocabulary} tokens of width {weights.width}: "
                "this is not a CLIP text encoder."
            )
        config = CLIPTextConfig(
            vocab_size=weights.vocabulary,
            hidden_size=weights.width,
            intermediate_size=weights.inner_width,
            num_hidden_layers=weights.layers,
            num_attention_heads=weights.width // HEAD_WIDTH,
            max_position_embeddings=weights.positions,
            hidden_act=self._activation,
            eos_token_id=END_TOKEN,
        )
        with torch.device("meta"):
            model = CLIPTextModel(config).eval()
        core = getattr(model, "text_model", model)  # transformers 5 drops the inner module
        _assign(core, weights.top(), self._device, weights.row.name, strict=False)
        core.embeddings.position_ids = torch.arange(weights.positions, device=self._device).expand(1, -1)
        self._core, self._core_call = core, model
        self._layers, self._final_norm = self._place_blocks(core.encoder.layers), core.final_layer_norm

    def _place_blocks(self, layers: nn.ModuleList) -> nn.ModuleList:
        """Blocks that fill themselves from the file when they run.

        A small encoder's blocks are filled once and stay. A large one has a single block in all places, filled anew
        each time: its memory is never freed and taken again, which would leave the heap in pieces.
        """
        per_block = sum(parameter.numel() for parameter in layers[0].parameters())
        if 4 * per_block * len(layers) > RESIDENT_BYTES:
            layers = nn.ModuleList([layers[0]] * len(layers))
        for layer in dict.fromkeys(layers):
            layer.register_forward_pre_hook(self._fill)
        return layers

    def _fill(self, module: nn.Module, inputs: Any) -> None:
        self.tick()
        index, self._next = self._next, self._next + 1
        if self._content.get(module) == index:
            return
        self._content.pop(module, None)  # an interrupt below must not leave a half-filled block that counts as whole
        block = self.weights.block(index)
        if next(module.parameters()).is_meta:
            _assign(module, block, self._device, self.weights.row.name)
        else:
            _overwrite(module, block, self.weights.row.name)
        self._content[module] = index

    def _blocks_needed(self, clip_skip: int | None) -> int:
        complete, name = self.weights.complete_layers, self.weights.row.name
        if not -complete <= self.hidden <= -1:
            raise SettingsError(
                f"The clip skip is {self.hidden}, but '{name}' has {complete} layers: choose from -1 (the last layer) "
                f"to -{complete}."
            )
        needed = complete + 1 + self.hidden
        if needed > self.weights.layers:
            raise SettingsError(
                f"The clip skip {clip_skip} needs layer {needed} of '{name}', but the file holds "
                f"{self.weights.layers}: choose {self.weights.layers - complete - 1} or lower."
            )
        return needed


def _assign(
    module: nn.Module, tensors: dict[str, Tensor], device: torch.device, name: str, strict: bool = True
) -> None:
    """Gives a module without memory its weights."""
    wide = {key: tensor.to(device, torch.float32) for key, tensor in tensors.items()}
    try:
        module.load_state_dict(wide, strict=strict, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise FileError(f"The text encoder '{name}' has tensors that do not fit together ({reason}).") from error


def _overwrite(module: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    """Gives a module other weights in the memory it has."""
    for key, parameter in module.named_parameters():
        if key not in tensors or tensors[key].shape != parameter.shape:
            raise FileError(f"The text encoder '{name}' has blocks of different shapes ({key}): the file is damaged.")
        parameter.copy_(tensors[key])
