"""The pooled path: the same closed form on pooled embeddings of the same prompts, at one layer's
text columns alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from text_pico import WIDTH, tiny_encoder

from speed_erase.speed_ops.certificate.summary import details
from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.encoder import EncoderPart, JoinedTextEncoder
from speed_erase.speed_ops.engine.closed_form import constraint_rows
from speed_erase.speed_ops.engine.edits import apply_edits
from speed_erase.speed_ops.engine.rows import Rows
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.erase import NO_ROOM, erase
from speed_erase.speed_ops.erasure import at_strength
from speed_erase.speed_ops.inputs import INPUT_TITLES
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.leak_probe import probe_leaks
from speed_erase.speed_ops.model import EditableModel
from speed_erase.speed_ops.models.architecture import LayerKey
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import parse_retain

SIZES = 24
"""Columns of the pooled layer that read no text."""
NAMES = (
    "Claude Monet",
    "Edvard Munch",
    "Pablo Picasso",
    "Rembrandt",
    "Paul Klee",
    "Gustav Klimt",
    "Frida Kahlo",
)
PLAIN = EraseSettings(ipf=False, dpa=False, threshold=0.5, lam=0.1)
ROWS, POOLED = (
    "diffusion_model.middle_block.1.attn2.to_v.weight",
    "diffusion_model.label_emb.0.0.weight",
)


@pytest.fixture(scope="module")
def encoder() -> ClipTextEncoder:
    return tiny_encoder("sdxl")


@pytest.fixture(scope="module")
def model() -> EditableModel:
    """SDXL's shape in small: one layer that reads rows, one that reads pooled text and sizes."""
    xl = by_name("sdxl")
    assert xl.second_input is not None
    path = replace(
        xl.second_input,
        width=WIDTH + SIZES,
        encoders=(replace(xl.second_input.encoders[0], width=WIDTH),),
    )
    generator = torch.Generator().manual_seed(4)
    shapes = {ROWS: (16, 2 * WIDTH), POOLED: (20, WIDTH + SIZES)}
    stored = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    kinds = {ROWS: "V", POOLED: "second"}
    paths = {key: key.removeprefix("diffusion_model.").removesuffix(".weight") for key in shapes}
    layers = tuple(
        LayerKey(key, paths[key], paths[key], kinds[key], shapes[key])  # type: ignore[arg-type]
        for key in shapes
    )
    return EditableModel(replace(xl, second_input=path), layers, stored)


def job(text: str = "Van Gogh | Vincent -> art", settings: EraseSettings = PLAIN) -> Job:
    return Job.of(tuple(parse_concepts(text, "style")), parse_retain("\n".join(NAMES)), settings)


def pooled(encoder: ClipTextEncoder, *texts: str) -> np.ndarray:
    """`d x n`, each text run by itself."""
    return (
        torch.stack([encoder.encode_both([text], [0])[1][0] for text in texts]).double().numpy().T
    )


@pytest.mark.parametrize(
    "settings", [PLAIN, PLAIN.replace(prior="soft", softness=0.1)], ids=["null space", "soft"]
)
def test_equals_the_dense_equations_and_spares_the_other_columns(
    encoder: ClipTextEncoder, model: EditableModel, settings: EraseSettings
) -> None:
    outcome = erase(job(settings=settings), model, encoder)
    delta = outcome.edits[POOLED].delta()
    assert torch.equal(delta[:, WIDTH:], torch.zeros_like(delta[:, WIDTH:]))
    empty = pooled(encoder, "")
    sides = (
        pooled(encoder, "Van Gogh", "Vincent"),
        pooled(encoder, "art", "art"),
        pooled(encoder, *NAMES),
    )
    constraints = (
        constraint_rows(torch.from_numpy(empty.T.copy()), settings.invariants, 0).numpy().T
    )
    shares = {"target_share": np.full(2, 0.5), "retain_share": np.ones(len(NAMES))}
    method = oracle.soft if settings.prior == "soft" else oracle.speed
    weight = model.stored[POOLED][:, :WIDTH].double().numpy()
    expected = method(weight, *sides, constraints, settings, **shares)
    assert np.linalg.norm(delta[:, :WIDTH].numpy() - expected) < 1e-4 * np.linalg.norm(expected)
    off = (delta[:, :WIDTH].numpy() @ empty) / np.linalg.norm(weight @ empty)
    assert np.abs(off).max() < 1e-6, "the empty prompt stays"


