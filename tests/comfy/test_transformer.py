"""The image tests' transformer is Stable Diffusion 3 to ComfyUI: detected as such, and the same
function.
"""

from __future__ import annotations

import pytest
import torch

from speed_erase.benchmarks.crowd.transformer import NOISE_LEVELS, TEXT, Transformer, levels_of

pytestmark = pytest.mark.comfy


def test_comfyui_takes_the_transformer_for_sd3_and_computes_the_same(comfyui) -> None:
    import comfy.model_sampling
    import comfy.samplers
    from comfy.sd import load_diffusion_model_state_dict

    source = torch.Generator().manual_seed(0)
    ours = Transformer(depth=2, side=4)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=source)
    state = {key: value.detach().clone() for key, value in ours.state_dict().items()}
    loaded = load_diffusion_model_state_dict(state, model_options={"dtype": torch.float32})
    assert type(loaded.model.model_config).__name__ == "SD3"

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source)

    x, context, pooled = drawn(2, 16, 8, 8), drawn(2, 11, TEXT), drawn(2, TEXT)
    levels = torch.tensor([0.9, 0.2])
    theirs = loaded.model.diffusion_model
    with torch.no_grad():
        want = theirs(x, NOISE_LEVELS * levels, context=context, y=pooled)
        assert torch.allclose(ours(x, levels, context, pooled), want, atol=1e-4)
        assert want.std() > 0.1
    sampling = loaded.get_model_object("model_sampling")
    want = comfy.samplers.calculate_sigmas(sampling, "simple", 5)
    assert torch.allclose(levels_of(5, sampling.shift), want, atol=0.01)
