"""The ComfyUI workflow that generates one image. Stock nodes only: any server can run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .backend import ModelKind, ModelRef
from .setup import ImageSpec, Sampling

Graph = dict[str, dict[str, Any]]
OUTPUT_NODE = "9"


class Loader(NamedTuple):
    """ComfyUI's stock node for a kind of model."""

    node: str
    widget: str
    """The input that takes the file's name."""
    folder: str
    """Below models/."""


LOADERS: dict[ModelKind, Loader] = {
    "checkpoint": Loader("CheckpointLoaderSimple", "ckpt_name", "checkpoints"),
    "diffusers": Loader("DiffusersLoader", "model_path", "diffusers"),
    "lora": Loader("LoraLoader", "lora_name", "loras"),
    "unet": Loader("UNETLoader", "unet_name", "diffusion_models"),
    "clip": Loader("CLIPLoader", "clip_name", "text_encoders"),
}


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """One node of a graph in the server's format."""
    return {"class_type": class_type, "inputs": inputs}


def text_to_image(
    model: ModelRef, names: Mapping[tuple[str, str], str], spec: ImageSpec, sampling: Sampling
) -> Graph:
    """The graph of one image; node `OUTPUT_NODE` returns it.

    Args:
        model: What generates it.
        names: (kind, name) of a model -> its name in the server's spelling.
        spec: Prompt and seed. Brackets in prompts are literal.
        sampling: Everything else.
    """

    def load(ref: ModelRef, **inputs: Any) -> dict[str, Any]:
        loader = LOADERS[ref.kind]
        return node(loader.node, **{loader.widget: names[ref.kind, ref.name]}, **inputs)

    unet, clip, vae = ["1", 0], ["1", 1], ["1", 2]
    graph = {"1": load(model.base or model)}
    if model.base is not None and model.kind == "lora":
        strengths = {"strength_model": model.strength, "strength_clip": model.strength}
        graph["2"] = load(model, model=unet, clip=clip, **strengths)
        unet, clip = ["2", 0], ["2", 1]
    elif model.base is not None and model.kind == "unet":
        graph["2"] = load(model, weight_dtype="default")
        unet = ["2", 0]
    elif model.base is not None:
        graph["2"] = load(model, type="stable_diffusion")
        clip = ["2", 0]
    return graph | {
        "4": node("CLIPTextEncode", clip=clip, text=_literal(spec.prompt)),
        "5": node("CLIPTextEncode", clip=clip, text=_literal(sampling.negative)),
        "6": node("EmptyLatentImage", width=sampling.width, height=sampling.height, batch_size=1),
        "7": node(
            "KSampler",
            model=unet,
            positive=["4", 0],
            negative=["5", 0],
            latent_image=["6", 0],
            seed=spec.seed,
            steps=sampling.steps,
            cfg=sampling.cfg,
            sampler_name=sampling.sampler,
            scheduler=sampling.scheduler,
            denoise=1.0,
        ),
        "8": node("VAEDecode", samples=["7", 0], vae=vae),
        OUTPUT_NODE: node("PreviewImage", images=["8", 0]),
    }


def _literal(text: str) -> str:
    """Escapes brackets, which weigh words in ComfyUI, and `embedding:`, which loads a file."""
    return text.replace("(", "\\(").replace(")", "\\)").replace("embedding:", "embedding :")
