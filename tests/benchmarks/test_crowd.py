"""The 40-painter test set: what it shows and asks, how it counts, and the way from training to the
page, tiny.
"""

from __future__ import annotations

import itertools
import math
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from speed_erase.benchmarks.crowd import methods, model, report, tasks, transformer
from speed_erase.benchmarks.crowd.answers import UNSAFE, Case, Runs, best_bar, first_drift, glance
from speed_erase.benchmarks.crowd.flow import ENTRY, SECOND
from speed_erase.benchmarks.crowd.judge import train_judge
from speed_erase.benchmarks.crowd.measures import h_o_interval
from speed_erase.benchmarks.crowd.methods import CURVED, DEFAULT, METHODS, NONE, TRIED, methods_of
from speed_erase.benchmarks.crowd.model import Crowd
from speed_erase.benchmarks.crowd.prompts import (
    HELD_OUT_FIGURE_TEMPLATES,
    HELD_OUT_TEMPLATES,
    SHARES,
    sentence,
    training_prompts,
    training_weights,
)
from speed_erase.benchmarks.crowd.render import SHIFTS, compose, draw
from speed_erase.benchmarks.crowd.report import (
    page,
    runs_csv,
    store,
    stored_path,
    stored_worlds,
    unpacked,
    write_page,
)
from speed_erase.benchmarks.crowd.run import Runner
from speed_erase.benchmarks.crowd.tasks import TASKS
from speed_erase.benchmarks.crowd.text import CrowdText
from speed_erase.benchmarks.crowd.wording import REWORDED
from speed_erase.benchmarks.crowd.world import (
    BY_NAME,
    COMPOSITIONS,
    DEPICTED,
    FIGURES,
    LINES,
    PAINTERS,
    STYLES,
    TEXTURES,
    look_alikes,
    shared,
)
from speed_erase.benchmarks.crowd.worlds import WORLDS
from speed_erase.benchmarks.encoders import ScaledEncoder
from speed_erase.benchmarks.training import Log, Trainer
from speed_erase.speed_ops.engine import auto
from speed_erase.speed_ops.text.retain_set import builtin_retain, drop_targets, retain_from_names
from speed_erase.speed_ops.text.tokens import Stream

LENGTH = 40


def word_ids(text: str) -> list[int]:
    return [
        zlib.crc32(word.encode())
        for word in text.lower().replace(",", " ").replace("'s", "").split()
    ]


def fake_rows(texts: Sequence[str]) -> list[Tensor]:
    """A random vector a word, each mixed with the whole text; an end token for the rest."""
    found = []
    for text in texts:
        words = [
            torch.randn(768, generator=torch.Generator().manual_seed(seed))
            for seed in (1, *word_ids(text), 2)
        ]
        rows = torch.stack(words)
        rows = rows + 0.5 * rows.mean(dim=0)
        found.append(torch.cat([rows, rows[-1:].expand(LENGTH - len(rows), -1)]))
    return found


def fake_encoder() -> ScaledEncoder:
    return ScaledEncoder("fake", fake_rows, Stream(word_ids, LENGTH, causal=False))


def test_painters_are_real_names_that_share_attributes() -> None:
    known = set(builtin_retain("artists").names)
    assert len(PAINTERS) >= 40 and all(painter.name in known for painter in PAINTERS)
    for attribute, values in (
        ("texture", TEXTURES),
        ("line", LINES),
        ("composition", COMPOSITIONS),
    ):
        counts = [
            sum(getattr(painter, attribute) == value for painter in PAINTERS) for value in values
        ]
        assert min(counts) >= 5
    for painter in PAINTERS:
        common = [shared(painter.name, other.name) for other in PAINTERS if other is not painter]
        assert max(common) == 2 and common.count(2) >= 3 and min(common) == 0


def test_every_combination_is_nearest_to_its_own_rendering() -> None:
    """A rule without learning tells painters, subjects and nights apart: the world is decidable."""
    kinds = [(s, p, n) for s in DEPICTED for p in STYLES for n in (False, True)]
    rng = np.random.default_rng(0)
    for index in rng.choice(len(kinds), size=8, replace=False):
        subject, style, night = kinds[index]
        picture = draw(subject, style, night, rng)
        assert picture.shape == (3, 32, 32) and np.abs(picture).max() <= 1
        rivals = [kinds[index], *(kinds[i] for i in rng.choice(len(kinds), size=40, replace=False))]
        rivals += [(other, style, night) for other in look_alikes(subject)]
        rivals += [
            (subject, other.name, night) for other in PAINTERS if shared(other.name, style) == 2
        ]
        moves = range(-SHIFTS, SHIFTS + 1)
        distances = [
            min(
                np.square(compose(s, BY_NAME[p], n, down, right) - picture).sum()
                for down in moves
                for right in moves
            )
            for s, p, n in rivals
        ]
        assert rivals[int(np.argmin(distances))] == kinds[index]


