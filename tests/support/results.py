"""Compares results of two runs that may have used different numbers of threads or processors.

Sums are added in another order then. Encoders compute in float32, so the last digits of embeddings
differ; weights are rounded to the precision of their file, where that is at most one step for
numbers near the rounding boundary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

STEPS = 2
"""Of the stored precision, at the size of the largest number of a tensor."""
MEASURED = 1e-3
"""Relative difference of a measured number in a certificate."""
NOISE = 1e-6
"""Measured numbers below this are rounding noise."""


def assert_same_result(first: Path, second: Path) -> None:
    """Same keys, shapes, types and metadata; values within the precision of the file."""
    with safe_open(first, "pt") as one, safe_open(second, "pt") as two:
        keys = set(one.keys())
        assert keys == set(two.keys())
        for key in keys:
            ours, theirs = one.get_tensor(key), two.get_tensor(key)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), key
            if torch.equal(ours, theirs):
                continue
            step = torch.finfo(ours.dtype).eps * float(ours.double().abs().max())
            assert float((ours.double() - theirs.double()).abs().max()) <= STEPS * step, key
        ours, theirs = one.metadata() or {}, two.metadata() or {}
    assert ours.keys() == theirs.keys()
    for key, text in ours.items():
        if key == "speed.certificate":
            assert_same_measures(json.loads(text), json.loads(theirs[key]))
        else:
            assert text == theirs[key], key


def assert_same_measures(first: Any, second: Any, path: str = "") -> None:
    """Same structure and names; measured numbers close. Lists of (name, number) are sorted by the
    number, so names whose numbers are noise may change places.
    """
    if isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key, value in first.items():
            assert_same_measures(value, second[key], f"{path}/{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), path
        ranked = all(isinstance(item, list) and len(item) == 2 for item in first)
        for index, (ours, theirs) in enumerate(zip(first, second, strict=True)):
            if ranked and max(abs(ours[1]), abs(theirs[1])) < NOISE:
                continue
            assert_same_measures(ours, theirs, f"{path}[{index}]")
    elif isinstance(first, float):
        assert second == pytest.approx(first, rel=MEASURED, abs=NOISE), path
    else:
        assert first == second, path
