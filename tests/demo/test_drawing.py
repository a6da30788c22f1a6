"""The small model in plain torch: Stable Diffusion 1.x's keys, narrow parts that equal whole ones,
and the sampler.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from speed_erase.speed_ops.demo.autoencoder import Autoencoder, widened
from speed_erase.speed_ops.demo.packed_model import fold_channels, repeat_channels
from speed_erase.speed_ops.demo.unet import SIGMAS, UNet, noise_for, sample


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in module.state_dict().items()}


@pytest.fixture(scope="module")
def narrow() -> UNet:
    torch.manual_seed(0)
    return UNet(2).eval()


@pytest.fixture(scope="module")
def full(narrow: UNet) -> UNet:
    """The same function with every channel twice."""
    unet = UNet().eval()
    weights = narrow.state_dict()
    unet.load_state_dict(
        {key: repeat_channels(weights[key], shape) for key, shape in shapes(unet).items()}
    )
    return unet


def test_the_unet_has_the_shapes_that_tell_stable_diffusion_1(full: UNet) -> None:
    sizes = shapes(full)
    values = [key for key in sizes if key.endswith("attn2.to_v.weight")]
    assert len(values) == 4 and all(sizes[key] == (320, 768) for key in values)
    assert sizes["input_blocks.0.0.weight"] == (320, 4, 3, 3) and sizes["out.2.weight"] == (
        4,
        320,
        3,
        3,
    )


@torch.no_grad()
def test_repeating_channels_changes_nothing(narrow: UNet, full: UNet) -> None:
    x, steps, rows = torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 77, 768)
    expected = narrow(x, steps, rows)
    torch.testing.assert_close(full(x, steps, rows), expected, atol=2e-5, rtol=1e-4)
    assert expected.std() > 0.01, "an output of zeros would prove nothing"


def test_folding_undoes_repeating(narrow: UNet, full: UNet) -> None:
    narrow_weights, wide = narrow.state_dict(), full.state_dict()
    for key, value in narrow_weights.items():
        torch.testing.assert_close(fold_channels(wide[key], tuple(value.shape)), value)


@torch.no_grad()
def test_a_narrow_autoencoder_equals_the_one_of_64_channels() -> None:
    torch.manual_seed(1)
    small, large = Autoencoder((8, 8, 16, 24), (24, 16, 8, 8)).eval(), Autoencoder().eval()
    weights = dict(widened(small.state_dict()))
    assert (
        float(weights.pop("vae_scale")) == pytest.approx(0.18215)
        and float(weights.pop("vae_shift")) == 0
    )
    large.load_state_dict(weights)
    pictures = torch.rand(2, 3, 32, 32)
    latents = small.encode(pictures)
    assert latents.shape == (2, 4, 4, 4)
    torch.testing.assert_close(large.encode(pictures), latents, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(large.decode(latents), small.decode(latents), atol=1e-5, rtol=1e-4)


def test_the_sampler_finds_what_a_perfect_denoiser_knows() -> None:
    assert SIGMAS[-1] == pytest.approx(14.6146, rel=1e-3) and SIGMAS[0] == pytest.approx(
        0.0292, rel=1e-2
    )
    picture, steps_done = torch.randn(1, 4, 16, 16), []

    class Knows(nn.Module):
        """Right for one picture, whatever the prompt; the steps in between lie between two known
        levels of noise.
        """

        def forward(self, x: Tensor, steps: Tensor, context: Tensor) -> Tensor:
            sigma = SIGMAS[steps][:, None, None, None]
            return (x * (1 + sigma**2).sqrt() - picture) / sigma

    rows = torch.zeros(1, 77, 768)
    drawn = sample(Knows(), rows, rows[0], noise_for([7], 16), 12, 3.0, steps_done.append)  # type: ignore[arg-type]
    assert torch.allclose(drawn, picture, atol=0.03)
    assert steps_done == list(range(1, 13))


def test_noise_belongs_to_its_seed() -> None:
    first, second = noise_for([5, 6], 16), noise_for([6, 5], 16)
    assert (
        torch.equal(first[0], second[1])
        and torch.equal(first[1], second[0])
        and not torch.equal(first[0], first[1])
    )
