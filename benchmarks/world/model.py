"""The trained world in one process: prompt rows, pictures and the judge, without ComfyUI.

The matrix of methods needs thousands of pictures, and starting a sampler node for each batch would only add cost: this
is the same U-Net with the same Euler steps. `run.confirm` compares some runs with the stock KSampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .classifier import Classifier, load_classifier
from .diffusion import sample
from .prompts import training_prompts
from .storage import load_tensors, save_tensors
from .text_encoder import LENGTH, WIDTH, TextEncoder, tokens
from .unet import UNet
from .world import SIZE

STEPS, GUIDANCE = 8, 3.0
TO_V = "attn2.to_v.weight"


class WorldText:
    """Prompts to rows; each text is encoded once and kept, also on disk (half precision, as in training)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._encoder: TextEncoder | None = None
        self._known: dict[str, Tensor] = {}
        stored = load_tensors(folder / "prompt_rows.safetensors")["rows"]
        texts = ["", *(prompt.text for prompt in training_prompts())]
        self._known.update(zip(texts, stored, strict=True))
        if self._extra.exists():
            self._known.update(load_tensors(self._extra))
        self._stored = len(self._known)

    @property
    def _extra(self) -> Path:
        return self._folder / "other_rows.safetensors"

    def rows(self, texts: Sequence[str]) -> Tensor:
        """All rows of each prompt, (n, 77, 768) in single precision."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known.update(zip(missing, self._load().encode(missing).half(), strict=True))
        return torch.stack([self._known[text] for text in texts]).float()

    def token_ids(self, text: str) -> list[int]:
        """Text tokens without start and end."""
        return tokens(text)

    def save(self) -> None:
        """Keeps what was encoded beyond the training prompts for the next process."""
        if len(self._known) > self._stored:
            known = {prompt.text for prompt in training_prompts()} | {""}
            save_tensors(self._extra, {text: rows for text, rows in self._known.items() if text not in known})
            self._stored = len(self._known)

    def _load(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = TextEncoder()
            self._encoder.load_state_dict(load_tensors(self._folder / "text_encoder.safetensors"))
            self._encoder.requires_grad_(False).eval()
        return self._encoder


class World:
    """Text, U-Net and judge of one folder."""

    def __init__(self, folder: Path, text: WorldText | None = None) -> None:
        self.folder = folder
        self.text = text or WorldText(folder)
        self.unet = UNet()
        self.unet.load_state_dict(load_tensors(folder / "unet.safetensors"))
        self.unet.requires_grad_(False).eval().to(memory_format=torch.channels_last)
        rest_if_untrained(self.unet)
        self.classifier: Classifier = load_classifier(folder)
        self._original = self.value_weights()
        self._empty = self.text.rows([""])[0]

    def value_weights(self) -> dict[str, Tensor]:
        """Copies of the weights an erasure edits: {key: (320, 768)}."""
        return {key: value.clone() for key, value in self.unet.state_dict().items() if key.endswith(TO_V)}

    @property
    def original(self) -> dict[str, Tensor]:
        """The untouched value weights."""
        return self._original

    def use(self, weights: Mapping[str, Tensor] | None) -> UNet:
        """The U-Net with these value weights; None: the untouched ones."""
        chosen = self._original if weights is None else weights
        self.unet.load_state_dict({key: value.float() for key, value in chosen.items()}, strict=False)
        return self.unet

    def draw(self, texts: Sequence[str], seed: int, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """One picture a prompt (n, 4, 12, 12); the noise depends on seed and place alone, so methods are paired."""
        return self.draw_rows(self.text.rows(texts), seed, weights)

    def draw_rows(
        self, rows: Tensor, seed: int, weights: Mapping[str, Tensor] | None = None, batch: int = 32
    ) -> Tensor:
        """The same from rows (n, 77, 768)."""
        assert rows.shape[1:] == (LENGTH, WIDTH)
        noise = torch.randn(len(rows), 4, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
        unet = self.use(weights)
        parts = zip(rows.split(batch), noise.split(batch), strict=True)
        drawn = [sample(unet, part, self._empty, start, STEPS, GUIDANCE) for part, start in parts]
        self.use(None)
        return torch.cat(drawn)


def rest_if_untrained(unet: UNet) -> None:
    """Blocks whose branch is still zero pass their input on: the same function at two thirds of the cost."""
    for block in (unet.input_blocks[1], unet.output_blocks[2]):
        block[0].idle = not bool(block[0].out_layers[3].weight.any())
