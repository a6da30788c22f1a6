"""The registry: one frozen row per model family, and everything that is known about a model from its keys and shapes.

A family is recognised by which layers a file holds and how wide they are, never by its name. To add a family, add a
row; a family whose text enters elsewhere than at U-Net cross attention also needs its own branch in `layers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .errors import SettingsError, UnsupportedModelError
from .files import unet_keys
from .files.nearest import suggestion
from .files.unet_keys import Shapes
from .files.unet_paths import attention_paths

Which = Literal["V", "K", "KV"]


@dataclass(frozen=True)
class TextEncoder:
    """One text encoder as a family uses it."""

    name: Literal["clip_l", "clip_h", "clip_g"]
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
    """How the keys after that prefix are spelled; in a diffusers folder it is always `hf`."""
    folder: str
    """Component folder in the diffusers layout."""

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
    encoder: str
    columns: int


@dataclass(frozen=True)
class Architecture:
    """A model family: where text enters it and how that text is made."""

    name: str
    title: str
    context_width: int
    """Width of the embeddings that cross attention reads: the encoders' widths side by side."""
    encoders: tuple[TextEncoder, ...]
    """In column order: the first encoder's embedding fills the first columns."""
    label_widths: tuple[int | None, ...]
    """Input widths of the label embedding that occur in this family; None: it has none."""
    pooled: PooledPath | None
    lora_paths: Literal["ldm", "diffusers"]
    """Which spelling of a layer's path kohya's trainer writes for this family, and so every program reads."""
    modelspec: str
    kohya_version: str

    def columns(self, encoder: str) -> slice:
        """The columns of the context that `encoder` fills."""
        start = 0
        for row in self.encoders:
            if row.name == encoder:
                return slice(start, start + row.width)
            start += row.width
        known = [row.name for row in self.encoders]
        raise SettingsError(f"{self.title} has no text encoder {encoder!r}; it has {', '.join(known)}.")


@dataclass(frozen=True)
class LayerKey:
    """One cross-attention K or V layer under all its names."""

    canonical: str
    """Key inside a loaded model, the same for every file layout: `diffusion_model.<ldm path>.weight`."""
    file_key: str
    """Key in the file (or, for a folder, component and key) that was examined."""
    ldm_path: str
    diffusers_path: str
    lora_base: str
    """kohya's name of the layer, to which `.lora_up.weight` is appended."""
    kind: Literal["K", "V"]
    shape: tuple[int, int]
    """Outputs x context width."""


def _clip_l(hidden: int, final_norm: bool, *prefixes: str) -> TextEncoder:
    return TextEncoder("clip_l", 768, 12, hidden, final_norm, 49407, prefixes, "hf", "text_encoder")


def _clip_g(folder: str, *prefixes: str) -> TextEncoder:
    return TextEncoder("clip_g", 1280, 32, -2, False, 0, prefixes, "open_clip", folder)


_SGM_L = "conditioner.embedders.0.transformer."
_LABEL = ("label_emb.0.0.weight", "add_embedding.linear_1.weight")

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
            TextEncoder(
                *("clip_h", 1024, 24, -2, True, 0),
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
        pooled=PooledPath(*_LABEL, width=2816, encoder="clip_g", columns=1280),
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
        pooled=PooledPath(*_LABEL, width=2560, encoder="clip_g", columns=1280),
        lora_paths="ldm",
        modelspec="stable-diffusion-xl-v1-refiner",
        kohya_version="sdxl_refiner_v1-0",
    ),
)


def by_name(name: str) -> Architecture:
    """The row of that name; an unknown name is answered with the nearest known one."""
    for row in ARCHITECTURES:
        if row.name == name:
            return row
    known = [row.name for row in ARCHITECTURES]
    raise SettingsError(f"Unknown model family {name!r}{suggestion(name, known)}; known are {', '.join(known)}.")


def detect(shapes: Shapes) -> Architecture:
    """The family of a checkpoint, of a bare diffusion model, or of a diffusers folder, in either key layout."""
    _, unet = _unet(shapes)
    if reason := unet_keys.obstacle(shapes, unet):
        raise _refusal(reason)
    widths = unet_keys.context_widths(unet)
    label = next((unet[key][-1] for key in unet_keys.LABEL_KEYS if unet.get(key)), None)
    for row in ARCHITECTURES:
        if widths == {row.context_width} and label in row.label_widths:
            return row
    if 0 in widths:
        raise _refusal("The cross-attention weights are packed by a quantiser: use the file in fp16, bf16 or fp32")
    seen = " and ".join(map(str, sorted(widths))) + (f" with a label embedding of width {label}" if label else "")
    raise _refusal(f"This is a U-Net whose cross attention reads embeddings of width {seen}")


def _unet(shapes: Shapes) -> tuple[str, dict[str, tuple[int, ...]]]:
    found = unet_keys.find_unet(shapes)
    if found is None:
        raise _refusal(unet_keys.what_else(shapes))
    return found


def _refusal(seen: str) -> UnsupportedModelError:
    titles = ", ".join(row.title for row in ARCHITECTURES)
    return UnsupportedModelError(f"{seen}. Supported are {titles}.")


def layers(architecture: Architecture, shapes: Shapes, which: Which = "V") -> list[LayerKey]:
    """The layers to edit, in the order of the model: input, middle, output; K before V within a block."""
    if which not in ("V", "K", "KV"):
        raise SettingsError(f"Layers must be V, K or KV, not {which!r}.")
    prefix, unet = _unet(shapes)
    to_diffusers = attention_paths(unet)
    to_ldm = {diffusers: ldm for ldm, diffusers in to_diffusers.items()}
    found = []
    for key, shape in unet.items():
        match = unet_keys.ATTENTION.fullmatch(key)
        if match is None or (kind := match["kind"].upper()) not in which:
            continue
        if len(shape) != 2 or shape[1] != architecture.context_width:
            wanted = f"outputs x {architecture.context_width}"
            raise _refusal(f"Layer {prefix}{key} has shape {shape}, not {wanted} as {architecture.title} needs")
        ldm = to_ldm.get(match["block"], match["block"]) + match["rest"]
        diffusers = to_diffusers.get(match["block"], match["block"]) + match["rest"]
        path = ldm if architecture.lora_paths == "ldm" else diffusers
        names = (f"diffusion_model.{ldm}.weight", prefix + key, ldm, diffusers, "lora_unet_" + path.replace(".", "_"))
        found.append(LayerKey(*names, "K" if kind == "K" else "V", (shape[0], shape[1])))
    return sorted(found, key=lambda layer: unet_keys.model_order(layer.ldm_path))


def encoder_keys(encoder: TextEncoder, keys: Iterable[str]) -> tuple[Literal["hf", "open_clip"], dict[str, str]]:
    """Spelling and {name inside the encoder: file key} of one text encoder; empty when the file does not hold it.

    Names in `hf` spelling always begin with `text_model.` or are `text_projection.weight`, also for old files that
    leave `text_model.` out.
    """
    keys = list(keys)
    naming: Literal["hf", "open_clip"]
    for prefix in (*encoder.prefixes, f"{encoder.folder}/"):
        naming = "hf" if prefix.endswith("/") else encoder.naming
        found = {key[len(prefix) :]: key for key in keys if key.startswith(prefix)}
        if found and naming == "hf":
            bare = ("embeddings.", "encoder.", "final_layer_norm.")
            found = {f"text_model.{name}" if name.startswith(bare) else name: key for name, key in found.items()}
        if found:
            return naming, found
    return encoder.naming, {}