def test_the_certificate_has_a_part_for_it(encoder: ClipTextEncoder, model: EditableModel) -> None:
    outcome = erase(job(), model, encoder)
    whole = outcome.certificate
    assert whole is not None and "pooled" in whole.other_inputs and outcome.rows is not None
    (layer,), (concept,) = (
        whole.other_inputs["pooled"].layers,
        whole.other_inputs["pooled"].concepts,
    )
    assert (
        layer.key == POOLED
        and concept.name == "Van Gogh"
        and whole.other_inputs["pooled"].settings["pooled"]
    )
    edited = model.stored[POOLED][:, :WIDTH].double() + outcome.edits[POOLED].delta()[:, :WIDTH]
    before = model.stored[POOLED][:, :WIDTH].double()
    target, alias, anchor = (
        torch.from_numpy(part) for part in pooled(encoder, "Van Gogh", "Vincent", "art").T
    )
    goal = before @ anchor
    gaps = [
        ((edited @ one - goal).square().sum(), (before @ one - goal).square().sum())
        for one in (target, alias)
    ]
    left = float((sum(gap[0] for gap in gaps) / sum(gap[1] for gap in gaps)) ** 0.5)
    assert concept.solved_median == pytest.approx(left, abs=1e-3)
    lines = list(details(whole))
    own = lines.index(f"{INPUT_TITLES['pooled']}:")
    assert any("Van Gogh" in line for line in lines[:own])
    assert any("Van Gogh" in line for line in lines[own:])
    header = whole.short()["other_inputs"]["pooled"]
    assert (
        header["concepts"][0]["name"] == "Van Gogh"
        and "seconds" not in header
        and header["layers"] == 1
    )


def test_off_by_the_setting_and_where_the_encoder_has_none(
    encoder: ClipTextEncoder, model: EditableModel
) -> None:
    both = erase(job(), model, encoder)
    off = erase(job(settings=PLAIN.replace(pooled=False)), model, encoder)
    xl = by_name("sdxl")
    without = ClipTextEncoder(encoder._clips[0].weights._tensors, xl.encoders, encoder._tokenizer)
    assert without.pooled_width == 0 < encoder.pooled_width
    for outcome in (off, erase(job(), model, without)):
        assert (
            set(outcome.edits) == {ROWS}
            and outcome.certificate is not None
            and "pooled" not in outcome.certificate.other_inputs
        )
        assert torch.allclose(outcome.edits[ROWS].delta(), both.edits[ROWS].delta(), atol=1e-5)
    assert set(both.edits) == {ROWS, POOLED}


class Counting:
    """Passes everything on and notes which texts are run."""

    def __init__(self, encoder: ClipTextEncoder) -> None:
        self.encoder = encoder
        self.run: list[str] = []
        for name in (
            "fingerprint",
            "pooled_fingerprint",
            "width",
            "pooled_width",
            "context_length",
            "streams",
        ):
            setattr(self, name, getattr(encoder, name))

    def encode(self, prompts, lengths, progress=None):
        self.run += prompts
        return self.encoder.encode(prompts, lengths, progress)

    def encode_both(self, prompts, lengths, progress=None):
        self.run += prompts
        return self.encoder.encode_both(prompts, lengths, progress)

    def close(self) -> None:
        self.encoder.close()


