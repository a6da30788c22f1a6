"""Every warning can be given, and each mentions names exactly as the user wrote them."""

from __future__ import annotations

import pytest
import torch
from problems import embeddings, row_set

from speed_erase.speed_ops import EraseSettings
from speed_erase.speed_ops.certificate.certificate import ConceptResult, Drift, LayerFacts
from speed_erase.speed_ops.certificate.warnings import all_warnings, outcome_warnings
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.engine.prepare import prepare
from speed_erase.speed_ops.errors import Notice

ODD = ("O'Brien", 'Say "hi"', "both ' and \"", "back\\slash", "Zoë", "吉卜力", "a\u0301 <b>")


def warnings_about(target: str, retained: str, **changes) -> list[Notice]:
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
            [ConceptResult(target, 0.9, 0.9, 0.9, 0.9, 0.5)],
            [0.0],
        )
    )


@pytest.mark.parametrize("name", ODD)
def test_names_appear_as_they_were_written(name: str) -> None:
    target, retained = f"{name} one", f"{name} two"
    notices = warnings_about(target, retained)
    assert len({notice.code for notice in notices}) == len(notices) == 6
    for notice in notices:
        named = {value for key, value in notice.data.items() if key in ("name", "concept")}
        named |= set(notice.data.get("concepts", ()))
        assert all(f"'{item}'" in notice for item in named) and named <= {target, retained}


def test_a_limit_that_is_exceeded_at_all_is_mentioned() -> None:
    limit = 0.45
    for mean in (0.449, 0.4501, 0.482):
        drift = [Drift("held_out", "context", 3, mean, mean, mean, (("a", mean),), mean)]
        codes = {notice.code for notice in outcome(limit, drift)}
        assert ("over_limit" in codes) == (mean > limit)


def outcome(limit: float, drift: list[Drift]) -> list[Notice]:
    point = CurvePoint(1.0, 0.1, limit, 0.0, 0.1)
    settings = EraseSettings.preset("auto")
    rows = embeddings(4, 32, torch.Generator().manual_seed(0))
    prepared = prepare(row_set(rows[:1], rows[1:2], rows[:1] + 1e-6, rows[2:]), settings)
    curve = Curve((point,), point, limit, 5, True, ())
    return list(outcome_warnings(prepared, settings, drift, curve, (), ()))
