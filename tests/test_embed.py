"""Rows for the engine: the right rows of the right prompts, paired, grouped and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from text_pico import WIDTH, full_prompt, tiny_encoder

from speed_erase.speed_ops import embed as embedding
from speed_erase.speed_ops.certificate.forecast import Forecast
from speed_erase.speed_ops.embed import embed
from speed_erase.speed_ops.embedder import outlook
from speed_erase.speed_ops.encoders.cache import CachedEncoder, EmbeddingCache
from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
from speed_erase.speed_ops.encoders.encoder import TextEncoder
from speed_erase.speed_ops.engine.rows import Rows
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.errors import InputError, SettingsError
from speed_erase.speed_ops.inputs import TOKENS
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.progress import Progress
from speed_erase.speed_ops.text.concept_list import Concept, parse_concepts
from speed_erase.speed_ops.text.kinds import KINDS
from speed_erase.speed_ops.text.plan import EFFORTS, RowPlan
from speed_erase.speed_ops.text.retain_set import RetainSet, builtin_retain, parse_retain
from speed_erase.speed_ops.text.tokens import IN_CONTEXT, Position

SMALL = RowPlan(templates=2, retain_templates=3, probe_templates=2)


@pytest.fixture(scope="module")
def encoder() -> ClipTextEncoder:
    return tiny_encoder("sd1")


def embedded(job, encoder, weights=None, **options) -> SimpleNamespace:
    """The token rows of a job and what happened to its lists, as one."""
    rows, report = embed(job, weights or layer(encoder), encoder, **options)
    return SimpleNamespace(**vars(rows[TOKENS]), **vars(report))


def embed_rows(
    encoder: TextEncoder | CachedEncoder,
    concepts: Sequence[Concept],
    retain: RetainSet,
    plan: RowPlan,
    ranked: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> SimpleNamespace:
    """The rows of a job where the forecast ranks these names; without any, all of them."""
    order = tuple(range(len(retain))) if ranked is None else tuple(ranked)
    job = Job(tuple(concepts), retain, EraseSettings(), replace(plan, names=len(order)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "forecast", lambda *_: Forecast((), (), order))
        return embedded(job, encoder, progress=progress)


def layer(encoder: TextEncoder | CachedEncoder) -> dict[str, torch.Tensor]:
    return {"a": torch.randn(24, encoder.width, generator=torch.Generator().manual_seed(1))}


def whole(encoder: ClipTextEncoder, prompt: str) -> torch.Tensor:
    return full_prompt(encoder, prompt)


def length(encoder: ClipTextEncoder, text: str) -> int:
    return len(encoder.token_ids(text))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() < 2e-6)


def group(rows: Rows, index: int) -> torch.Tensor:
    return rows.values[[i for i, owner in enumerate(rows.groups) if owner == index]]


def test_the_paper_s_rows(encoder: ClipTextEncoder) -> None:
    concepts = parse_concepts("Van Gogh -> art\nSnoopy | Snoopy Dog -> cartoon dog", "style")
    found = embed_rows(encoder, concepts, parse_retain("Monet\nPaul Klee"), RowPlan.bare())
    n, two = length(encoder, "van gogh"), length(encoder, "snoopy dog")
    assert close(group(found.targets, 0), whole(encoder, "Van Gogh")[[n]])
    assert close(group(found.anchors, 0), whole(encoder, "art")[[length(encoder, "art")]])
    snoopy = torch.stack(
        [whole(encoder, "Snoopy")[length(encoder, "snoopy")], whole(encoder, "Snoopy Dog")[two]]
    )
    assert close(group(found.targets, 1), snoopy)
    assert close(
        group(found.retain, 1), whole(encoder, "Paul Klee")[[length(encoder, "paul klee")]]
    )
    assert found.targets.names == ("Van Gogh", "Snoopy") and found.anchors.names == (
        "art",
        "cartoon dog",
    )
    assert found.retain.names == ("Monet", "Paul Klee")
    assert (
        not any(found.targets.in_context)
        and not any(found.retain.in_context)
        and found.in_context == 0
    )
    assert found.invariants.shape == (77, encoder.width) and close(
        found.invariants, whole(encoder, "")
    )


def test_themes_use_all_rows_after_the_start(encoder: ClipTextEncoder) -> None:
    found = embed_rows(encoder, parse_concepts("nudity", "theme"), RetainSet(), RowPlan.bare())
    assert close(found.targets.values, whole(encoder, "nudity")[1:])
    assert close(found.anchors.values, whole(encoder, "")[1:])
    assert found.retain.names == ("",) and close(found.retain.values, whole(encoder, "")[1:])
    assert not any(found.targets.in_context)


def test_rows_that_cannot_differ_are_left_out(encoder: ClipTextEncoder) -> None:
    """Up to the first token that differs a causal encoder gives target and anchor the same rows."""
    found = embed_rows(
        encoder, parse_concepts("red car crash -> red car", "theme"), RetainSet(), RowPlan.bare()
    )
    assert len(found.targets.values) == 76 - length(encoder, "red car")
    assert (found.targets.values - found.anchors.values).abs().amax(dim=1).min() > 1e-4


@pytest.mark.parametrize(("plan", "row"), [(RowPlan.bare(), 0), (RowPlan(rows="bare"), 2)])
def test_an_empty_anchor_of_a_bare_name(encoder: ClipTextEncoder, plan: RowPlan, row: int) -> None:
    assert length(encoder, "Van Gogh") == 2
    found = embed_rows(encoder, parse_concepts("Van Gogh ->", "style"), RetainSet(), plan)
    assert close(found.anchors.values, whole(encoder, "")[[row]])


def test_rows_in_context_pair_position_with_position(encoder: ClipTextEncoder) -> None:
    found = embed_rows(
        encoder, parse_concepts("Van Gogh -> modern abstract art", "style"), RetainSet(), SMALL
    )
    name, anchor = "Van Gogh", "modern abstract art"
    expected, counterpart = [], []
    for template in ("{}", *(t.text.replace("{name}", "{}") for t in KINDS["style"].templates[:2])):
        for rows, phrase in ((expected, name), (counterpart, anchor)):
            prompt = template.format(phrase)
            subject, end = (
                length(encoder, prompt[: prompt.index(phrase) + len(phrase)]),
                length(encoder, prompt) + 1,
            )
            chosen = [subject, end, end + 1, 76]
            # A name at the start of a prompt has the bare name's row, which is there already.
            rows.append(
                whole(encoder, prompt)[chosen[1:] if rows and prompt.startswith(phrase) else chosen]
            )
    assert close(found.targets.values, torch.cat(expected)) and close(
        found.anchors.values, torch.cat(counterpart)
    )
    assert found.targets.in_context == (False, *[True] * 10) == found.anchors.in_context
    assert found.targets.groups == found.anchors.groups


def test_an_empty_anchor_in_context_leaves_the_name_out(encoder: ClipTextEncoder) -> None:
    found = embed_rows(
        encoder, parse_concepts("Van Gogh ->", "style"), RetainSet(), RowPlan(templates=1)
    )
    plain = whole(encoder, "a painting")
    assert close(found.anchors.values[4:], plain[[2, 3, 4, 76]])
    empty = whole(encoder, "")
    assert close(found.anchors.values[:4], empty[[2, 1, 2, 76]])


def test_probes_stand_in_other_prompts(encoder: ClipTextEncoder) -> None:
    found = embed_rows(encoder, parse_concepts("Van Gogh", "style"), RetainSet(), SMALL)
    targets, anchors = found.probes
    assert len(targets.values) == len(anchors.values) == 4 + 3 and all(targets.in_context)
    # Whole prompts: no row of the probes is a row of the solve, nor are two rows of the solve the
    # same.
    assert torch.cdist(targets.values, found.targets.values).min() > 1e-3
    assert torch.pdist(found.targets.values).min() > 1e-3


def test_at_half_strength_the_edit_goes_half_of_the_way_and_the_report_measures_all_of_it(
    encoder: ClipTextEncoder,
) -> None:
    lines = ("Van Gogh -> art\nMonet -> art", "Van Gogh -> art || 0.5\nMonet -> art")
    whole_way, half = (
        embed_rows(encoder, parse_concepts(text, "style"), RetainSet(), SMALL) for text in lines
    )
    first = torch.tensor(whole_way.targets.groups) == 0
    change, halved = (rows.anchors.values - rows.targets.values for rows in (whole_way, half))
    assert close(halved[first], change[first] / 2) and close(halved[~first], change[~first])
    for same, other in zip(whole_way.probes, half.probes, strict=True):
        assert torch.equal(same.values, other.values)


def test_only_ranked_names_get_contexts(encoder: ClipTextEncoder) -> None:
    retain = parse_retain("Monet\nKlee\nDali", kind="style")
    plan = RowPlan(templates=2, retain_templates=2, probe_templates=1, hold_anchors=False)
    found = embed_rows(encoder, parse_concepts("Van Gogh", "style"), retain, plan, [1])
    assert [found.retain.groups.count(i) for i in range(3)] == [1, 1 + 3 + 4, 1]
    assert found.in_context == 1
    prompt = "a painting in the style of Klee"
    end = length(encoder, prompt) + 1
    assert close(group(found.retain, 1)[4:], whole(encoder, prompt)[[end - 1, end, end + 1, 76]])


def test_captions_and_foreign_kinds_keep_their_own_contexts(encoder: ClipTextEncoder) -> None:
    retain = parse_retain("a house by the sea", "scenes", "caption") | parse_retain(
        "Ada Lovelace", "people", "person"
    )
    plan = RowPlan(templates=1, retain_templates=1, hold_anchors=False)
    found = embed_rows(encoder, parse_concepts("Van Gogh", "style"), retain, plan)
    caption = "a house by the sea"
    end = length(encoder, caption) + 1
    assert close(group(found.retain, 0), whole(encoder, caption)[[end - 1, end, end + 1, 76]])
    portrait = whole(encoder, "a portrait of Ada Lovelace")
    assert close(group(found.retain, 1)[-1:], portrait[[76]])


def test_anchors_and_plain_prompts_are_held(encoder: ClipTextEncoder) -> None:
    found = embed_rows(
        encoder, parse_concepts("Van Gogh\nMonet\nDali -> sketch", "style"), RetainSet(), SMALL
    )
    plain = [template.fill("").text for template in KINDS["style"].templates[:2]]
    everyday = KINDS["style"].neighbors
    assert found.retain.names == ("art", "sketch", *everyday, *plain)
    assert found.retain.in_context[0] is False and found.retain.in_context[-1] is True


def test_what_is_erased_is_never_held(encoder: ClipTextEncoder) -> None:
    concepts = parse_concepts("Monet -> Manet\nManet -> painting\npainting -> art", "style")
    names = embed_rows(encoder, concepts, RetainSet(), SMALL).retain.names
    assert "Manet" not in names and "painting" not in names and "a painting" not in names
    assert "art" in names


def test_second_run_encodes_only_the_added_concept(tmp_path: Path) -> None:
    retain = parse_retain("\n".join(f"painter {i}" for i in range(40)))

    def run(text: str) -> tuple[int, int, torch.Tensor]:
        reader = CachedEncoder(tiny_encoder(), EmbeddingCache(tmp_path))
        found = embed_rows(reader, parse_concepts(text, "style"), retain, SMALL, range(5))
        assert found.seconds.keys() == {"concepts", "retain names", "retain contexts"}
        return found.encoded, found.reused, found.targets.values

    first, _, values = run("Van Gogh")
    assert first > 50
    assert run("Van Gogh")[0] == 0
    encoded, _, more = run("Van Gogh\nCezanne")
    assert encoded == 1 + SMALL.templates + SMALL.probe_templates
    assert torch.equal(more[: len(values)], values)


def test_unusable_retain_names_are_counted_and_targets_refused(encoder: ClipTextEncoder) -> None:
    long = "🤖🦾 " * 40
    found = embed_rows(
        encoder, parse_concepts("Van Gogh", "style"), parse_retain(f"Monet\n{long}"), RowPlan.bare()
    )
    assert found.retain.names == ("Monet",) and len(found.unusable) == 1
    with pytest.raises(InputError, match="takes 75"):
        embed_rows(encoder, parse_concepts(long, "style"), RetainSet(), RowPlan.bare())


def test_a_name_too_long_for_its_template_keeps_its_bare_row(encoder: ClipTextEncoder) -> None:
    long = "cat " * 73
    plan = RowPlan(templates=1, retain_templates=2, hold_anchors=False)
    found = embed_rows(encoder, parse_concepts("Van Gogh", "style"), parse_retain(long), plan)
    assert len(found.retain.values) == 1 and not found.unusable


def test_clear_refusals(encoder: ClipTextEncoder) -> None:
    with pytest.raises(InputError, match="nothing to erase"):
        embed_rows(encoder, (), RetainSet(), RowPlan())
    with pytest.raises(InputError, match=r"Line 7: .*are the same"):
        embed_rows(
            encoder,
            [Concept("KELVIN", "\u212aELVIN", "style", line=7)],
            RetainSet(),
            RowPlan.bare(),
        )
    with pytest.raises(InputError, match=r"Line 2: .*cannot read"):
        embed_rows(
            encoder, [Concept("\u2028", "art", "style", line=2)], RetainSet(), RowPlan.bare()
        )
    for bad in (
        {"rows": "all"},
        {"templates": -1},
        {"probe_templates": 0},
        {"positions": Position(0)},
        {"empty_anchor": ""},
    ):
        with pytest.raises(SettingsError):
            RowPlan(**bad)


def test_progress_and_interrupt(encoder: ClipTextEncoder) -> None:
    stages: dict[str, tuple[int, int]] = {}
    concepts, retain = parse_concepts("Van Gogh", "style"), parse_retain("Monet\nKlee")
    embed_rows(
        encoder, concepts, retain, SMALL, progress=lambda s, d, t: stages.__setitem__(s, (d, t))
    )
    assert list(stages) == ["empty prompt", "concepts", "probes", "retain names", "retain contexts"]
    assert all(done == total for done, total in stages.values())
    for stage in stages:

        def stop(name: str, done: int, total: int, stage: str = stage) -> None:
            if name == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            embed_rows(encoder, concepts, retain, SMALL, progress=stop)


@pytest.mark.parametrize("family", ["sd2", "sdxl"])
def test_other_families(family: str) -> None:
    found = embed_rows(
        tiny_encoder(family), parse_concepts("Van Gogh", "style"), parse_retain("Monet"), SMALL
    )
    assert (
        found.targets.width == found.invariants.shape[1] == WIDTH * (2 if family == "sdxl" else 1)
    )


def test_without_a_cache_no_retain_name_is_encoded_twice(encoder: ClipTextEncoder) -> None:
    retain = parse_retain("Monet\nKlee\nDali")
    plan = RowPlan(templates=1, retain_templates=1, probe_templates=1, hold_anchors=False)
    found = embed_rows(encoder, parse_concepts("Van Gogh", "style"), retain, plan, [])
    # The empty prompt, two prompts and their anchors, one probe and its anchor, three names.
    assert found.encoded == 1 + 4 + 2 + 3


def big_job(names: int = 120, **changes: object) -> Job:
    settings = EraseSettings.preset("auto", held_out=0.1, **{"effort": "fast", **changes})
    retain = parse_retain("\n".join(f"Painter {i} of Town {i * 7}" for i in range(names)))
    return Job.of(tuple(parse_concepts("Van Gogh\nClaude Monet", "style")), retain, settings)


def test_names_and_prompts_to_judge_by_are_apart_from_the_edit(encoder: ClipTextEncoder) -> None:
    found = embedded(big_job(), encoder)
    kept, held, seen = (set(rows.names) for rows in (found.retain, found.held_out, found.witnesses))
    assert len(held) == 12 and len(seen) == 16 and not held & seen and not kept & (held | seen)
    for rows in (found.held_out, found.witnesses):
        assert any(rows.in_context) and not all(rows.in_context)
    assert found.trial is not None and found.trial[0].names == found.targets.names
    solved = {tuple(row[:6].tolist()) for row in found.targets.values}
    for rows in (found.trial[0], found.probes[0]):
        assert not solved & {tuple(row[:6].tolist()) for row in rows.values}


def test_captions_and_anchors_are_kept_whatever_the_list(encoder: ClipTextEncoder) -> None:
    found = embedded(big_job(), encoder)
    captions = set(builtin_retain("scenes").names)
    assert len(captions & set(found.retain.names)) >= EFFORTS["fast"].captions
    assert "art" in found.retain.names


def test_the_plan_and_so_the_rows_are_the_same_every_time(encoder: ClipTextEncoder) -> None:
    first, second = (embedded(big_job(), encoder) for _ in range(2))
    for name in ("targets", "retain", "held_out", "witnesses"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert mine.names == theirs.names and torch.equal(mine.values, theirs.values)
    assert set(embedded(big_job(seed=5), encoder).held_out.names) != set(first.held_out.names)


def test_what_is_coming_is_said_before_and_what_was_left_out_after(
    encoder: ClipTextEncoder,
) -> None:
    said: list[str] = []
    found = embedded(big_job(400), encoder, announce=said.append)
    (text,) = said
    assert text.code == "encoding_timed" and text.data["prompts"] > 400
    assert found.left_out == 400 - 16 - 16 - EFFORTS["fast"].considered
    assert embedded(big_job(120), encoder).left_out == 0


def test_the_estimate_grows_with_the_time_per_text_and_with_their_number(
    encoder: ClipTextEncoder,
) -> None:
    reader = CachedEncoder(encoder)
    slow, slower, more = (
        outlook(reader, prompts, 0, 10, seconds).data["seconds"]
        for prompts, seconds in ((100, 20.0), (100, 40.0), (200, 20.0))
    )
    assert slow > 0 and slower == pytest.approx(2 * slow, abs=1)
    assert more == pytest.approx(2 * slow, abs=1)


def test_a_short_list_spares_no_witnesses(encoder: ClipTextEncoder) -> None:
    found = embedded(big_job(12), encoder)
    assert found.witnesses is None and found.held_out is not None and len(found.held_out.names) == 1


class Recording:
    """Passes everything on and records which texts are run."""

    def __init__(self, encoder: ClipTextEncoder) -> None:
        self.encoder, self.texts = encoder, set()

    def __getattr__(self, name: str):
        return getattr(self.encoder, name)

    def encode(self, prompts, lengths, progress=None):
        self.texts |= set(prompts)
        return self.encoder.encode(prompts, lengths, progress)


def test_positions_cost_no_text(encoder: ClipTextEncoder) -> None:
    """The rows of the whole prompt come from the very prompts that four of its rows came from."""
    job = big_job()
    few = replace(job, plan=replace(job.plan, positions=IN_CONTEXT, retain_positions=IN_CONTEXT))
    recordings = Recording(encoder), Recording(encoder)
    every = embedded(job, recordings[0])
    four = embedded(few, recordings[1])
    assert len(recordings[0].texts) == len(recordings[1].texts) > 100
    assert len(every.retain.values) > 2 * len(four.retain.values)
