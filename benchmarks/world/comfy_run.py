"""Load and sample the exported checkpoint with the real ComfyUI, in process, by its stock nodes.

ComfyUI's modules have names like `nodes`, which this project's folder also has; so these commands
run in a child process that starts inside the checkout and finds this package through PYTHONPATH
(`hand_over`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .export import CHECKPOINT
from .model import GUIDANCE, STEPS
from .world import LATENT

SAMPLER, SCHEDULER = "euler", "normal"
TO_V = "attn2.to_v.weight"


def hand_over(checkout: Path | None) -> None:
    """If ComfyUI is not importable here, run this same command inside its checkout and exit with
    its result.
    """
    if importlib.util.find_spec("comfy") is not None:
        return
    if checkout is None or not (checkout / "comfy" / "sd.py").exists():
        raise SystemExit("No ComfyUI found: give its folder with --comfy DIR or in COMFYUI_PATH.")
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "benchmarks.world", *sys.argv[1:]]
    paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH")) if path)
    surroundings = os.environ | {"PYTHONPATH": paths, "SPEED_WORLD_FROM": os.getcwd()}
    sys.exit(subprocess.run(command, cwd=checkout, env=surroundings, check=False).returncode)


class ComfyWorld:
    """The world's checkpoint as CheckpointLoaderSimple loads it; prompts by its CLIP, pictures by
    KSampler.
    """

    def __init__(self, folder: Path) -> None:
        from comfy.cli_args import args

        args.cpu = True
        import folder_paths

        import nodes

        folder_paths.add_model_folder_path("checkpoints", str(folder / "checkpoints"))
        self._nodes: Any = nodes
        with torch.inference_mode():
            self.model, self.clip, self.vae = nodes.CheckpointLoaderSimple().load_checkpoint(
                CHECKPOINT
            )
            self._empty = self.rows([""])
        # Taken before anything is sampled: ComfyUI patches the loaded weights in place.
        state = self.model.model.state_dict()
        self._values = {key: value.clone() for key, value in state.items() if key.endswith(TO_V)}

    def rows(self, texts: Sequence[str], batch: int = 32) -> Tensor:
        """All 77 rows of each prompt, (n, 77, 768)."""
        parts = []
        with torch.inference_mode():
            for begin in range(0, len(texts), batch):
                sections = [
                    self.clip.tokenize(text)["l"][0] for text in texts[begin : begin + batch]
                ]
                parts.append(
                    self.clip.encode_from_tokens({"l": sections}).reshape(len(sections), -1, 768)
                )
        return torch.cat(parts)

    def edited(self, weights: Mapping[str, Tensor]) -> Any:
        """A model whose given `attn2.to_v` weights are replaced, as patches on a clone; the loaded
        one stays.
        """
        clone = self.model.clone()
        clone.add_patches(
            {
                key: ("diff", (new.float() - self._values[key].float(),))
                for key, new in weights.items()
            }
        )
        return clone

    def sample(self, rows: Tensor, seed: int, model: Any = None, batch: int = 64) -> Tensor:
        """One picture a prompt, (n, 3, 128, 128) in [-1, 1]; equal seeds and order give every model
        equal noise.
        """
        done = []
        with torch.inference_mode():
            for index, part in enumerate(rows.split(batch)):
                latent = {"samples": torch.zeros(len(part), 4, LATENT, LATENT)}
                (out,) = self._nodes.KSampler().sample(
                    model or self.model, seed + index, STEPS, GUIDANCE, SAMPLER, SCHEDULER,
                    [[part, {}]], [[self._empty, {}]], latent,
                )  # fmt: skip
                (images,) = self._nodes.VAEDecode().decode(self.vae, out)
                done.append(images.permute(0, 3, 1, 2).float() * 2 - 1)
        return torch.cat(done).clone()
