"""What a model does to each row of text before the layers that an erasure edits.

Some models send every token through a norm, or a small network, before any layer reads it. That is
a fixed function of each row by itself: rows pushed through it are what the edited layers receive,
and an edit made from them is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import UnsupportedModelError
from ..files.tensors import tensors_hash
from ..models.architecture import PushRule


class Push:
    """The function, with one model's weights."""

    def __init__(self, rule: PushRule, weights: Mapping[str, Tensor]) -> None:
        """`weights`: {`<path>.weight`, `<path>.bias`: tensor in effect}, for the rule's paths."""
        self._rule = rule
        self._weights = {key: value.to(torch.float32) for key, value in weights.items()}
        missing = [path for path in rule.paths if f"{path}.weight" not in self._weights]
        if missing:
            raise UnsupportedModelError(
                f"The model has no {missing[0]}.weight, through which its text goes."
            )
        last = self._weights[f"{rule.paths[-1]}.weight"]
        self.width = last.shape[0]
        """Width of the rows that come out; of a norm, as of those that go in."""
        self.fingerprint = tensors_hash(sorted(self._weights.items()))

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """`n x d` as the text encoder gives them to `n x width`."""
        if self._rule.kind == "rms_norm":
            scale = rows.square().mean(dim=-1, keepdim=True).add(self._rule.eps).rsqrt()
            return rows * scale * self._weights[f"{self._rule.paths[0]}.weight"]
        first, second = self._rule.paths
        return self._linear(second, functional.gelu(self._linear(first, rows), approximate="tanh"))

    def _linear(self, path: str, rows: Tensor) -> Tensor:
        return functional.linear(
            rows, self._weights[f"{path}.weight"], self._weights.get(f"{path}.bias")
        )
