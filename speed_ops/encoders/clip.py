"""CLIP text encoders from a file's own weights, in any spelling: one, or two side by side (SDXL).

`ClipWeights` finds the tensors, `ClipTower` runs them, `ClipTextEncoder` turns prompts into rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError
from ..files.tensors import read_scaled
from ..models.architecture import FamilyEncoder
from ..text.tokens import Stream
from .encoder import TowerEncoder
from .inversions import Inversion, extended, token_numbers
from .tokenizers import END_TOKEN, START_TOKEN, ClipTokenizer
from .tower import STORED, Built, EncoderWeights, LazyBlocks, Tensors, Tower, assign, tensors_digest

# transformers' module -> OpenCLIP's, inside one block; the three attention inputs are one stacked
# matrix there.
_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}

_ATTENTION_INPUTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_TABLE = "embeddings.token_embedding.weight"
_TOP = {
    _TABLE: "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_OPEN_PROJECTION = "text_projection"
"""OpenCLIP's name, which multiplies from the other side."""


class ClipWeights(EncoderWeights):
    """One encoder's tensors, under the names that they have in `transformers`' text model."""

    def __init__(
        self, tensors: Tensors, row: FamilyEncoder, inversions: Sequence[Inversion] = ()
    ) -> None:
        super().__init__(tensors, row)
        self._inversions = inversions
        self._open_clip = self.naming == "open_clip"
        self.layers = self._count_layers(
            "transformer.resblocks.{}.ln_1.weight"
            if self._open_clip
            else "text_model.encoder.layers.{}.layer_norm1.weight"
        )
        self.vocabulary, self.width = self._shape(self._spelled(_TABLE), 2)
        self.vocabulary += sum(inversion.count for inversion in inversions)
        self.positions, _ = self._shape(self._spelled("embeddings.position_embedding.weight"), 2)
        (self.inner_width,) = self._shape(self._spelled("encoder.layers.0.mlp.fc1.bias"), 1)

    def block(self, layer: int) -> dict[str, Tensor]:
        modules = _BLOCK if self._open_clip else (*_BLOCK, *_ATTENTION_INPUTS)
        names = [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]
        tensors = {
            name: self._read(self._spelled(f"encoder.layers.{layer}.{name}")) for name in names
        }
        if self._open_clip:
            for leaf in ("weight", "bias"):
                stacked = self._read(f"transformer.resblocks.{layer}.attn.in_proj_{leaf}")
                chunks = stacked.split(max(1, len(stacked) // 3))
                tensors |= {
                    f"{module}.{leaf}": chunk
                    for module, chunk in zip(_ATTENTION_INPUTS, chunks, strict=False)
                }
        return tensors

    def idle(self) -> tuple[int, ...]:
        """Blocks that pass their input on unchanged, as most of a small model's do: their last
        layers are zero. Biases come first, so that a trained encoder's matrices are not read."""
        outputs = ("self_attn.out_proj", "mlp.fc2")
        names = [f"{module}.{leaf}" for leaf in ("bias", "weight") for module in outputs]

        def is_idle(layer: int) -> bool:
            keys = (self._spelled(f"encoder.layers.{layer}.{name}") for name in names)
            return not any(bool(self._read(key).any()) for key in keys)

        return tuple(layer for layer in range(self.layers) if is_idle(layer))

    def top(self) -> dict[str, Tensor]:
        tensors = {name: self._read(self._spelled(name)) for name in _TOP}
        tensors[_TABLE] = extended(tensors[_TABLE], self._inversions, self.row.name)
        return tensors

    def projection(self) -> Tensor | None:
        """`pooled width x d`: maps the end token's last state to the pooled embedding.

        None where the family takes that state as it is, or the file has no projection: ComfyUI then
        does the same.
        """
        name = self._projection
        if name is None:
            return None
        return self._read(name).T if name == _OPEN_PROJECTION else self._read(name)

    @property
    def pooled_width(self) -> int:
        """Width of the pooled embedding."""
        if self._projection is None:
            return self.width
        return self._shape(self._projection, 2)[1 if self._projection == _OPEN_PROJECTION else 0]

    def digest_after(self, blocks: int) -> str:
        """Hash of what a pooled embedding depends on after the first `blocks` blocks."""
        projection = self.projection()
        last = [] if projection is None else [("projection", projection)]
        return tensors_digest(chain(self._named_blocks(range(blocks, self.layers)), last))

    @property
    def _projection(self) -> str | None:
        names = (_OPEN_PROJECTION, "text_projection.weight") if self.row.projected else ()
        return next((name for name in names if name in self._file_keys), None)

    def _spelled(self, name: str) -> str:
        """A `transformers` name as the file spells it, without the prefix."""
        if not self._open_clip:
            return f"text_model.{name}"
        if name in _TOP:
            return _TOP[name]
        _, _, layer, *module, leaf = name.split(".")
        return f"transformer.resblocks.{layer}.{_BLOCK['.'.join(module)]}.{leaf}"

    def _read(self, name: str) -> Tensor:
        return read_scaled(self._tensors.__getitem__, set(self._tensors.keys()), self._key(name))[
            0
        ].to(STORED)


HEAD_WIDTH = 64
"""Width of one attention head in every CLIP text encoder."""


class ClipTower(Tower):
    """CLIP-L, CLIP-H or CLIP-G."""

    def __init__(self, weights: ClipWeights, clip_skip: int | None, device: torch.device) -> None:
        """See `Tower`."""
        super().__init__(weights, clip_skip, device)
        self.weights = weights
        # A file may lack the last blocks, which the rows do without.
        complete = weights.layers == weights.complete_layers
        self.pooled_width = weights.pooled_width if complete else 0

    @property
    def rule(self) -> str:
        norm = "norm" if self.row.final_norm else "raw"
        return f"{self.row.name}:{self.blocks}:{norm}:{self.row.pad_token}:{self._activation}"

    @property
    def _activation(self) -> str:
        return "quick_gelu" if self.row.name == "clip_l" else "gelu"

    def pooled_digest(self) -> str:
        return self.weights.digest_after(self.blocks)

    @torch.no_grad()
    def states_and_pooled(self, ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        built, count = self._ready(), self.weights.layers
        before_norm: list[Tensor] = []
        hook = built.final_norm.register_forward_pre_hook(
            lambda _, inputs: before_norm.append(inputs[0])
        )
        try:
            blocks = built.blocks.first(count, (self.blocks,))
            last = self._call(built, ids, blocks, built.final_norm)
        finally:
            hook.remove()
        state = before_norm[0] if self.blocks == count else built.blocks.states[self.blocks]
        built.blocks.states = {}
        states = built.final_norm(state) if self.row.final_norm else state
        pooled = last[torch.arange(len(ids)), ends.to(last.device)]
        projection = self.weights.projection()
        if projection is not None:
            pooled = pooled @ projection.to(self._device, torch.float32).T
        return states, pooled

    def _build(self) -> Built:
        from transformers import CLIPTextConfig, CLIPTextModel

        weights = self.weights
        if weights.vocabulary <= END_TOKEN or weights.width % HEAD_WIDTH:
            raise FileError(
                f"The text encoder '{weights.row.name}' has {weights.vocabulary} tokens of width"
                f" {weights.width}: this is not a CLIP text encoder."
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
            model = CLIPTextModel(config).train(False)
        core = _core(model)
        assign(core, weights.top(), self._device, weights.row.name, strict=False)
        core.embeddings.position_ids = torch.arange(weights.positions, device=self._device).expand(
            1, -1
        )
        blocks = LazyBlocks(
            core.encoder.layers, weights.block, self._device, weights.row.name, weights.idle()
        )
        return Built(model, blocks, core.final_layer_norm)

    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        core = _core(built.call)
        core.encoder.layers, core.final_layer_norm = blocks, norm


def _core(model: nn.Module) -> Any:
    return getattr(model, "text_model", model)  # transformers 5 drops the inner module


class ClipTextEncoder(TowerEncoder):
    """A `TextEncoder` over the tensors of a checkpoint or diffusers folder. CLIP is causal."""

    def __init__(
        self,
        tensors: Tensors,
        rows: Sequence[FamilyEncoder],
        tokenizer: ClipTokenizer,
        clip_skip: int | None = None,
        device: torch.device | str = "cpu",
        pooled: Sequence[FamilyEncoder] = (),
        embeddings: Sequence[Path] = (),
    ) -> None:
        """
        Args:
            tensors: Of the checkpoint or folder.
            rows: The family's encoders from the registry, in column order.
            tokenizer: CLIP's.
            clip_skip: As in ComfyUI, -1 is the last layer, -2 the one before; None is what the
                family was trained with.
            device: Where the encoders run.
            pooled: Those of them whose pooled embeddings the family also reads.
            embeddings: Files of textual inversions that texts may contain.
        """
        inversions = [Inversion.read(path) for path in embeddings]
        self._clips = tuple(
            ClipTower(ClipWeights(tensors, row, inversions), clip_skip, torch.device(device))
            for row in rows
        )
        sizes = {tower.weights.vocabulary for tower in self._clips}
        added = sum(inversion.count for inversion in inversions)
        tokenizer.inversions = token_numbers(inversions, min(sizes) - added)
        lengths = {tower.weights.positions for tower in self._clips}
        if len(lengths) != 1:
            raise FileError(
                f"The text encoders take prompts of different lengths ({sorted(lengths)}): they do"
                " not belong to one model."
            )
        names = {row.name for row in pooled}
        pooling = [tower for tower in self._clips if tower.row.name in names]
        stream = Stream(tokenizer.token_ids, lengths.pop())
        ends = [START_TOKEN], [END_TOKEN]
        super().__init__(self._clips, tokenizer, stream, ends, pooling)
