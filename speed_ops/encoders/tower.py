"""One text encoder at work: `transformers`' model over tensors that stay in the file until needed.

`EncoderWeights` finds the tensors, `LazyBlocks` fills blocks when they run, so that a large encoder
is never whole in memory, and `Tower` computes hidden states.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import FileError, SettingsError
from ..models.architecture import FamilyEncoder
from ..models.keys import encoder_keys

STORED = torch.float16
"""ComfyUI holds text encoders in half precision, whatever the file has, and computes in float32. A
float32 file that is not rounded the same way gives embeddings that the model never sees (off by
1e-3)."""
_BUILDING = threading.Lock()
"""transformers imports classes at their first use, which two threads must not do at once."""


class Tensors(Protocol):
    """A file's tensors by key; a plain dict or a lazy reader."""

    def keys(self) -> Iterable[str]: ...
    def __getitem__(self, key: str, /) -> Tensor: ...


class EncoderWeights(ABC):
    """One encoder's tensors. A subclass knows how the file spells them."""

    width: int
    layers: int
    """Blocks in the file."""

    def __init__(self, tensors: Tensors, row: FamilyEncoder) -> None:
        self._tensors = tensors
        self.row = row
        self.naming, self._file_keys = encoder_keys(row, tensors.keys())
        if not self._file_keys:
            raise FileError(
                f"The file contains no text encoder '{row.name}' (looked under"
                f" {', '.join(row.prefixes)}). Use a checkpoint that contains its text encoders, or"
                " the diffusers folder."
            )

    @property
    def complete_layers(self) -> int:
        """Blocks of the whole encoder, from which hidden layers are counted.

        A diffusers folder may leave out the blocks after the one the family uses; a shrunken
        encoder is complete.
        """
        return self.row.layers if self.layers == self.row.blocks_used else self.layers

    @abstractmethod
    def block(self, layer: int) -> dict[str, Tensor]:
        """One block's tensors, named relative to the block."""

    @abstractmethod
    def top(self) -> dict[str, Tensor]:
        """What is outside the blocks: embedding tables and the final norm."""

    def digest(self, blocks: int) -> str:
        """Hash of what the first `blocks` blocks compute with, the same for either spelling."""
        return tensors_digest(chain(self.top().items(), self._named_blocks(range(blocks))))

    def _named_blocks(self, numbers: range) -> Iterator[tuple[str, Tensor]]:
        for layer in numbers:
            for name, tensor in sorted(self.block(layer).items(), key=lambda item: item[0]):
                yield f"{layer}.{name}", tensor

    def _count_layers(self, mark: str) -> int:
        """Number of blocks; `mark`: a tensor that each has, `{}` for the block's number."""
        count = 0
        while mark.format(count) in self._file_keys:
            count += 1
        if count == 0:
            raise FileError(
                f"The text encoder '{self.row.name}' has no layers in this file. Download the"
                " file again."
            )
        return count

    def _shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """A tensor's shape, from the header where there is one: an embedding table is large."""
        key = self._key(name)
        shapes = getattr(self._tensors, "shapes", {})
        shape = tuple(shapes[key] if key in shapes else self._tensors[key].shape)
        if len(shape) != dimensions or 0 in shape:
            raise FileError(
                f"The text encoder '{self.row.name}' is damaged: '{key}' has the shape {shape}."
            )
        return shape

    def _key(self, name: str) -> str:
        if name not in self._file_keys:
            raise FileError(
                f"The text encoder '{self.row.name}' is incomplete: the file has no '{name}'"
                " for it."
            )
        return self._file_keys[name]


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of names, shapes and values."""
    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


RESIDENT_BYTES = 2**30
"""Encoders larger than this in float32 hold one block at a time: CLIP-G (2.8 GB) runs in an eighth
of its size, T5-XXL (19 GB) in a twentieth."""


class LazyBlocks:
    """The blocks of one encoder, all of the same shape.

    A small encoder's blocks are filled once and stay. A large one has a single block, filled again
    each time: freeing and taking its memory again would leave the heap in pieces.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        read: Callable[[int], dict[str, Tensor]],
        device: torch.device,
        name: str,
        idle: Collection[int] = (),
    ) -> None:
        """
        Args:
            layers: Modules without memory.
            read: Returns the tensors of one block, named relative to it.
            device: Where the blocks run.
            name: The text encoder's name, for messages.
            idle: Blocks that pass their input on unchanged and need not be run.
        """
        per_block = sum(parameter.numel() for parameter in layers[0].parameters())
        self.stay = 4 * per_block * len(layers) <= RESIDENT_BYTES
        """Whether all of them are in memory once they have been run."""
        if not self.stay:
            layers = nn.ModuleList([layers[0]] * len(layers))
        for layer in dict.fromkeys(layers):
            layer.register_forward_pre_hook(self._fill)
        self.layers = layers
        self.tick: Callable[[], None] = lambda: None
        """Called before every block."""
        self._read, self._device, self._name, self._idle = read, device, name, idle
        self.states: dict[int, Tensor] = {}
        """`batch x length x d`: the inputs of the blocks that `first` was asked to note."""
        self._waiting: list[int] = []
        """Blocks still to be run, the next one last."""
        self._noted: Collection[int] = ()
        self._content: dict[nn.Module, int] = {}
        """Which block's weights a module holds."""

    def first(self, count: int, noted: Collection[int] = ()) -> nn.ModuleList:
        """The first `count` blocks without idle ones; `noted`: whose inputs become `states`."""
        order = [index for index in range(count) if index in noted or index not in self._idle]
        self._waiting, self._noted, self.states = order[::-1], noted, {}
        return nn.ModuleList(self.layers[index] for index in order)

    def _fill(self, module: nn.Module, inputs: Any) -> None:
        self.tick()
        index = self._waiting.pop()
        if index in self._noted:
            self.states[index] = inputs[0]
        if self._content.get(module) == index:
            return
        # an interrupt below must not leave a half-filled block that counts as whole
        self._content.pop(module, None)
        block = self._read(index)
        if next(module.parameters()).is_meta:
            assign(module, block, self._device, self._name)
        else:
            _overwrite(module, block, self._name)
        self._content[module] = index


