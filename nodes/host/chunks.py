"""Text encoders that adapt to the memory there is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ...speed_ops.encoders.encoder import RowsAndPooled
from ...speed_ops.errors import SpeedError
from ...speed_ops.progress import Progress, part_of

_FIRST_CHUNK = 256
_MIN_CHUNK = 4


class InChunks(RowsAndPooled):
    """Encodes as many texts at once as memory allows: fewer after running out, then on the CPU."""

    def __init__(self, clip: Any) -> None:
        self._clip = clip
        self.notes: list[str] = []
        """What happened on the way that a report should mention."""
        self._chunk, self._on_cpu = _FIRST_CHUNK, False
        self.pooled_width = 0
        """Width of the pooled embedding that it gives besides the rows; 0: none."""
        self.pooled_fingerprint = ""
        """Like that of the rows, of the pooled embeddings."""

    @abstractmethod
    def _run(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """First `lengths[i]` rows of each prompt, float32 on the CPU, and with `pools` each one's
        pooled embedding.
        """

    def _on_moved(self) -> None:
        """Called when the text encoder has been moved to the CPU."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Frees memory until the next call."""

    def _encoded(
        self,
        prompts: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None,
        *,
        pools: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        out: list[Tensor] = []
        pooled: list[Tensor] = []
        while len(out) < len(prompts):
            chunk = slice(len(out), len(out) + self._chunk)
            report = part_of(progress, "encode", len(out), len(prompts))
            try:
                rows, embeddings = self._run(prompts[chunk], lengths[chunk], report, pools=pools)
            except comfy.model_management.OOM_EXCEPTION:
                self._after_running_out()
                continue
            out += rows
            pooled += embeddings
        return out, pooled

    def _after_running_out(self) -> None:
        """Smaller chunks first, then the CPU; what was done is kept."""
        if self._chunk <= _MIN_CHUNK:
            self._move_to_cpu()
            return
        comfy.model_management.soft_empty_cache()
        self._chunk //= 4
        self._note(f"The GPU ran out of memory: texts were encoded {self._chunk} at a time.")

    def _move_to_cpu(self) -> None:
        if self._on_cpu:
            raise SpeedError(
                "There is not enough memory to encode even four texts at a time on the CPU: free"
                " some memory."
            )
        self._clip = self._clip.clone()
        self._clip.patcher.load_device = torch.device("cpu")
        self._on_cpu, self._chunk = True, _FIRST_CHUNK
        self._on_moved()
        comfy.model_management.soft_empty_cache()
        self._note("The GPU ran out of memory: texts were encoded on the CPU.")

    def _note(self, sentence: str) -> None:
        self.notes = [note for note in self.notes if not note.startswith("The GPU")] + [sentence]
