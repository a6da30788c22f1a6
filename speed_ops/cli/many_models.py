"""One job on many models: the work, or a plan of it, and what is printed about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recipe import StoredJob
from .console import Console, size_in_words, time_in_words
from .erase import layers_in_words

if TYPE_CHECKING:
    from ..checkpoints.batch import Candidate, Done
    from ..checkpoints.plan import Plan
    from ..checkpoints.text_setup import TextSetup
    from ..evaluate.pairs import Drawing

AfterAll = Callable[["Sequence[Candidate]", "Sequence[Done]"], None]
"""What is done with all models in the end."""
_TIMEOUT = 600.0
"""Seconds that a server may take for an image."""


def clean_many(
    candidates: Sequence[Candidate],
    stored: StoredJob,
    text: TextSetup,
    console: Console,
    dry_run: bool,
    jobs: int = 1,
    after_all: AfterAll | None = None,
) -> int:
    """One job on many models.

    Args:
        candidates: What may be models.
        stored: What to erase and what to keep, and how strongly.
        text: How to read text.
        console: Where the results are shown.
        dry_run: Show what would be done and write nothing.
        jobs: Models at a time.
        after_all: Called with the models and what became of them.
    """
    from ..checkpoints.batch import classify, clean_one, for_each

    models = classify(candidates, stored, text.clip_skip)

    def clean(model: Candidate, stopping: threading.Event) -> Done:
        def note(sentence: str) -> None:
            console.note(f"{model.name}: {sentence}")

        return clean_one(model, stored, text, note, stopping)

    work = _planner(stored, text) if dry_run else clean
    results = for_each(models, work, on_done(len(models), console), 1 if dry_run else jobs)
    if after_all is not None:
        after_all(models, results)
    return sum_up(dry_run, models, results, console)


def overview_writer(
    folder: Path, stored: StoredJob, servers: Sequence[str], console: Console
) -> AfterAll:
    """Writes the page about all models.

    Args:
        folder: Where it goes.
        stored: The job.
        servers: Addresses of ComfyUIs that may generate images.
        console: Where the path is shown.
    """
    from ..evaluate.local import LOCAL_SAMPLING, LocalBackend
    from ..evaluate.overview import write_overview
    from ..evaluate.setup import Sampling

    drawings: list[Drawing] = [(LocalBackend(), LOCAL_SAMPLING)]
    if servers:
        from ..evaluate.client import ComfyClient

        drawings += [(ComfyClient(url, _TIMEOUT), Sampling()) for url in servers]

    def write(candidates: Sequence[Candidate], results: Sequence[Done]) -> None:
        page, _ = write_overview(folder, candidates, results, stored, drawings, console.note)
        console.say(f"Saved {page}")

    return write


def _planner(stored: StoredJob, text: TextSetup) -> Callable[[Candidate, threading.Event], Done]:
    """Replaces the work by a plan of it. The disk must hold the results of all models."""
    from ..checkpoints.batch import Done
    from ..checkpoints.finished import finished
    from ..checkpoints.plan import plan_file, refuse_without_space

    plans: list[Plan] = []

    def plan_one(model: Candidate, stopping: threading.Event) -> Done:
        if model.known is not None:
            return model.known
        try:
            if finished(model.path, stored, text, model.outputs):
                return model.already_done()
            plan = plan_file(model.path, stored, text, model.outputs)
            plans.append(plan)
            refuse_without_space(plans)
        except Exception as fault:
            return model.failed(fault)
        size = size_in_words(plan.size)
        detail = f"{plan.family}, {layers_in_words(plan)}; writes about {size}"
        return Done(model.label, "ready", detail, facts=plan.to_json())

    return plan_one


def on_done(total: int, console: Console) -> Callable[[int, Candidate, Done], None]:
    """A function that prints what became of a model, out of `total`."""

    def report(count: int, model: Candidate, done: Done) -> None:
        console.say(f"[{count}/{total}] {model.name}: {done.status}. {done.detail}")
        console.part(_plain_done(done))

    return report


def sum_up(
    dry_run: bool, models: Sequence[Candidate], results: Sequence[Done], console: Console
) -> int:
    """Prints a table of all models; returns the exit code.

    Args:
        dry_run: Whether the results are plans.
        models: The models.
        results: The outcome of each.
        console: Where to print.
    """
    console.gap()
    rows = [
        (model.name, done.status, time_in_words(done.seconds))
        for model, done in zip(models, results, strict=True)
    ]
    console.table(("Model", "status", "time"), rows, right=(2,))
    counts = {
        status: sum(done.status == status for done in results)
        for status in ("ready" if dry_run else "cleaned", "skipped", "failed")
    }
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()) + ".")
    console.result(
        counts if console.lines else {"models": [_plain_done(done) for done in results], **counts}
    )
    return 1 if counts["failed"] else 0


def _plain_done(done: Done) -> dict[str, Any]:
    plain = {
        "model": done.model,
        "status": done.status,
        "detail": done.detail,
        "seconds": round(done.seconds, 3),
    }
    failed = {"error": {"code": done.code, "message": done.detail}} if done.code else {}
    return {**(done.facts or {}), **plain, **failed}
