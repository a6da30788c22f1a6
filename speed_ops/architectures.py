"""Everything that is known about a model from its keys and shapes: its family, the layers to edit, its text encoders.

A family is recognised by which layers a file holds and how wide they are, never by its name. To add one, add a row to
`families`; a family whose text enters neither at U-Net cross attention nor at one entry layer also needs its own branch
in `detect` and `layers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from .errors import SettingsError, UnsupportedModelError
from .families import ARCHITECTURES, GRAPH_FAMILIES, by_name
from .files import entry_keys, unet_keys
from .files.unet_keys import Shapes
from .files.unet_paths import attention_paths
from .registry import Architecture, EntryLayer, LayerKey, PooledPath, TextEncoder

__all__ = [
    "ARCHITECTURES",
    "GRAPH_FAMILIES",
    "Architecture",
    "EntryLayer",
    "LayerKey",
    "PooledPath",
    "TextEncoder",
    "Which",
    "by_name",
    "detect",
    "encoder_keys",
    "layers",
    "spelling",
]

Which = Literal["V", "K", "KV"]


def detect(shapes: Shapes, families: Sequence[Architecture] = ARCHITECTURES) -> Architecture:
    """The family of a checkpoint, of a bare diffusion model, or of a diffusers folder, in either key layout."""
    found = unet_keys.find_unet(shapes)
    if found is not None:
        return _detect_unet(shapes, found[1], families)
    for row in families:
        if row.entry is not None and entry_keys.find_entry(shapes, row):
            return row
    raise _refusal(entry_keys.shortfall(shapes, families) or unet_keys.what_else(shapes), families)


def _detect_unet(shapes: Shapes, unet: Shapes, families: Sequence[Architecture]) -> Architecture:
    if reason := unet_keys.obstacle(shapes, unet):
        raise _refusal(reason, families)
    widths = unet_keys.context_widths(unet)
    label = next((unet[key][-1] for key in unet_keys.LABEL_KEYS if unet.get(key)), None)
    for row in families:
        if widths == {row.context_width} and label in row.label_widths:
            return row
    if 0 in widths:
        packed = "The cross-attention weights are packed by a quantiser: use the file in fp16, bf16 or fp32"
        raise _refusal(packed, families)
    seen = " and ".join(map(str, sorted(widths))) + (f" with a label embedding of width {label}" if label else "")
    raise _refusal(f"This is a U-Net whose cross attention reads embeddings of width {seen}", families)


def _refusal(seen: str, families: Sequence[Architecture] = ARCHITECTURES) -> UnsupportedModelError:
    titles = ", ".join(row.title for row in families)
    return UnsupportedModelError(f"{seen}. Supported are {titles}.")


def layers(architecture: Architecture, shapes: Shapes, which: Which = "V") -> list[LayerKey]:
    """The layers to edit, in the order of the model: input, middle, output; K before V within a block.

    A model that all text enters at one layer has that one, whatever is asked for: K and V come from it alike.
    """
    if which not in ("V", "K", "KV"):
        raise SettingsError(f"Layers must be V, K or KV, not {which!r}.")
    if architecture.entry is not None:
        return [_entry_layer(architecture, shapes)]
    return _attention_layers(architecture, shapes, which)


def _entry_layer(architecture: Architecture, shapes: Shapes) -> LayerKey:
    entry, file_key = architecture.entry, entry_keys.find_entry(shapes, architecture)
    if entry is None or file_key is None:
        raise _refusal(f"This is not a {architecture.title} model")
    ldm, diffusers = entry.ldm_path, entry.diffusers_path
    names = (f"diffusion_model.{ldm}.weight", file_key, ldm, diffusers, f"lora_unet_{ldm}")
    outputs, width = shapes[file_key]
    return LayerKey(*names, "entry", (outputs, width))


def _attention_layers(architecture: Architecture, shapes: Shapes, which: Which) -> list[LayerKey]:
    found_unet = unet_keys.find_unet(shapes)
    if found_unet is None:
        raise _refusal(unet_keys.what_else(shapes))
    prefix, unet = found_unet
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


def spelling(encoder: TextEncoder, names: Iterable[str]) -> Literal["hf", "open_clip"] | None:
    """How these names, relative to one encoder, are spelled; None when they are of an encoder of another kind."""
    names = list(names)
    if not encoder.causal:
        return "hf" if any(name.startswith("encoder.block.") for name in names) else None
    if any(name.startswith("transformer.resblocks.") for name in names):
        return "open_clip"
    return "hf" if any(".layers." in name for name in names) else None


def encoder_keys(encoder: TextEncoder, keys: Iterable[str]) -> tuple[Literal["hf", "open_clip"], dict[str, str]]:
    """Spelling and {name inside the encoder: file key} of one text encoder; empty when the file does not hold it.

    CLIP's names in `hf` spelling always begin with `text_model.` or are `text_projection.weight`, also for old files
    that leave `text_model.` out.
    """
    keys = list(keys)
    for prefix in (*encoder.prefixes, f"{encoder.folder}/"):
        found = {key[len(prefix) :]: key for key in keys if key.startswith(prefix)}
        if naming := spelling(encoder, found):
            if naming == "hf" and encoder.causal:
                bare = ("embeddings.", "encoder.", "final_layer_norm.")
                found = {f"text_model.{name}" if name.startswith(bare) else name: key for name, key in found.items()}
            return naming, found
    return encoder.naming, {}
