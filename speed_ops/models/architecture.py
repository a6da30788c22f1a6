"""What a row of the registry says about a model family: where text enters it, and how that text is
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import SettingsError
from ..inputs import POOLED, TOKENS

_TITLES = {
    "clip_l": "CLIP-L",
    "clip_h": "CLIP-H",
    "clip_g": "CLIP-G",
    "t5xxl": "T5-XXL",
    "umt5xxl": "UMT5-XXL",
    "pile_t5xl": "Pile-T5-XL",
    "gemma2_2b": "Gemma 2 2B",
    "qwen3_4b": "Qwen3 4B",
    "qwen25_7b": "Qwen2.5-VL 7B",
}
EncoderName = Literal[
    "clip_l",
    "clip_h",
    "clip_g",
    "t5xxl",
    "umt5xxl",
    "pile_t5xl",
    "gemma2_2b",
    "qwen3_4b",
    "qwen25_7b",
]


@dataclass(frozen=True)
class FamilyEncoder:
    """One text encoder as a family uses it."""

    name: EncoderName
    """As ComfyUI calls it."""
    width: int
    """Width of its rows."""
    layers: int
    """Transformer blocks of the complete encoder; a diffusers folder may ship only the
    `blocks_used`.
    """
    hidden: int
    """Which hidden state the model receives: -1 the last, -2 the one before."""
    final_norm: bool
    """Whether the final layer norm is applied to that hidden state."""
    pad_token: int = 0
    prefixes: tuple[str, ...] = ()
    """Where its keys stand in a single-file checkpoint; the first one present counts."""
    naming: Literal["hf", "open_clip"] = "hf"
    """How published files of the family spell the keys after that prefix; what a file does is read
    from its keys.
    """
    folder: str = ""
    """Component folder in the diffusers layout."""
    length: int = 77
    """Rows of a padded prompt."""
    placed: Literal["beside", "below"] = "beside"
    """Its columns stand beside those of the encoders before it, or its rows below theirs."""
    optional: bool = False
    """Whether the model runs without it, its columns zero or its rows absent. One at least there
    must be.
    """
    padding: Literal["informative", "masked", "none"] = "informative"
    """What follows the end of a prompt: rows that know the text, rows that the model gets as zeros
    or masked, none.
    """
    projected: bool = False
    """Whether its pooled embedding goes through the text projection before the model reads it."""
    alone: bool = False
    """Whether ComfyUI's call takes one prompt at a time: it cuts the template off the first prompt
    only.
    """

    @property
    def title(self) -> str:
        """What people call it."""
        return _TITLES[self.name]

    @property
    def causal(self) -> bool:
        """Whether a row depends on the text before it alone: T5 reads both ways, so it always takes
        whole prompts.
        """
        return "t5" not in self.name

    @property
    def blocks_used(self) -> int:
        """Transformer blocks that run before the hidden state the model receives."""
        return self.layers + 1 + self.hidden


@dataclass(frozen=True)
class PooledPath:
    """The second way text enters: a linear layer that reads one pooled embedding of the whole
    prompt.
    """

    ldm_key: str
    diffusers_key: str
    width: int
    """Input width of the layer; the text's columns come first, size embeddings after them."""
    encoders: tuple[FamilyEncoder, ...]
    """Whose pooled embeddings it reads, in column order. Some families have an encoder for this
    alone (Flux).
    """

    @property
    def text_width(self) -> int:
        """How many columns read text."""
        return sum(row.width for row in self.encoders)

    def first_column(self, encoder: str) -> int:
        """Where the columns of an encoder begin."""
        names: list[str] = [row.name for row in self.encoders]
        return sum(row.width for row in self.encoders[: names.index(encoder)])