def test_any_two_figures_differ_in_three_of_four_attributes() -> None:
    attributes = [(f.hair, f.head, f.face, f.costume) for f in FIGURES]
    for first, second in itertools.combinations(attributes, 2):
        assert sum(a == b for a, b in zip(first, second, strict=True)) <= 1


def test_training_never_sees_the_held_out_templates() -> None:
    kinds = training_prompts()
    texts = {
        prompt.text.removesuffix(prompt.ending).strip()
        for prompts in kinds.values()
        for prompt in prompts
    }
    spared = {
        sentence(t, s, p.name).text for t in HELD_OUT_TEMPLATES for s in DEPICTED for p in PAINTERS
    }
    spared |= {
        sentence(t, f.name, "plain").text for t in HELD_OUT_FIGURE_TEMPLATES for f in FIGURES
    }
    assert not texts & spared
    weights = training_weights(kinds)
    assert weights.sum() == pytest.approx(1)
    assert weights[: len(kinds["pair"])].sum() == pytest.approx(
        SHARES["pair"] / sum(SHARES.values())
    )


@pytest.mark.parametrize("name", TASKS)
def test_questions_ask_for_what_is_erased_and_for_the_rest(name: str) -> None:
    task = TASKS[name]
    erased = {concept.target for concept in task.concepts}
    asked = task.questions(60)
    assert asked == task.questions(60)
    assert sum(q.role == "erased" for q in asked) == sum(q.role == "kept" for q in asked) == 60
    for question in asked:
        assert (question.concept in erased) == (question.role != "kept")
        if question.role == "erased":
            words = {
                concept.target for concept in task.concepts if concept.target == question.concept
            }
            assert not any(word in task.anchored(question.prompt) for word in words)
    job = task.job(tasks.settings_for())
    kept = drop_targets(job.retain, job.concepts)[0].names
    assert not erased & set(kept)
    assert {painter.name for painter in PAINTERS} - erased <= set(kept)
    for subject in {q.concept for q in asked if q.head == "subject"}:
        styles = {
            q.prompt.style == "plain" for q in TASKS[name].questions(200) if q.concept == subject
        }
        assert styles == {True, False}


def result(erased: str, kept: str, **more: object) -> dict:
    return {"right": erased + kept, "roles": "e" * len(erased) + "k" * len(kept)} | more


def test_the_lead_of_a_method_over_itself_is_nothing_and_over_a_worse_one_is_sure() -> None:
    good, bad = (
        result("0" * 90 + "1" * 10, "1" * 95 + "0" * 5),
        result("0" * 50 + "1" * 50, "1" * 60 + "0" * 40),
    )
    assert h_o_interval(good, good) == (0.0, 0.0)
    low, high = h_o_interval(good, bad)
    assert 0.2 < low < high < 0.6
    inside = h_o_interval(good)
    assert inside[0] < 2 * 0.9 * 0.95 / 1.85 < inside[1]


def case(left: float, seen: float) -> Case:
    return Case("painters1", "auto", "name", "style", left, left, seen, 0.0)


def test_the_best_bar_is_never_an_unsafe_one() -> None:
    apart = [case(0.01 * i, 0.0) for i in range(30)] + [
        case(0.5 + 0.01 * i, 0.9) for i in range(30)
    ]
    bar, agreement, unsafe = best_bar(apart, "left")
    assert 0.29 <= bar <= 0.5 and agreement == 1 and unsafe == 0
    mixed = [*apart, *(case(0.2, 0.9) for _ in range(5))]
    bar, agreement, unsafe = best_bar(mixed, "to_go")
    assert bar < 0.2 and unsafe <= UNSAFE
    assert case(0.2, 0.9).unsafe and not case(0.9, 0.9).unsafe and not case(0.2, 0.9).agrees


def test_goals_follow_the_runs() -> None:
    def run(method: str, erased: str, kept: str, drift: float | None = None) -> dict:
        right = result(erased, kept)
        acc_e, acc_r = erased.count("1") / len(erased), kept.count("1") / len(kept)
        scores = {
            "acc_e": acc_e,
            "acc_r": acc_r,
            "h_o": 2 * (1 - acc_e) * acc_r / (1 - acc_e + acc_r),
        }
        return (
            right
            | scores
            | {"task": "painters10", "method": method, "drift": drift, "change": {"kept": 0.1}}
        )

    runs = [run("none", "1" * 40, "1" * 40), run("rece", "1" * 30 + "0" * 10, "1" * 40, 0.02)]
    runs.append(run(DEFAULT, "0" * 40, "1" * 36 + "0" * 4, 0.25))
    _, lines = glance(Runs.of(runs))
    assert [line[7] for line in lines] == ["+5: met"]
    (_, steps), said = first_drift([Runs.of(runs)])
    assert [line[1] for line in steps] == ["1", "0", "1", "0", "0", "0"] and "none" not in said
    worse = [*runs[:2], run(DEFAULT, "1" * 30 + "0" * 10, "1" * 40, 0.02)]
    assert [line[7] for line in glance(Runs.of(worse))[1]] == ["+5: **not met**"]


