"""Never Draw on models that take no negative prompt, at CFG 1, in the real ComfyUI."""

from __future__ import annotations

from typing import Any

import mini_families as minis
import pytest
import torch
from graph import conditioning, run
from watching import at_layers, name_rows

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

BLOCKED, REPLACEMENT, OTHER = "Van Gogh", "art", "Claude Monet"
STEPS = 3


@pytest.fixture(scope="module", params=["flux-dev", "flux2-klein-4b", "z-image"])
def blocked(request: pytest.FixtureRequest, comfyui, own_cache) -> tuple[str, Any, Any, Any]:
    """A family, its MODEL and CLIP, and the MODEL from Never Draw."""
    name = request.param
    if not minis.in_this_host(name):
        pytest.skip(f"this ComfyUI has no {name}")
    model, clip = minis.load_model(name), minis.load_text(name)
    return name, model, clip, never_draw(model, clip)


def never_draw(model: Any, clip: Any, text: str = f"{BLOCKED}, fish", strength: float = 1.0) -> Any:
    from speed_erase.nodes.speed_never_draw import SpeedNeverDraw

    return run(SpeedNeverDraw, model=model, clip=clip, text=text, strength=strength)[0]


def sample(name: str, model: Any, clip: Any, prompt: str) -> tuple[torch.Tensor, int]:
    """A latent at CFG 1, and how often the model was run for it."""
    import comfy.sample

    shape = (1, model.get_model_object("latent_format").latent_channels, *minis.MINIS[name].size)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    passes = []
    network = model.model.diffusion_model
    handle = network.register_forward_hook(lambda *given: passes.append(1))
    try:
        with torch.inference_mode():
            pair = [conditioning(clip, text) for text in (prompt, "")]
            latent = comfy.sample.sample(
                *(model, noise, STEPS, 1.0, "euler", "simple", *pair, torch.zeros(shape)),
                disable_pbar=True,
            )
    finally:
        handle.remove()
    return latent.clone(), len(passes)


def test_it_acts_at_cfg_1_and_costs_no_pass(blocked) -> None:
    name, model, clip, erased = blocked
    first, steps = sample(name, model, clip, BLOCKED)
    changed, passes = sample(name, erased, clip, BLOCKED)
    assert passes == steps == STEPS, "one pass per step, with and without"
    assert bool(torch.isfinite(changed).all()) and not torch.equal(first, changed)
    again, _ = sample(name, model, clip, BLOCKED)
    assert torch.equal(first, again), "the input model stays as it was"


def test_what_is_blocked_moves_to_its_replacement_and_other_names_move_less(blocked) -> None:
    from speed_erase.nodes.host.wiring import wire

    name, model, clip, erased = blocked
    with wire(model, clip, "V", ()) as (editable, reader, _):
        keys = list(editable.weights)
        rows = {text: name_rows(reader.encoder, text) for text in (BLOCKED, REPLACEMENT, OTHER)}

    def outputs(patched: Any, text: str) -> dict[str, torch.Tensor]:
        passes = at_layers(name, patched, clip, keys, text)
        return {key: out[rows[text]] for key, (_, out) in passes.items()}

    before, after = outputs(model, BLOCKED), outputs(erased, BLOCKED)
    kept, kept_after = outputs(model, OTHER), outputs(erased, OTHER)
    goal = outputs(model, REPLACEMENT)
    for key in keys:
        assert (after[key] - goal[key]).norm() < 0.9 * (before[key] - goal[key]).norm()
        change = (after[key] - before[key]).norm() / before[key].norm()
        side_effect = (kept_after[key] - kept[key]).norm() / kept[key].norm()
        assert side_effect < 0.6 * change, (name, key)


def test_nothing_to_block_changes_nothing(blocked) -> None:
    _, model, clip, _ = blocked
    assert never_draw(model, clip, text="") is model
    assert never_draw(model, clip, strength=0.0) is model