@dataclass(frozen=True)
class EntryLayer:
    """Where text enters a transformer: one linear layer that takes it all, or V of every cross
    attention.

    One layer takes it all where text and image tokens attend to each other (SD3, Flux): editing it
    changes the whole text stream, keys, values and all that follows from them.
    """

    ldm_path: str
    """Path of the layer; `*` stands for the number of a block where every block has one."""
    diffusers_path: str = ""
    """Empty: files in that layout are not read."""
    ldm_needs: tuple[str, ...] = ()
    """Keys that every such model has in the original layout."""
    diffusers_needs: tuple[str, ...] = ()
    look_alike: str = ""
    """What `detect` calls models like these, with its article."""
    forbidden: tuple[str, ...] = ()
    """Beginnings of keys, in either layout, that no such model has."""
    beside: str = ""
    """What K is called where V has the last name of the path."""
    further: tuple[str, ...] = ()
    """Paths of more layers that read the same text in some variants of the model."""


@dataclass(frozen=True)
class PushRule:
    """A fixed function that each row of text goes through before the layers that are edited."""

    kind: Literal["rms_norm", "mlp"]
    """mlp: linear, GELU (tanh), linear."""
    paths: tuple[str, ...]
    """Modules that it computes with, in order."""
    eps: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """A model family: where text enters it and how that text is made."""

    name: str
    title: str
    context_width: int
    """Width of the embeddings that the model is given: the encoders' widths side by side."""
    encoders: tuple[FamilyEncoder, ...]
    """In column order: the first encoder's embedding fills the first columns. Then those whose rows
    stand below.
    """
    pooled: PooledPath | None
    lora_paths: Literal["ldm", "diffusers"]
    """Which spelling of a layer's path kohya's trainer writes for this family, and so every program
    reads.
    """
    modelspec: str
    kohya_version: str
    label_widths: tuple[int | None, ...] = ()
    """Input widths of the label embedding that occur in this family of U-Nets; None: it has
    none.
    """
    entry: EntryLayer | None = None
    """Where text enters; None: at every cross attention of a U-Net."""
    push: PushRule | None = None
    """What happens to each row before that; None: nothing, the layers read the encoders' output."""
    on_command_line: bool = True
    """Whether the command line edits it, too: its text encoders are read from files without
    ComfyUI.
    """
    note: str = ""
    """What every report on such a model must say."""

    @property
    def every_encoder(self) -> tuple[FamilyEncoder, ...]:
        """Those that make rows, then those that feed the pooled path alone."""
        names = {row.name for row in self.encoders}
        further = () if self.pooled is None else self.pooled.encoders
        return (*self.encoders, *(row for row in further if row.name not in names))

    def text_columns(self, text_input: str) -> int | None:
        """How many columns of a layer read this text input, from the first on; None: all."""
        return self.pooled.text_width if text_input == POOLED and self.pooled else None

    @property
    def per_block(self) -> bool:
        """Whether every block has its own layers that read text."""
        return self.entry is None or "*" in self.entry.ldm_path

    def columns(self, encoder: str) -> slice:
        """The columns of the context that `encoder` fills."""
        start = 0
        for row in self.encoders:
            start = 0 if row.placed == "below" else start
            if row.name == encoder:
                return slice(start, start + row.width)
            start += row.width
        known = [row.name for row in self.encoders]
        raise SettingsError(
            f"{self.title} has no text encoder {encoder!r}: choose from {', '.join(known)}."
        )


@dataclass(frozen=True)
class LayerKey:
    """One layer that reads text, under all its names: K or V of a cross attention, or where all
    text or pooled text enters."""

    canonical: str
    """Key inside a loaded model, the same for every file layout: `diffusion_model.<ldm
    path>.weight`.
    """
    file_key: str
    """Key in the file (or, for a folder, component and key) that was examined."""
    ldm_path: str
    diffusers_path: str
    lora_base: str
    """kohya's name of the layer, to which `.lora_up.weight` is appended."""
    kind: Literal["K", "V", "entry", "pooled"]
    shape: tuple[int, int]
    """Outputs x width of the rows that it reads, or the whole width of the pooled path's layer."""

    @property
    def text_input(self) -> str:
        """Which text input of the model the layer reads."""
        return POOLED if self.kind == "pooled" else TOKENS
