"""What the registry records about a model family: where text enters it, and what encodes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..inputs import POOLED, TOKENS, Padding, Prompting

Naming = Literal["hf", "open_clip"]
"""How the keys of a CLIP are spelled."""
LoraPaths = Literal["ldm", "diffusers"]
"""Which spelling of a layer's path LoRAs have."""
LayerKind = Literal["K", "V", "entry", "second"]
"""What a layer that reads text is: of cross attention, where text enters, of the second input."""

_TITLES = {
    "clip_l": "CLIP-L",
    "clip_h": "CLIP-H",
    "clip_g": "CLIP-G",
    "t5xxl": "T5-XXL",
    "umt5xxl": "UMT5-XXL",
    "pile_t5xl": "Pile-T5-XL",
    "gemma2_2b": "Gemma 2 2B",
    "qwen3_06b": "Qwen3 0.6B",
    "qwen3_4b": "Qwen3 4B",
    "qwen3_8b": "Qwen3 8B",
    "qwen3vl_4b": "Qwen3-VL 4B",
    "qwen25_7b": "Qwen2.5-VL 7B",
    "mistral3_24b": "Mistral Small 3 24B",
}


@dataclass(frozen=True)
class FamilyEncoder:
    """One text encoder as a family uses it."""

    name: str
    """As ComfyUI calls it."""
    width: int
    """Width of its rows."""
    layers: int
    """Transformer blocks of the complete encoder; a folder may ship only the `blocks_used`."""
    hidden: int
    """Which hidden state the model receives, at most: -1 the last, -2 the one before."""
    final_norm: bool
    """Whether the final layer norm is applied to that hidden state."""
    pad_token: int = 0
    prefixes: tuple[str, ...] = ()
    """Prefixes of its keys in a single-file checkpoint; the first one present counts."""
    naming: Naming = "hf"
    """Spelling of the keys after that prefix, as published; a file's own is read from its keys."""
    folder: str = ""
    """Component folder in the diffusers layout."""
    length: int = 77
    """Rows of a padded prompt."""
    appends: Literal["columns", "rows"] = "columns"
    """What it adds to the encoders before it: columns of the same rows, or more rows."""
    optional: bool = False
    """Whether the model runs without it (zero columns, absent rows) if it has another encoder."""
    padding: Padding = "informative"
    """What follows the end of a prompt: see `inputs.Padding`."""
    projected: bool = False
    """Whether its pooled embedding goes through the text projection before the model reads it."""
    states: int = 1
    """How many of its hidden states are side by side in a row."""
    template: tuple[str, str] = ("", "")
    """What is set before and after a prompt, where the command line does it too."""
    instruction: str = ""
    """What the command line sets before the template; the model does not receive its rows."""
    batchable: bool = True
    """Whether ComfyUI's call takes several prompts, not trimming a template off the first only."""

    @property
    def title(self) -> str:
        """What people call it."""
        return _TITLES[self.name]

    @property
    def hidden_width(self) -> int:
        """Width of one hidden state, and of its token embeddings."""
        return self.width // self.states

    @property
    def causal(self) -> bool:
        """Whether a row depends only on the text before it; T5 reads both ways."""
        return "t5" not in self.name

    @property
    def masks_padding(self) -> bool:
        """Whether attention has to leave padding out: in front of rows that are read where every
        row reads all, or where padding is read itself.
        """
        return self.appends == "rows" and self.causal == (self.padding == "informative")

    @property
    def blocks_used(self) -> int:
        """Transformer blocks that run before the hidden state the model receives."""
        return self.layers + 1 + self.hidden


@dataclass(frozen=True)
class SecondInput:
    """The second way text enters: a linear layer that reads one pooled embedding per prompt."""

    ldm_key: str
    diffusers_key: str
    width: int
    """Input width of the layer; the text's columns come first, size embeddings after them."""
    encoders: tuple[FamilyEncoder, ...]
    """Whose pooled embeddings it reads, in column order. Flux has an encoder only for this."""
    mean: bool = False
    """Whether it reads the mean of a prompt's rows, and not what an encoder pools."""

    @property
    def text_width(self) -> int:
        """How many columns read text."""
        return sum(encoder.width for encoder in self.encoders)

    def first_column(self, name: str) -> int:
        """Where the columns of an encoder begin."""
        names = [encoder.name for encoder in self.encoders]
        return sum(encoder.width for encoder in self.encoders[: names.index(name)])


