"""What a row of the registry of model families says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import SettingsError


@dataclass(frozen=True)
class TextEncoder:
    """One text encoder as a family uses it."""

    name: Literal["clip_l", "clip_h", "clip_g", "t5xxl"]
    width: int
    layers: int
    """Transformer blocks of the complete encoder; a diffusers folder may ship only the `blocks_used`."""
    hidden: int
    """Which hidden state the model receives: -1 the last, -2 the one before."""
    final_norm: bool
    """Whether the final layer norm is applied to that hidden state."""
    pad_token: int
    prefixes: tuple[str, ...]
    """Where its keys stand in a single-file checkpoint; the first one present counts."""
    naming: Literal["hf", "open_clip"]
    """How published files of the family spell the keys after that prefix; what a file does is read from its keys."""
    folder: str
    """Component folder in the diffusers layout."""
    length: int = 77
    """Rows of a padded prompt."""
    below: bool = False
    """Its rows stand below those of the encoders before it, instead of its columns beside theirs."""
    optional: bool = False
    """Whether the model runs without it, its columns zero or its rows absent. One at least there must be."""

    @property
    def title(self) -> str:
        """What people call it."""
        return {"clip_l": "CLIP-L", "clip_h": "CLIP-H", "clip_g": "CLIP-G", "t5xxl": "T5-XXL"}[self.name]

    @property
    def causal(self) -> bool:
        """Whether a row depends on the text before it alone: T5 reads both ways, so it always takes whole prompts."""
        return self.name != "t5xxl"

    @property
    def blocks_used(self) -> int:
        """Transformer blocks that run before the hidden state the model receives."""
        return self.layers + 1 + self.hidden


@dataclass(frozen=True)
class PooledPath:
    """The second way text enters: a linear layer that reads the pooled embedding. Known, not edited yet."""

    ldm_key: str
    diffusers_key: str
    width: int
    """Input width of the layer; the text's columns come first, size embeddings after them."""
    encoders: tuple[str, ...]
    columns: int


@dataclass(frozen=True)
class EntryLayer:
    """The one linear layer through which all text enters a model with joint attention (SD3, Flux).

    Its input is the text encoders' output as it is; behind it text and image tokens mix. Editing it changes the whole
    text stream, keys, values and all that follows from them.
    """

    ldm_path: str
    diffusers_path: str
    ldm_needs: tuple[str, ...]
    """Keys that every such model has in the original layout."""
    diffusers_needs: tuple[str, ...]
    look_alike: str
    """What `files.foreign` calls models like these, with its article."""
    forbidden: tuple[str, ...] = ()
    """Beginnings of keys, in either layout, that no such model has."""


@dataclass(frozen=True)
class Architecture:
    """A model family: where text enters it and how that text is made."""

    name: str
    title: str
    context_width: int
    """Width of the embeddings that cross attention reads: the encoders' widths side by side."""
    encoders: tuple[TextEncoder, ...]
    """In column order: the first encoder's embedding fills the first columns. Then those whose rows stand below."""
    pooled: PooledPath | None
    lora_paths: Literal["ldm", "diffusers"]
    """Which spelling of a layer's path kohya's trainer writes for this family, and so every program reads."""
    modelspec: str
    kohya_version: str
    label_widths: tuple[int | None, ...] = ()
    """Input widths of the label embedding that occur in this family of U-Nets; None: it has none."""
    entry: EntryLayer | None = None
    """Where all text enters; None: at every cross attention of a U-Net."""
    in_graph: bool = True
    """Whether the ComfyUI nodes edit it, too."""

    def columns(self, encoder: str) -> slice:
        """The columns of the context that `encoder` fills."""
        start = 0
        for row in self.encoders:
            start = 0 if row.below else start
            if row.name == encoder:
                return slice(start, start + row.width)
            start += row.width
        known = [row.name for row in self.encoders]
        raise SettingsError(f"{self.title} has no text encoder {encoder!r}; it has {', '.join(known)}.")


@dataclass(frozen=True)
class LayerKey:
    """One layer that reads text, under all its names: K or V of a cross attention, or where all text enters."""

    canonical: str
    """Key inside a loaded model, the same for every file layout: `diffusion_model.<ldm path>.weight`."""
    file_key: str
    """Key in the file (or, for a folder, component and key) that was examined."""
    ldm_path: str
    diffusers_path: str
    lora_base: str
    """kohya's name of the layer, to which `.lora_up.weight` is appended."""
    kind: Literal["K", "V", "entry"]
    shape: tuple[int, int]
    """Outputs x context width."""
