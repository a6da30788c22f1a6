"""Every warning can be given, and each mentions names exactly as the user wrote them."""

from __future__ import annotations

import pytest
import torch
from problems import embeddings, row_set

from speed_erase.speed_ops import EraseSettings
from speed_erase.speed_ops.certificate.certificate import ConceptResult, Drift, LayerFacts
from speed_erase.speed_ops.certificate.warnings import all_warnings
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.engine.prepare import prepare

ODD = ("O'Brien", 'Say "hi"', "both ' and \"", "back\\slash", "Zoë", "吉卜力", "a\u0301 <b>")


def warnings_about(target: str, retained: str, **changes) -> list[str]:
    """Every sentence there is, about these two names."""
    settings = EraseSettings(**changes)
    rows = embeddings(4, 32, torch.Generator().manual_seed(0))
    prepared = prepare(
        row_set(
            rows[:1],
            rows[1:2],
            rows[:1] + 1e-6,
            rows[2:],
            target_names=[target],
            retain_names=[retained],
        ),
        settings,
    )
    point = CurvePoint(1.0, 0.8, 0.1, 0.0, 0.8)
    better = CurvePoint(0.1, 0.2, 0.19, 0.0, 0.2)
    return list(
        all_warnings(
            prepared,
            settings,
            [LayerFacts("layer", 1, 0, 0, 1, 0.1)],
            [Drift("held_out", "context", 3, 0.5, 0.5, 0.5, ((retained, 0.5),), 0.5)],
            Curve((point, better), point, 0.1, 5, True, ((retained, 0.5),)),
            [ConceptResult(target, "stands", 0.9, 0.9, 0.9, 0.9, 0.5)],
            [0.0],
        )
    )


@pytest.mark.parametrize("name", ODD)
def test_names_appear_as_they_were_written(name: str) -> None:
    target, retained = f"{name} one", f"{name} two"
    sentences = warnings_about(target, retained)
    assert len(sentences) == 7
    assert sum(f"'{target}'" in sentence for sentence in sentences) == 5
    assert sum(f"'{retained}'" in sentence for sentence in sentences) == 2


def test_where_auto_chose_the_advice_is_given_once() -> None:
    fixed = warnings_about("a", "b")
    chosen = warnings_about("a", "b", preset_name="auto", prior="soft")
    assert len(chosen) < len(fixed) or chosen != fixed
    assert sum("preset auto" in sentence for sentence in chosen) == 0