def assign(
    module: nn.Module,
    tensors: dict[str, Tensor],
    device: torch.device,
    name: str,
    strict: bool = True,
) -> None:
    """Gives a module without memory its weights.

    Args:
        module: The module, on the meta device.
        tensors: Its weights, by parameter name.
        device: Where the weights go.
        name: The text encoder's name, for messages.
        strict: Whether every parameter needs a weight.
    """
    wide = {key: tensor.to(device, torch.float32) for key, tensor in tensors.items()}
    try:
        module.load_state_dict(wide, strict=strict, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise FileError(
            f"The text encoder '{name}' has tensors that do not fit together ({reason})."
        ) from error


def _overwrite(module: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    """Gives a module other weights in the memory it has."""
    for key, parameter in module.named_parameters():
        if key not in tensors or tensors[key].shape != parameter.shape:
            raise FileError(
                f"The text encoder '{name}' has blocks of different shapes ({key}). Download the"
                " file again."
            )
        parameter.copy_(tensors[key])


@dataclass
class Built:
    """A model without its blocks' weights."""

    call: Any
    """Token ids in, hidden states out."""
    blocks: LazyBlocks
    final_norm: nn.Module


class Tower(ABC):
    """Computes hidden states of one encoder in float32. A subclass knows how its model is made and
    put together, and whether it makes pooled embeddings.
    """

    pooled_width = 0
    """Width of its pooled embedding; 0 where it makes none, or the file lacks what it takes."""

    def __init__(
        self, weights: EncoderWeights, clip_skip: int | None, device: torch.device
    ) -> None:
        """Nothing is read yet.

        Args:
            weights: The encoder's tensors.
            clip_skip: Hidden layer, counted from the end; None is the family's own.
            device: Where it runs.
        """
        self.row = weights.row
        self.hidden = weights.row.hidden if clip_skip is None else clip_skip
        self.width = weights.width * weights.row.states
        self.blocks = _blocks_needed(weights, self.hidden, clip_skip)
        self.tick: Callable[[], None] = lambda: None
        """Called before every block: the place to report progress or to stop."""
        self._weights = weights
        self._device = device
        self._built: Built | None = None

    @property
    @abstractmethod
    def rule(self) -> str:
        """What, in addition to the weights, decides the output."""

    @abstractmethod
    def _build(self) -> Built:
        """The model, its tables filled, its blocks not yet."""

    @abstractmethod
    def _put_together(self, built: Built, blocks: nn.ModuleList, norm: nn.Module) -> None:
        """Makes these blocks and this final norm the model's."""

    def digest(self) -> str:
        """Hash of the weights that are used."""
        return self._weights.digest(self.blocks)

    def close(self) -> None:
        """Frees the weights in memory at once; the next call reads them again."""
        if self._built is not None:
            # Modules refer to each other and would stay until Python looks for cycles.
            for module in (self._built.call, self._built.blocks.layers, self._built.final_norm):
                for parameter in module.parameters():
                    parameter.data = parameter.new_empty(0)
        self._built = None

    def move_to(self, device: torch.device) -> None:
        """Runs on another device from now on."""
        if device != self._device:
            self.close()
            self._device = device

    @torch.no_grad()
    def states(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        """`batch x length` token ids to `batch x length x d`: what the diffusion model receives.

        `seen`: 1 where attention reads a token and 0 where it leaves padding out; None: it reads
        all.
        """
        built = self._ready()
        used, count = self.blocks, self.row.states
        noted = range(used // count, used, used // count) if count > 1 else ()
        blocks = built.blocks.first(used, noted)
        norm = built.final_norm if self.row.final_norm else nn.Identity()
        last = self._call(built, ids, blocks, norm, seen)
        earlier = [built.blocks.states[index] for index in noted]
        built.blocks.states = {}
        return torch.cat([*earlier, last], dim=-1) if earlier else last

    def states_and_pooled(self, ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """`states`, and `batch x pooled width`; `ends`: the row of each end token."""
        raise NotImplementedError

    def pooled_digest(self) -> str:
        """Hash of what a pooled embedding depends on in addition to `digest`."""
        raise NotImplementedError

    def trial(self, ids: Tensor, together: int) -> float:
        """About how many seconds a prompt takes, from its first block. `together`: how many are run
        at once, for which an encoder that does not stay in memory is read once."""
        with torch.no_grad():
            self._first_block(ids)
            started = time.perf_counter()
            self._first_block(ids)
        computed = time.perf_counter()
        if not self._ready().blocks.stay:
            self._weights.block(0)
        read = time.perf_counter() - computed
        return self.blocks * (computed - started + read / together)

    def _first_block(self, ids: Tensor) -> None:
        built = self._ready()
        self._call(built, ids, built.blocks.first(1), nn.Identity())

    def _ready(self) -> Built:
        if self._built is None:
            with _BUILDING:
                self._built = self._build()
        self._built.blocks.tick = self.tick
        return self._built

    def _call(
        self,
        built: Built,
        ids: Tensor,
        blocks: nn.ModuleList,
        norm: nn.Module,
        seen: Tensor | None = None,
    ) -> Tensor:
        self._put_together(built, blocks, norm)
        mask = None if seen is None else seen.to(self._device)
        states: Tensor = built.call(
            input_ids=ids.to(self._device), attention_mask=mask
        ).last_hidden_state
        return states


def _blocks_needed(weights: EncoderWeights, hidden: int, clip_skip: int | None) -> int:
    complete, name = weights.complete_layers, weights.row.name
    if not -complete <= hidden <= -1:
        raise SettingsError(
            f"The clip skip is {hidden}, but '{name}' has {complete} layers. Choose from -1 (the"
            f" last layer) to -{complete}."
        )
    needed = complete + 1 + hidden
    if needed > weights.layers:
        raise SettingsError(
            f"The clip skip {clip_skip} needs layer {needed} of '{name}', but the file holds "
            f"{weights.layers}. Choose {weights.layers - complete - 1} or lower."
        )
    return needed