@dataclass(frozen=True)
class EntryLayer:
    """Where text enters a transformer: at one layer for all text, or at V of every cross attention.

    There is one layer for all text where text and image tokens attend to each other (SD3, Flux):
    editing it changes the whole text stream, keys, values and all that follows from them.
    """

    ldm_path: str
    """Path of the layer; `*` is the number of a block where every block has one."""
    diffusers_path: str = ""
    """Empty: files in that layout are not read."""
    ldm_needs: tuple[str, ...] = ()
    """Keys that every such model has in the original layout."""
    diffusers_needs: tuple[str, ...] = ()
    look_alike: str = ""
    """What `detect` calls models like these, with its article."""
    forbidden: tuple[str, ...] = ()
    """Prefixes of keys, in either layout, that no such model has."""
    key_name: str = ""
    """Name of K where the last name of the path is V's."""
    extra_paths: tuple[str, ...] = ()
    """Paths of more layers that read the same text in some variants of the model."""


@dataclass(frozen=True)
class TextPart:
    """The part of a model that only text goes through before the layers that are edited.

    It does not depend on the timestep, so what it makes of a prompt is what those layers read. The
    host runs its own modules.
    """

    modules: tuple[str, ...]
    """Their paths, in the order in which a prompt goes through them."""
    reads: str = ""
    """Path of the layer that reads the encoder's output; empty: the width stays."""
    states: int = 1
    """How many hidden states of a row the first module takes one by one."""
    mixes: bool = False
    """Whether the rows of a prompt depend on each other there."""
    norm: float | None = None
    """Where the only module is an RMS norm: what it adds to the mean square."""
    layers: tuple[str, ...] = ()
    """Where the only module is a network of two linear layers with a GELU between: their paths."""
    ids: str = ""
    """Name of a tokenizer whose ids the first module takes too, and makes its rows from."""


@dataclass(frozen=True)
class Architecture:
    """A model family: where text enters it and what encodes the text."""

    name: str
    title: str
    context_width: int
    """Width of the embeddings that the model receives."""
    encoders: tuple[FamilyEncoder, ...]
    """In column order, the first encoder in the first columns; then those that append rows."""
    modelspec: str
    kohya_version: str
    second_input: SecondInput | None = None
    lora_paths: LoraPaths = "ldm"
    """Spelling of a layer's path that kohya's trainer writes, and so every program reads."""
    label_widths: tuple[int | None, ...] = ()
    """Input widths of the label embedding in this family of U-Nets; None: without one."""
    entry: EntryLayer | None = None
    """Where text enters; None: at every cross attention of a U-Net."""
    text_part: TextPart | None = None
    """What text goes through before that; None: nothing, the layers read the encoders' output."""
    prompting: Prompting = "sentences"
    """How people usually prompt such models."""
    other_encoders: tuple[str, ...] = ()
    """Encoders that come with them and read no names: the letters of quoted text."""
    on_command_line: bool = True
    """Whether its text encoders can be read from files without ComfyUI."""
    note: str = ""
    """What every report on such a model must say."""

    @property
    def every_encoder(self) -> tuple[FamilyEncoder, ...]:
        """The encoders of token rows, then those that only feed the pooled path."""
        names = {encoder.name for encoder in self.encoders}
        second = () if self.second_input is None else self.second_input.encoders
        return (*self.encoders, *(encoder for encoder in second if encoder.name not in names))

    def text_columns(self, text_input: str) -> int | None:
        """How many columns of a layer read this text input, from the first on; None: all."""
        return self.second_input.text_width if text_input != TOKENS and self.second_input else None

    def first_column(self, name: str) -> int:
        """Where the columns of the context that an encoder fills begin."""
        start = 0
        for encoder in self.encoders:
            if encoder.appends == "rows":
                start = 0
            if encoder.name == name:
                break
            start += encoder.width
        return start


@dataclass(frozen=True)
class LayerKey:
    """One layer that reads text, under all its names."""

    file_key: str
    """Key in the file (or, for a folder, component and key) that was examined."""
    ldm_path: str
    diffusers_path: str
    kind: LayerKind
    shape: tuple[int, int]
    """Outputs x width of the rows that it reads, or the whole width of the pooled path's layer."""
    lora_paths: LoraPaths = "ldm"
    """Which of the two paths a LoRA uses."""

    @property
    def canonical(self) -> str:
        """Key inside a loaded model of any file layout."""
        return f"diffusion_model.{self.ldm_path}.weight"

    @property
    def lora_base(self) -> str:
        """kohya's name of the layer, to which `.lora_up.weight` is appended."""
        path = self.ldm_path if self.lora_paths == "ldm" else self.diffusers_path
        return "lora_unet_" + path.replace(".", "_")

    @property
    def text_input(self) -> str:
        """Which text input of the model the layer reads."""
        return POOLED if self.kind == "second" else TOKENS
