"""Bad input: one clear exception type each, with a sentence that says what to do."""

from __future__ import annotations

import pytest
import torch
from problems import make, solve

from speed_erase.speed_ops import EraseSettings, InputError, Rows, SettingsError


def run(problem, **changes):
    settings = changes.pop("settings", EraseSettings())
    options = {
        k: changes.pop(k)
        for k in ("target_names", "retain_names", "probes", "hold")
        if k in changes
    }
    parts = {
        "weights": problem.weights,
        "targets": problem.targets,
        "anchors": problem.anchors,
        "retain": problem.retain,
        "invariants": problem.invariants,
        **changes,
    }
    return solve(*parts.values(), settings, **options)


def spoiled(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[1, 2] = value
    return tensor


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["targets", "anchors", "retain", "invariants"])
def test_embeddings_that_are_not_finite(part, value):
    problem = make()
    with pytest.raises(InputError, match=f"{part.rstrip('s')} .*NaN"):
        run(problem, **{part: spoiled(getattr(problem, part), value)})


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_embeddings_that_are_all_the_same(value):
    problem = make()
    same = {name: torch.full_like(getattr(problem, name), value) for name in ("targets", "anchors")}
    with pytest.raises(InputError, match="same embedding"):
        run(problem, **same)


def test_weights_that_are_not_finite():
    problem = make()
    weights = {**problem.weights, "layer1": spoiled(problem.weights["layer1"], float("nan"))}
    with pytest.raises(InputError, match=r"layer1 .*NaN"):
        run(problem, weights=weights)


def test_a_layer_of_zeros():
    problem = make(16, 2, 4)
    weights = {**problem.weights, "layer1": torch.zeros_like(problem.weights["layer1"])}
    with pytest.raises(InputError, match=r"layer1 .*zeros"):
        run(problem, weights=weights)


def test_a_layer_of_another_width():
    problem = make()
    with pytest.raises(InputError, match="has shape"):
        run(problem, weights={"layer0": torch.zeros(4, 30)})


@pytest.mark.parametrize("part", ["anchors", "retain", "invariants"])
def test_embeddings_of_another_width(part):
    problem = make()
    narrow = getattr(problem, part)[:, :-1]
    with pytest.raises(InputError, match=r"text encoder|replacement row"):
        run(problem, **{part: narrow})


def test_nothing_to_do():
    problem = make()
    with pytest.raises(InputError, match="one target"):
        run(problem, targets=problem.targets[:0], anchors=problem.anchors[:0])
    with pytest.raises(InputError, match="no layer"):
        run(problem, weights={})


def test_targets_without_their_anchors():
    problem = make()
    with pytest.raises(InputError, match=r"2 target .* 1 replacement"):
        run(problem, anchors=problem.anchors[:1])


def test_a_target_listed_twice():
    problem = make()
    twice = problem.targets[[0, 0]]
    with pytest.raises(InputError, match="different replacements"):
        run(problem, targets=twice)
    with pytest.raises(InputError, match="listed twice"):
        run(problem, targets=twice, anchors=problem.anchors[[1, 1]])
    with pytest.raises(InputError, match=r"'van  gogh' .*twice"):
        run(problem, target_names=["Van Gogh", "van  gogh"])


def test_a_retain_set_that_fills_the_space():
    problem = make(16, 1, 200)
    settings = EraseSettings(ipf=False, dpa=False, threshold=1e-12)
    with pytest.raises(InputError, match=r"embedding space"):
        run(problem, settings=settings)


def test_an_empty_retain_set_is_legal_and_said():
    problem = make()
    for nothing in (None, problem.retain[:0]):
        certificate = run(problem, retain=nothing).certificate
        assert "no_protected_names" in [notice.code for notice in certificate.warnings]
        assert certificate.layers[0].room == 24
    codes = [notice.code for notice in run(problem).certificate.warnings]
    assert "no_protected_names" not in codes


def test_names_that_do_not_fit():
    problem = make()
    with pytest.raises(InputError, match="3 names for 2 embedding rows"):
        run(problem, target_names=["a", "b", "c"])
    with pytest.raises(InputError, match="Every concept"):
        Rows(problem.targets, (0, 2), ("a", "b", "c"), (False, False))
    with pytest.raises(InputError, match="probe rows"):
        run(
            problem,
            probes=(
                Rows.single(problem.targets, ["x", "y"]),
                Rows.single(problem.anchors, ["x", "y"]),
            ),
        )


def test_numerically_hopeless_settings_are_a_sentence():
    """Never a LinAlgError: the smallest ridge on a huge, rank-deficient system."""
    problem = make(24, 2, 40)
    huge = [part * 1e12 for part in (problem.targets, problem.anchors, problem.retain)]
    try:
        erasure = solve(problem.weights, *huge, None, EraseSettings(method="uce", lam=1e-9))
    except InputError as refusal:
        assert "Raise them" in str(refusal)
    else:
        assert all(torch.isfinite(erasure.delta(key)).all() for key in erasure)


@pytest.mark.parametrize(
    ("field", "value", "range_"),
    [
        ("lam", 0.0, "1e-09 to 1e"),
        ("lam", float("nan"), "from"),
        ("threshold", -1.0, "from 0 to"),
        ("augmentations", 2.5, "a whole number from 0 to 1000"),
        ("augment_rank", 0, "from 1 to 64"),
        ("method", "esd", "speed, uce, rece, null_space"),
        ("layers", "Q", "V, K, KV"),
        ("held_out", 0.9, "from 0 to 0.5"),
        ("ipf", 1, "true or false"),
        ("seed", -1, "a whole number from 0"),
        ("lam", True, "a number from"),
    ],
)
def test_a_setting_out_of_range_names_itself_its_value_and_the_range(field, value, range_):
    with pytest.raises(SettingsError) as refusal:
        EraseSettings(**{field: value})
    text = str(refusal.value)
    assert f" {field} {value!r}" in text and range_ in text


def test_settings_that_contradict_each_other():
    with pytest.raises(SettingsError, match="both on"):
        EraseSettings(rpa=True)
    with pytest.raises(SettingsError, match=r"'fw'.*'few'"):
        EraseSettings.preset("fw")
    with pytest.raises(SettingsError, match=r"'lamb'.*'lam'"):
        EraseSettings.preset("few", lamb=1.0)


def test_presets_carry_the_papers_values():
    few, multi, implicit = (EraseSettings.preset(name) for name in ("few", "multi", "implicit"))
    assert (few.threshold, few.lam, few.mu) == (0.1, 1.0, 0.0)
    assert (few.ipf, few.dpa, few.augmentations, few.augment_rank) == (True, True, 10, 1)
    assert (multi.threshold, multi.lam, multi.ipf, multi.dpa) == (1e-4, 0.05, False, True)
    assert (implicit.threshold, implicit.lam, implicit.mu) == (0.1, 0.7, 0.5)
    assert all(preset.layers == "V" and preset.rows == "bare" for preset in (few, multi, implicit))
    assert EraseSettings.from_dict(multi.to_dict()) == multi


def test_every_setting_explains_itself():
    import dataclasses

    for item in dataclasses.fields(EraseSettings):
        assert len(item.metadata["help"]) > 15, item.name