def test_every_task_is_run_by_every_rival_as_released_stronger_and_with_our_rows() -> None:
    for task in TASKS:
        names = {method.name for method in methods_of(task)}
        assert {NONE.name, DEFAULT} <= names
        assert {"uce_2023", "uce_2025", "rece", "oce", "double_projections"} <= names
        assert task not in CURVED or {"uce_2023_own_list", "rece_own_list", "few_lent"} <= names
        for rival in ("uce", "oce"):
            assert {f"{rival}_lent", f"{rival}_lent_x10", f"{rival}_lent_x100"} <= names
        assert {"few", "multi", "rece_lent"} <= names
        assert sum(METHODS[name].group == "ours" for name in names) == len(TRIED)


def test_texts_are_encoded_once_and_come_back_whole(tmp_path: Path) -> None:
    encoder = fake_encoder()
    text = CrowdText(tmp_path, encoder)
    (want,) = encoder.encode(["a cat by Claude Monet"], [LENGTH])
    first = text.rows(["a cat by Claude Monet", ""])
    assert torch.allclose(first[0], want, atol=0.05)
    text.save()
    again = CrowdText(tmp_path, encoder)
    again.encoder = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        again.rows(["something new"])
    again.encoder = encoder
    assert torch.equal(again.rows(["a cat by Claude Monet", ""]), first)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model trained for two steps, and a judge for three: they recognize nothing, but
    everything runs.
    """
    found = {world: tmp_path_factory.mktemp(world) for world in ("a", "c")}
    train_judge(found["a"], steps=3, batch=16, pool=32, fresh=32)
    for world, folder in found.items():
        trainer(world, folder).run(Log(folder))
        if world != "a":
            shutil.copy(found["a"] / "judge.safetensors", folder)
    return found


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path]) -> Path:
    return folders["a"]


def trainer(world: str, folder: Path) -> Trainer:
    """On few sentences: each is work for the encoder."""
    chosen, sentences = WORLDS[world], training_prompts()
    few = {kind: group[:6] for kind, group in sentences.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "training_prompts", lambda seed: few)
        text = CrowdText(folder, fake_encoder())
        return chosen.trainer(folder, chosen.plan(steps=2, batch=2, warmup=1), text)


@pytest.mark.parametrize("world", ["a", "c"])
def test_training_goes_on_where_it_stopped(
    world: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    first = trainer(world, tmp_path)
    first.advance()
    first.save()
    second = trainer(world, tmp_path)
    second.resume()
    second.advance()
    text = CrowdText(tmp_path, fake_encoder())
    stored = WORLDS[world].crowd(folders[world], text).model.state_dict()
    for key, value in second.average.items():
        assert torch.allclose(value, stored[key], atol=1e-6), key


def test_a_transformer_is_edited_where_text_enters_and_nowhere_else(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = retain_from_names(builtin_retain("artists").names[:60], "artists", "style")
    monkeypatch.setattr(tasks, "default_retain", lambda concepts: few)
    folder, chosen = folders["c"], WORLDS["c"]
    crowd = chosen.crowd(folder, CrowdText(folder, fake_encoder()), steps=2)
    untouched = {key: value.clone() for key, value in crowd.model.state_dict().items()}
    edits = {"only_tokens": {ENTRY}, "only_pooled": {SECOND}, "double_projections": {ENTRY}}
    edits |= {"uce_lent": {ENTRY}, "oce_lent": {ENTRY}}
    inner = {f"joint_blocks.{i}.context_block.attn.qkv.weight" for i in range(3)}
    edits["inner_too"] = {ENTRY, SECOND, *inner}
    rows = methods.TaskRows(TASKS["painters1"], crowd, effort="fast")
    for name, keys in edits.items():
        edited = rows.edit(METHODS[name]).weights
        changed = {key for key, value in edited.items() if not value.equal(untouched[key])}
        assert changed == keys, name
    crowd.draw(["a cat"], 0, edited)
    assert all(value.equal(untouched[key]) for key, value in crowd.model.state_dict().items())
    runner = Runner(crowd, 4, lambda text: None, effort="fast")
    runner.run_all(REWORDED.values(), lambda task: [NONE])
    assert {result["task"] for result in runner.results()} == set(REWORDED)


def test_guidance_leads_away_from_the_empty_prompt() -> None:
    def velocity(x: Tensor, levels: Tensor, context: Tensor, pooled: Tensor) -> Tensor:
        return torch.zeros_like(x) + pooled[:, :1, None, None]

    prompts, empty = (torch.zeros(1, 2, 4), torch.ones(1, 4)), (torch.zeros(2, 4), torch.zeros(4))
    noise, levels = torch.zeros(1, 3, 32, 32), transformer.levels_of(4, 3.0)
    colors = transformer.sample(velocity, prompts, empty, noise, levels, 2.5)
    assert torch.allclose(colors, torch.full_like(colors, -2.5))


def test_other_words_ask_for_the_same_images() -> None:
    for task in REWORDED.values():
        base = TASKS[task.name.split("_")[0]]
        for question, other in zip(task.questions(40), base.questions(40), strict=True):
            assert question.concept == other.concept and question.prompt != other.prompt
    asked = REWORDED["painters10_long"].questions(40)
    assert min(len(question.prompt.text.split()) for question in asked) >= 25


NAMES = ("none", DEFAULT, "few", "uce_lent", "oce_lent_x10", "uce_2023", "uce_2025", "rece", "oce")
NAMES += ("double_projections", "uce_2023_own_list")


def test_from_runs_to_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = retain_from_names(builtin_retain("artists").names[:60], "artists", "style")
    monkeypatch.setattr(tasks, "default_retain", lambda concepts: few)
    crowd = Crowd(folder, CrowdText(folder, fake_encoder()), steps=2)
    runner = Runner(crowd, 6, lambda text: None, effort="fast")
    chosen = [METHODS[name] for name in NAMES]
    task = TASKS["painters1"]
    runner.run_all([task], lambda name: chosen)
    found = {r["method"]: r for r in runner.results()}
    assert set(found) == {method.name for method in chosen} and not any(
        "refused" in r for r in found.values()
    )
    assert found["none"]["change"]["kept"] == 0 and found["none"]["frechet"] == pytest.approx(
        0, abs=1e-6
    )
    assert (
        found[DEFAULT]["left"].keys() == {"Vincent van Gogh"}
        and found[DEFAULT]["drift"] is not None
    )
    assert {len(r["right"]) for r in found.values()} == {len(task.questions(6))}

    def fail(*_: object) -> None:
        raise AssertionError("A stored run was drawn again.")

    monkeypatch.setattr(methods.TaskRows, "edit", fail)
    runner.run_all([task], lambda name: chosen)
    monkeypatch.setattr(report, "SHOWN", {"a": ("painters1",)})
    for world in ("a", "a2"):
        store(runner, tmp_path, world)
    assert (tmp_path / "images-a-painters1.png").exists()
    shown = write_page(tmp_path).read_text(encoding="utf-8")
    ours = {name: f"{100 * found[DEFAULT][name]:.1f}" for name in ("acc_e", "acc_r", "h_o")}
    assert f"| 1 painter | {ours['acc_e']} | {ours['acc_r']} | {ours['h_o']} |" in shown
    assert shown.count(runner.folder.name) >= 2
    _, again = unpacked(stored_path(tmp_path, "a"))
    for result in again:
        assert result["right"] == found[result["method"]]["right"]
        assert result["roles"] == found[result["method"]]["roles"]
    for name in ("runs.csv", "runs-a.json", "painters.png"):
        assert (tmp_path / name).exists() and name in shown, name


PAGE = Path(__file__).parents[2] / "docs/research/image-tests"


def test_the_page_is_made_from_its_runs() -> None:
    hint = "Run `python -m benchmarks.crowd page`."
    assert page(PAGE) == (PAGE / "README.md").read_text(encoding="utf-8"), hint
    worlds = {name: runs for name, (_, runs) in stored_worlds(PAGE).items()}
    assert runs_csv(worlds) == (PAGE / "runs.csv").read_text(encoding="utf-8"), hint


def test_what_the_knee_changes_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = retain_from_names(builtin_retain("artists").names[:60], "artists", "style")
    monkeypatch.setattr(tasks, "default_retain", lambda concepts: few)
    said: list[str] = []
    runner = Runner(Crowd(folder, CrowdText(folder, fake_encoder())), 6, said.append, effort="fast")
    for pays in (-math.inf, math.inf):
        monkeypatch.setattr(auto, "MIN_KNEE_SLOPE", pays)
        runner.choices([TASKS["painters1"]])
    free, strict = said
    chosen = free.removeprefix("painters1").removesuffix("; the same").strip()
    assert free.endswith("; the same") and strict.endswith(f"; without the knee {chosen}")
    assert (
        float(strict.split("drift ")[1].split(",")[0])
        <= auto.FREE_DRIFT
        < float(chosen.split()[1].rstrip(","))
    )