def test_no_text_is_run_for_its_pooled_embedding_alone_and_the_cache_keeps_pooled_ones(
    encoder: ClipTextEncoder, model: EditableModel, tmp_path: Path
) -> None:
    counting, cache = Counting(encoder), EmbeddingCache(tmp_path / "both")
    auto = EraseSettings.preset("auto", effort="fast", held_out=0.1)
    erase(
        job(settings=auto.replace(pooled=False)),
        model,
        CachedEncoder(counting, EmbeddingCache(tmp_path / "rows")),
    )
    rows_alone = list(counting.run)
    counting.run.clear()
    first = erase(job(settings=auto), model, CachedEncoder(counting, cache))
    assert sorted(counting.run) == sorted(rows_alone) and len(rows_alone) > 50
    counting.run.clear()
    again = erase(job(settings=auto), model, CachedEncoder(counting, cache))
    assert not counting.run
    assert torch.equal(first.edits[POOLED].delta(), again.edits[POOLED].delta())


def test_a_cache_of_rows_alone_is_completed_without_touching_the_rows(
    encoder: ClipTextEncoder, model: EditableModel, tmp_path: Path
) -> None:
    """As a cache from before is: a T5 of billions of parameters must not run again for CLIP's
    sake.
    """
    cache = EmbeddingCache(tmp_path)
    erase(job(settings=PLAIN.replace(pooled=False)), model, CachedEncoder(encoder, cache))
    asked: list[int] = []

    class Noting(Counting):
        def encode_both(self, prompts, lengths, progress=None):
            asked.extend(lengths)
            return super().encode_both(prompts, lengths, progress)

    counting = Noting(encoder)
    assert POOLED in erase(job(), model, CachedEncoder(counting, cache)).edits
    assert asked and not any(asked)


def test_the_budget_holds_for_it(encoder: ClipTextEncoder, model: EditableModel) -> None:
    auto = EraseSettings.preset("auto", effort="fast", held_out=0.1)
    drifts = []
    for budget in (0.03, 0.3):
        whole = erase(job(settings=auto.replace(drift_budget=budget)), model, encoder).certificate
        assert (
            whole is not None
            and "pooled" in whole.other_inputs
            and whole.other_inputs["pooled"].curve is not None
        )
        chosen = whole.other_inputs["pooled"].curve.chosen
        assert (
            whole.other_inputs["pooled"].curve.budget == budget
            and chosen.drift + chosen.spread <= budget
        )
        assert (
            whole.curve is not None
            and whole.other_inputs["pooled"].settings["lam"] != whole.settings["lam"]
        ), "a choice of its own"
        drifts.append(chosen.left)
    assert drifts[1] < drifts[0], "more drift erases more"


def test_strength_scales_it(encoder: ClipTextEncoder, model: EditableModel) -> None:
    outcome = erase(job(), model, encoder)
    half = at_strength(outcome, 0.5, model)
    assert outcome.certificate is not None and half.certificate is not None
    before, after = (
        outcome.certificate.other_inputs["pooled"],
        half.certificate.other_inputs["pooled"],
    )
    assert before is not None and after is not None
    assert after.drift[0].maximum == pytest.approx(before.drift[0].maximum / 2)
    assert after.layers[0].change == pytest.approx(before.layers[0].change / 2)
    assert before.concepts[0].solved_median < 0.4 < after.concepts[0].solved_median < 0.6


def test_a_later_erasure_holds_what_an_earlier_one_sent_away(
    encoder: ClipTextEncoder, model: EditableModel
) -> None:
    first = erase(job(), model, encoder)
    edited = replace(model, stored=apply_edits(model.stored, first.edits))

    def left(hold: dict[str, Rows] | None) -> float:
        second = erase(job("Frederic Remington -> art"), edited, encoder, hold=hold)
        total = (
            model.stored[POOLED].double()
            + first.edits[POOLED].delta()
            + second.edits[POOLED].delta()
        )
        weight, old = total[:, :WIDTH].numpy(), model.stored[POOLED][:, :WIDTH].double().numpy()
        target, anchor = pooled(encoder, "Van Gogh", "art").T
        return float(
            np.linalg.norm(weight @ target - old @ anchor) / np.linalg.norm(old @ (target - anchor))
        )

    assert set(first.targets) == {"tokens", "pooled"}
    assert left(first.targets) < left(None) and left(first.targets) < 0.1


