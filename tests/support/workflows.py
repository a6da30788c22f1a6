"""API-format workflows for the server tests, put together from small pieces."""

from __future__ import annotations

from typing import Any

from graph import RETAINED

Workflow = dict[str, dict[str, Any]]


def node(class_type: str, /, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def erasing(
    text: str = "Van Gogh -> art",
    checkpoint: str = "tiny.safetensors",
    loader: str = "TinyCheckpoint",
    retain: str = RETAINED,
    **widgets: Any,
) -> Workflow:
    """Loader (1), list (2), retain set (3), SpeedErase (4), its report (5)."""
    name = "ckpt_name" if loader == "CheckpointLoaderSimple" else "name"
    settings = {"preset": "few", "strength": 1.0, "seed": 0, **widgets}
    return {
        "1": node(loader, **{name: checkpoint}),
        "2": node("ConceptList", text=text, kind="style", file="none"),
        "3": node(
            "RetainSetLoader",
            builtin="none",
            text=retain,
            file="none",
            column="",
            kind="style",
            limit=0,
        ),
        "4": node(
            "SpeedErase",
            model=["1", 0],
            clip=["1", 1],
            concepts=["2", 0],
            retain=["3", 0],
            **settings,
        ),
        "5": node("SpeedReport", erasure=["4", 2]),
    }


def sampling(
    model: list[Any], prompt: str = "Van Gogh", seed: int = 1, start: int = 10
) -> Workflow:
    """Prompts, KSampler, decode and save, from node `start` on; the loader is node 1."""
    a, b, c, d, e, f = (str(start + i) for i in range(6))
    return {
        a: node("CLIPTextEncode", clip=["1", 1], text=prompt),
        b: node("CLIPTextEncode", clip=["1", 1], text=""),
        c: node("EmptyLatentImage", width=64, height=64, batch_size=1),
        d: node(
            "KSampler",
            model=model,
            positive=[a, 0],
            negative=[b, 0],
            latent_image=[c, 0],
            seed=seed,
            steps=2,
            cfg=4.0,
            sampler_name="euler",
            scheduler="normal",
            denoise=1.0,
        ),
        e: node("VAEDecode", samples=[d, 0], vae=["1", 2]),
        f: node("SaveImage", images=[e, 0], filename_prefix=f"picture{start}"),
    }


def saving(**widgets: Any) -> Workflow:
    """SaveErasedModel as node 6 behind node 4."""
    choice = {
        "filename_prefix": "speed/erased",
        "lora": True,
        "checkpoint": False,
        "diffusion_model": False,
        "recipe": True,
        "dtype": "same as source",
        "overwrite": False,
    }
    return {"6": node("SaveErasedModel", erasure=["4", 2], **{**choice, **widgets})}
