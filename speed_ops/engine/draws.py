"""Random numbers that depend on the seed and on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(seed: int, purpose: str) -> torch.Generator:
    """A generator for each purpose, such as a layer's key: no order of work changes a draw."""
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=7).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "big"))


def normal(shape: tuple[int, ...], source: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal draws, made on the host: the same on every device.

    Args:
        shape: Of the result.
        source: Generates them.
        like: Has the type and device of the result.
    """
    return torch.randn(shape, generator=source, dtype=torch.float64, device="cpu").to(like)


def uniform(shape: tuple[int, ...], source: torch.Generator, like: Tensor) -> Tensor:
    """Uniform draws in [0, 1), made on the host: the same on every device.

    Args:
        shape: Of the result.
        source: Generates them.
        like: Has the type and device of the result.
    """
    return torch.rand(shape, generator=source, dtype=torch.float64, device="cpu").to(like)


def permutation(count: int, source: torch.Generator) -> list[int]:
    """A shuffled `range(count)`."""
    return torch.randperm(count, generator=source, device="cpu").tolist()


def shuffle(count: int, seed: int, like: Tensor) -> Tensor:
    """Each kept row's position in a shuffled list.

    Args:
        count: Number of kept rows.
        seed: The erasure's seed.
        like: Has the device of the result.
    """
    source = generator(seed, "shuffle of kept rows")
    return torch.tensor(permutation(count, source), dtype=torch.long, device=like.device)