def test_the_leak_probe_looks_at_rows_alone(encoder: ClipTextEncoder, model: EditableModel) -> None:
    outcome = erase(job(), model, encoder)
    report = probe_leaks(encoder, model.weights, outcome.edits, outcome.concepts, templates=0)
    alone = probe_leaks(
        encoder, model.weights, {ROWS: outcome.edits[ROWS]}, outcome.concepts, templates=0
    )
    assert [leak.after for leak in report.tried] == [leak.after for leak in alone.tried]


def test_an_encoder_s_last_blocks_count(tmp_path: Path) -> None:
    """Rows come from the last block but one: two encoders that differ after it share rows, not
    pooled embeddings.
    """
    xl = by_name("sdxl-refiner")
    assert xl.second_input is not None
    one = tiny_encoder("sdxl-refiner")
    tensors = dict(one._clips[0].weights._tensors)  # type: ignore[call-overload]
    key = next(name for name in tensors if name.endswith("text_projection"))
    tensors[key] = tensors[key] * 1.5
    other = ClipTextEncoder(tensors, xl.encoders, one._tokenizer, pooled=xl.second_input.encoders)
    assert (
        one.fingerprint == other.fingerprint and one.pooled_fingerprint != other.pooled_fingerprint
    )
    cut = {name: value for name, value in tensors.items() if "resblocks.2" not in name}
    layers = replace(xl.encoders[0], layers=3)
    rows_alone = ClipTextEncoder(cut, (layers,), one._tokenizer, pooled=(layers,))
    assert rows_alone.pooled_width == 0, "the last block is missing"
    assert torch.allclose(
        rows_alone.encode(["a cat"], [4])[0], one.encode(["a cat"], [4])[0], atol=1e-6
    )


def test_encoders_of_several_kinds() -> None:
    """SD3 joins pooled embeddings as it joins rows; Flux has an encoder for the pooled one
    alone.
    """
    first, second = tiny_encoder("sdxl-refiner"), tiny_encoder("sd1")
    joined = JoinedTextEncoder([EncoderPart(first, 0, 7), EncoderPart(second)], WIDTH, WIDTH + 9)
    rows, whole = joined.encode_both(["a cat", "two dogs"], [80, 0])
    alone = first.encode_both(["a cat", "two dogs"], [77, 0])
    assert (
        rows[0].shape == (80, WIDTH)
        and torch.allclose(rows[0][:77], alone[0][0], atol=1e-6)
        and not len(rows[1])
    )
    for one, other in zip(whole, alone[1], strict=True):
        assert (
            torch.allclose(one[7 : 7 + WIDTH], other, atol=1e-6)
            and not one[:7].any()
            and not one[7 + WIDTH :].any()
        )
    paired = JoinedTextEncoder(
        [EncoderPart(first, rows_are_read=False), EncoderPart(second)], second.width, WIDTH
    )
    assert paired.streams == second.streams and paired.context_length == second.context_length
    rows, whole = paired.encode_both(["a cat", "two dogs"], [3, 0])
    assert torch.equal(rows[0], second.encode(["a cat"], [3])[0]) and not len(rows[1])
    assert torch.allclose(whole[1], alone[1][1], atol=1e-6)
    assert (
        paired.fingerprint == second.fingerprint
        and paired.pooled_fingerprint == first.pooled_fingerprint
    )
    assert JoinedTextEncoder([EncoderPart(second)], WIDTH, WIDTH).pooled_width == 0


def test_kept_names_may_fill_the_pooled_space_and_not_the_rows(
    encoder: ClipTextEncoder, model: EditableModel
) -> None:
    """Then the rows are erased all the same, and a sentence says what was left."""
    strict = EraseSettings(ipf=False, dpa=False, threshold=1e-9, lam=0.1)
    crowd = parse_retain(
        "\n".join(f"{name} {number}" for name in NAMES for number in range(WIDTH // len(NAMES) + 2))
    )
    crowded = Job.of(tuple(parse_concepts("Van Gogh -> art", "style")), crowd, strict)
    outcome = erase(crowded, model, encoder)
    assert set(outcome.edits) == {ROWS} and outcome.notes == (NO_ROOM.format(name="pooled"),)
