"""The registry of model families: what a row says, and the rows.

Nothing else in the program knows a family by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..errors import SettingsError, suggestion


@dataclass(frozen=True)
class FamilyEncoder:
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
    placed: Literal["beside", "below"] = "beside"
    """Its columns stand beside those of the encoders before it, or its rows below theirs."""
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
    encoders: tuple[FamilyEncoder, ...]
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
            start = 0 if row.placed == "below" else start
            if row.name == encoder:
                return slice(start, start + row.width)
            start += row.width
        known = [row.name for row in self.encoders]
        raise SettingsError(f"{self.title} has no text encoder {encoder!r}: choose from {', '.join(known)}.")


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


def _clip_l(hidden: int, final_norm: bool, *prefixes: str) -> FamilyEncoder:
    return FamilyEncoder(
        name="clip_l",
        width=768,
        layers=12,
        hidden=hidden,
        final_norm=final_norm,
        pad_token=49407,
        prefixes=prefixes,
        naming="hf",
        folder="text_encoder",
    )


def _clip_g(folder: str, *prefixes: str) -> FamilyEncoder:
    return FamilyEncoder(
        name="clip_g",
        width=1280,
        layers=32,
        hidden=-2,
        final_norm=False,
        pad_token=0,
        prefixes=prefixes,
        naming="open_clip",
        folder=folder,
    )


def _t5(folder: str, length: int) -> FamilyEncoder:
    prefixes = ("text_encoders.t5xxl.transformer.", "t5xxl.transformer.")
    return FamilyEncoder(
        name="t5xxl",
        width=4096,
        layers=24,
        hidden=-1,
        final_norm=True,
        pad_token=0,
        prefixes=prefixes,
        naming="hf",
        folder=folder,
        length=length,
        placed="below",
    )


def _in_sd3(encoder: FamilyEncoder) -> FamilyEncoder:
    """SD3 was trained to do without any of its encoders, and its files spell all of them as transformers does."""
    return replace(encoder, optional=True, naming="hf")


def _flux(name: str, title: str, modelspec: str, *, guided: bool) -> Architecture:
    """Flux.1; `guided`: whether it takes the guidance scale as an input, as the distilled `dev` does."""
    guidance = ("guidance_in.in_layer.weight", "time_text_embed.guidance_embedder.linear_1.weight")
    others = ("txt_norm.", "distilled_guidance_layer.", "double_stream_modulation", "controlnet_")
    ldm = ("double_blocks.0.img_attn.qkv.weight", "img_in.weight")
    diffusers = ("single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight")
    return Architecture(
        name=name,
        title=title,
        context_width=4096,
        encoders=(_t5("text_encoder_2", 256),),
        pooled=PooledPath("vector_in.in_layer.weight", _TEXT_EMBEDDER, width=768, encoders=("clip_l",)),
        entry=EntryLayer(
            *("txt_in", "context_embedder"),
            ldm_needs=(*ldm, *guidance[:1]) if guided else ldm,
            diffusers_needs=(*diffusers, *guidance[1:]) if guided else diffusers,
            look_alike="a Flux model",
            forbidden=others if guided else (*others, *guidance),
        ),
        lora_paths="ldm",
        modelspec=modelspec,
        kohya_version="flux1",
        in_graph=False,
    )


_SGM_L = "conditioner.embedders.0.transformer."
_LABEL = ("label_emb.0.0.weight", "add_embedding.linear_1.weight")
_TEXT_EMBEDDER = "time_text_embed.text_embedder.linear_1.weight"

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        name="sd1",
        title="Stable Diffusion 1.x",
        context_width=768,
        encoders=(_clip_l(-1, True, "cond_stage_model.transformer.", _SGM_L),),
        label_widths=(None,),
        pooled=None,
        lora_paths="diffusers",
        modelspec="stable-diffusion-v1",
        kohya_version="sd_v1",
    ),
    Architecture(
        name="sd2",
        title="Stable Diffusion 2.x",
        context_width=1024,
        encoders=(
            FamilyEncoder(
                name="clip_h",
                width=1024,
                layers=24,
                hidden=-2,
                final_norm=True,
                pad_token=0,
                prefixes=("cond_stage_model.model.", "conditioner.embedders.0.model."),
                naming="open_clip",
                folder="text_encoder",
            ),
        ),
        label_widths=(None, 1536, 2048),  # with a label embedding: unCLIP, whose cross attention still reads text
        pooled=None,
        lora_paths="diffusers",
        modelspec="stable-diffusion-v2",
        kohya_version="sd_v2",
    ),
    Architecture(
        name="sdxl",
        title="Stable Diffusion XL",
        context_width=2048,
        encoders=(_clip_l(-2, False, _SGM_L), _clip_g("text_encoder_2", "conditioner.embedders.1.model.")),
        label_widths=(2816,),
        pooled=PooledPath(*_LABEL, width=2816, encoders=("clip_g",)),
        lora_paths="ldm",
        modelspec="stable-diffusion-xl-v1-base",
        kohya_version="sdxl_base_v1-0",
    ),
    Architecture(
        name="sdxl-refiner",
        title="Stable Diffusion XL refiner",
        context_width=1280,
        encoders=(_clip_g("text_encoder_2", "conditioner.embedders.0.model."),),
        label_widths=(2560,),
        pooled=PooledPath(*_LABEL, width=2560, encoders=("clip_g",)),
        lora_paths="ldm",
        modelspec="stable-diffusion-xl-v1-refiner",
        kohya_version="sdxl_refiner_v1-0",
    ),
    Architecture(
        name="sd3",
        title="Stable Diffusion 3",
        context_width=4096,
        encoders=(
            _in_sd3(_clip_l(-2, False, "text_encoders.clip_l.transformer.", "clip_l.transformer.")),
            _in_sd3(_clip_g("text_encoder_2", "text_encoders.clip_g.transformer.", "clip_g.transformer.")),
            _in_sd3(_t5("text_encoder_3", 77)),
        ),
        pooled=PooledPath("y_embedder.mlp.0.weight", _TEXT_EMBEDDER, width=2048, encoders=("clip_l", "clip_g")),
        entry=EntryLayer(
            *("context_embedder", "context_embedder"),
            ldm_needs=("joint_blocks.0.context_block.attn.qkv.weight", "x_embedder.proj.weight"),
            diffusers_needs=("transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"),
            look_alike="a Stable Diffusion 3 model",
            forbidden=("context_processor.", "controlnet_"),
        ),
        lora_paths="ldm",
        modelspec="stable-diffusion-v3-medium",
        kohya_version="sd3",
        in_graph=False,
    ),
    _flux("flux-dev", "Flux.1 dev", "flux-1-dev", guided=True),
    _flux("flux-schnell", "Flux.1 schnell", "flux-1-schnell", guided=False),
)

GRAPH_FAMILIES = tuple(row for row in ARCHITECTURES if row.in_graph)
"""Those that the ComfyUI nodes edit."""


def by_name(name: str) -> Architecture:
    """The row of that name; an unknown name is answered with the nearest known one."""
    for row in ARCHITECTURES:
        if row.name == name:
            return row
    known = [row.name for row in ARCHITECTURES]
    raise SettingsError(f"Unknown model family {name!r}{suggestion(name, known)}: choose from {', '.join(known)}.")
