"""Two painters erased in the real ComfyUI by the package's own nodes, on an untrained or random
CLIP-L of full size.

The erased model is judged from outside: by prompts and names that no release of the package knows,
through ComfyUI's own text encoding and its own patches. So an earlier release can be judged alike
(`--package`).

ComfyUI's modules have names like `nodes`, which this project's folder also has; so the erasing runs
in a child process that starts inside the checkout. Of this package the child imports the nodes
alone, whichever release they come from.
"""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CONCEPTS = {"Vincent van Gogh": "art", "Claude Monet": "art"}
ARTISTS, UNSEEN = 300, 60
"""Names to keep, and further ones to judge by."""
PROMPTS = (
    "two empty chairs on a balcony, as seen by {}",
    "a stamp in honour of {}",
    "my grandmother's kitchen, after {}",
)
PADDING, END = (30, 45, 60, 76), 49407
"""Rows to judge by, besides the last of the name and the end token's: there a target and its anchor
correspond.
"""
FIRST, NOW = "the first", "now"
"""Releases."""
DEFAULT = "default"
"""In place of a budget: whatever the node does by itself."""


def measured(
    checkpoint: Path, comfyui: Path, package: Path | None, budgets: list[str]
) -> dict[str, dict[str, float]]:
    """What is left and what drifts, by budget. `package`: the folder that holds another release as
    `speed_erase`.
    """
    root = Path(__file__).resolve().parents[2]
    paths = [str(package)] if package else []
    surroundings = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, str(root), os.environ.get("PYTHONPATH", "")])
    }
    out = checkpoint.parent / "in_comfy.safetensors"
    command = [
        sys.executable,
        "-m",
        "benchmarks.frontier.in_comfy",
        str(checkpoint),
        str(out),
        *budgets,
    ]
    subprocess.run(command, cwd=comfyui, env=surroundings, check=True)
    found = load_file(out)
    return {budget: _judged(found, budget) for budget in budgets}


def _judged(found: dict[str, Tensor], budget: str) -> dict[str, float]:
    """Means over concepts or names, and over layers."""
    from speed_erase.speed_ops.certificate.measure import left_of

    def rows(names: Iterable[str]) -> list[Tensor]:
        return [found[f"rows.{name}"].double() for name in names]

    unseen = [value.double() for key, value in found.items() if key.startswith("rows.unseen.")]
    results: dict[str, list[float]] = {"left": [], "to_go": [], "drift": []}
    for key in (key for key in found if key.startswith("weight.")):
        weight, change = found[key].double(), found[f"{budget}.{key}"].double()
        for target, anchor in zip(rows(CONCEPTS), rows(CONCEPTS.values()), strict=True):
            wanted = (anchor - target) @ weight.T
            parts = left_of(wanted, target @ change.T - wanted)
            for name, part in zip(("left", "to_go"), parts, strict=True):
                results[name].append(math.sqrt(float(part.sum() / wanted.square().sum())))
        results["drift"] += [
            float((own @ change.T).norm() / (own @ weight.T).norm()) for own in unseen
        ]
    return {name: sum(values) / len(values) for name, values in results.items()}


def erase_inside(checkpoint: Path, out: Path, budgets: list[str]) -> None:
    """In the child: erases once for each budget and writes weights, changes and the rows to judge
    by.
    """
    from comfy.cli_args import args

    args.cpu = True
    from comfy.lora import calculate_weight
    from comfy.sd import load_checkpoint_guess_config

    model, clip = load_checkpoint_guess_config(str(checkpoint), output_vae=False)[:2]
    own = _own_nodes()
    listed = "\n".join(f"{target} -> {anchor}" for target, anchor in CONCEPTS.items())
    concepts = own["ConceptList"].execute(text=listed, kind="style").result[0]
    every = own["RetainSetLoader"].execute(builtin="artists", text="").result[0]
    retain = own["RetainSetLoader"].execute(builtin="artists", text="", limit=ARTISTS).result[0]
    state = model.model.state_dict()
    weights = {
        key: value.float() for key, value in state.items() if key.endswith("attn2.to_v.weight")
    }
    found = {f"weight.{key}": value for key, value in weights.items()}
    for budget in budgets:
        given = {} if budget == DEFAULT else {"settings": {"drift_budget": float(budget)}}
        widgets = {"preset": "auto", "strength": 1.0, "seed": 0, "retain": retain, **given}
        outputs = (
            own["SpeedErase"].execute(model=model, clip=clip, concepts=concepts, **widgets).result
        )
        print(outputs[3], flush=True)
        for key, weight in weights.items():
            patched = calculate_weight(outputs[0].patches.get(key, []), weight.clone(), key)
            found[f"{budget}.weight.{key}"] = patched - weight
    known = {*retain.names, *CONCEPTS}
    unseen = [name for name in every.names if name not in known][-UNSEEN:]
    names = {name: name for name in (*CONCEPTS, *CONCEPTS.values())} | {
        f"unseen.{name}": name for name in unseen
    }
    for label, name in names.items():
        found[f"rows.{label}"] = torch.cat([_rows(clip, prompt.format(name)) for prompt in PROMPTS])
    save_file({key: value.contiguous().clone() for key, value in found.items()}, out)


def _rows(clip: Any, prompt: str) -> Tensor:
    """Some rows of a prompt that ends with a name, as ComfyUI encodes it."""
    import nodes

    tokens = [pair[0] for pair in clip.tokenize(prompt)["l"][0]]
    end = tokens.index(END)
    return nodes.CLIPTextEncode().encode(clip, prompt)[0][0][0][0, [end - 1, end, *PADDING]]


def _own_nodes() -> dict[str, Any]:
    """The package's nodes by their id, wherever its release keeps them."""
    from comfy_api.latest import io

    import speed_erase.nodes as package

    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
    return {
        node.define_schema().node_id: node
        for node in io.ComfyNode.__subclasses__()
        if _is_own(node)
    }


def _is_own(node: type) -> bool:
    return node.__module__.startswith("speed_erase.")


if __name__ == "__main__":
    with torch.inference_mode():
        erase_inside(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
