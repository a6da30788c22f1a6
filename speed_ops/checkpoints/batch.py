"""One job on many models: each is cleaned, skipped or failed, and no failure stops the others."""

from __future__ import annotations

import os
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError, NotFoundError, SpeedError, error_code, user_message
from ..files.atomic import sweep
from ..files.checkpoint import Checkpoint
from ..files.schema import reading
from ..models.detect import is_lora, model_name, piece_name, unet_conflict
from ..models.keys import Shapes, find_unet
from ..progress import Announce, Stage
from ..recipe import Recipe, StoredJob, recipe_of
from .erase_file import clean_file
from .finished import already_applied, finished
from .output_files import PRODUCTS, OutputFiles, Product
from .text_setup import TextSetup

SUFFIXES = (".safetensors", ".ckpt", ".pt")


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    model: str
    """Path or URL."""
    status: Literal["cleaned", "ready", "skipped", "failed"]
    """ready: nothing was done yet, and nothing prevents it."""
    detail: str
    seconds: float = 0.0
    code: str = ""
    """Error code of a failure."""
    facts: Mapping[str, Any] | None = None
    """More for programs, such as the files that were written."""


@dataclass(frozen=True)
class Candidate:
    """A file or folder that may be a model, and where its results go."""

    path: Path
    outputs: OutputFiles
    name: str
    """Path below the folder that was searched, to show to people."""
    url: str = ""
    """Where the model is, if `path` is a local copy."""
    known: Done | None = None
    """Set if the outcome is clear before any work."""

    @property
    def label(self) -> str:
        """URL or path: what messages and results call the model."""
        return self.url or str(self.path)

    def paths(self, products: tuple[Product, ...] | None = None) -> dict[Product, Path]:
        """Where the results go: those that were requested, or other `products`."""
        outputs = self.outputs if products is None else replace(self.outputs, products=products)
        return outputs.paths(self.path)

    def skipped(self, reason: str) -> Done:
        """The outcome if there is nothing to do."""
        return Done(self.label, "skipped", reason)

    def already_done(self) -> Done:
        """The outcome if the results of this job exist."""
        return self.skipped("Already done.")

    def failed(self, fault: Exception, started: float | None = None) -> Done:
        """The outcome after an exception; `started` is a reading of `time.perf_counter`."""
        seconds = 0.0 if started is None else time.perf_counter() - started
        return Done(self.label, "failed", user_message(fault), seconds, error_code(fault))


def find_models(
    folder: Path,
    outputs: OutputFiles,
    *,
    url: str = "",
    recursive: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Candidate]:
    """Finds single files and diffusers folders.

    Hidden folders, the output folder and the insides of diffusers folders are not searched.

    Args:
        folder: Where to search.
        outputs: What to write for each model; results mirror the subfolders of `folder`.
        url: Where the models are, if `folder` is a local copy.
        recursive: Whether to search subfolders.
        include: Patterns; if any, one must match the path below `folder`, written with slashes.
            Their `*` also matches slashes.
        exclude: Patterns; none may match.
    """
    models = []
    for path in _entries(folder, outputs.folder, recursive):
        inner = path.relative_to(folder)
        name = inner.as_posix()
        if selected(name, include, exclude):
            model_url = f"{url}/{name}" if url else ""
            models.append(Candidate(path, outputs.below(inner.parent), name, model_url))
    if not models:
        missing = "no .safetensors file and no diffusers folder"
        if include or exclude:
            missing += " that the patterns let through"
        raise NotFoundError(
            f"There is no checkpoint in {url or folder}, only {missing}. Give a folder with"
            " safetensors files."
        )
    return models


def selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the patterns let a model through.

    Args:
        name: The model's path below the searched folder.
        include: Patterns; if any, one must match.
        exclude: Patterns; none may match.
    """
    included = not include or any(fnmatchcase(name, pattern) for pattern in include)
    return included and not any(fnmatchcase(name, pattern) for pattern in exclude)


def _entries(folder: Path, out: Path, recursive: bool) -> Iterator[Path]:
    """Possible models; a folder that two links lead to is searched once."""
    queue, seen = [folder], {_identity(out)} - {_identity(folder)}
    while queue:
        current = queue.pop(0)
        if (identity := _identity(current)) in seen:
            continue
        seen.add(identity)
        with reading(f"the folder {current}"):
            entries = sorted(entry for entry in current.iterdir() if not entry.name.startswith("."))
        for entry in entries:
            if not entry.is_dir():
                if entry.suffix.lower() in SUFFIXES:
                    yield entry
            elif (entry / "model_index.json").is_file():
                if _identity(entry) not in seen:
                    yield entry
            elif recursive:
                queue.append(entry)


def _identity(path: Path) -> str:
    """Equal for paths that may be the same file: some systems ignore case and composition."""
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


def classify(
    candidates: Sequence[Candidate], stored: StoredJob, clip_skip: int | None
) -> list[Candidate]:
    """Sets `known` for files that are not models, cannot be read, or are results of this job.

    Refuses the batch if two models would be written to the same path.

    Args:
        candidates: What `find_models` returned.
        stored: The job.
        clip_skip: How the text encoder will be read.
    """
    producers = {
        _identity(path): candidate
        for candidate in candidates
        for path in candidate.paths(PRODUCTS).values()
    }
    recipe = recipe_of(stored.job, strength=stored.strength, clip_skip=clip_skip)
    classified = [
        replace(candidate, known=candidate.known or _known_outcome(candidate, producers, recipe))
        for candidate in candidates
    ]
    _refuse_collisions([candidate for candidate in classified if candidate.known is None])
    return classified


def _known_outcome(
    candidate: Candidate, producers: Mapping[str, Candidate], recipe: Recipe
) -> Done | None:
    try:
        checkpoint = Checkpoint.open(candidate.path, candidate.label)
    except SpeedError as fault:
        return candidate.failed(fault)
    producer = producers.get(_identity(candidate.path), candidate)
    if producer is not candidate and any(key.startswith("speed.") for key in checkpoint.metadata):
        return candidate.skipped(f"It is the result of an earlier run on {producer.name}.")
    if reason := _not_a_model(checkpoint.shapes):
        return candidate.skipped(f"{reason}.")
    if already_applied(checkpoint, recipe):
        return candidate.skipped("This recipe has been applied to it before.")
    return None


def _not_a_model(shapes: Shapes) -> str | None:
    """What a file is if it holds no text-to-image model, as a sentence without its period."""
    if is_lora(shapes):
        return "It is a LoRA, not a model"
    unet = find_unet(shapes)
    if unet is not None:
        return unet_conflict(shapes, unet[1])
    name = model_name(shapes)
    if name is not None and "ControlNet" not in name:
        return None
    return f"It looks like {name or piece_name(shapes) or 'a file without a model'}"


def _refuse_collisions(models: Sequence[Candidate]) -> None:
    sources = {_identity(model.path): model for model in models}
    producers: dict[str, Candidate] = {}
    for model in models:
        for path in model.paths().values():
            key = _identity(path)
            if sources.get(key, model) is not model:
                raise FileError(
                    f"The result of {model.label} would replace the model {sources[key].label}."
                    " Choose another folder."
                )
            if key in producers:
                raise FileError(
                    f"{producers[key].label} and {model.label} would both be written to"
                    f" {model.outputs.label(path)}. Rename one, or leave it out."
                )
            producers[key] = model


def clean_one(
    candidate: Candidate,
    stored: StoredJob,
    text: TextSetup,
    note: Announce,
    stopping: threading.Event,
) -> Done:
    """Cleans one model unless that is done already.

    Args:
        candidate: The model and its outputs.
        stored: The job.
        text: How text becomes embeddings.
        note: Receives sentences for the user.
        stopping: Set when the batch is to end.
    """
    if candidate.known is not None:
        return candidate.known
    started = time.perf_counter()

    def stop_if_asked(stage: Stage, done: int, total: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt

    try:
        if results := finished(candidate.path, stored, text, candidate.outputs, candidate.label):
            sweep(candidate.outputs.folder)  # the run that finished it may have been killed then
            return replace(
                candidate.already_done(),
                seconds=time.perf_counter() - started,
                facts={"files": candidate.outputs.labels(results)},
            )
        cleaned = clean_file(
            candidate.path,
            stored,
            text,
            candidate.outputs,
            note=note,
            progress=stop_if_asked,
            label=candidate.label,
        )
    except Exception as fault:  # one bad file must not stop the others
        return candidate.failed(fault, started)
    erasure, seconds = cleaned.erasure, cleaned.seconds
    concepts = erasure.certificate.concepts if erasure.certificate is not None else ()
    erased = sum(concept.verdict == "erased" for concept in concepts)
    facts: dict[str, Any] = {"files": candidate.outputs.labels(cleaned.files), "erased": erased}
    if (report := erasure.text_report) is not None:
        facts |= {"encoded": report.encoded, "reused": report.reused}
    plural = "" if len(concepts) == 1 else "s"
    detail = f"{erased} of {len(concepts)} concept{plural} erased."
    return Done(candidate.label, "cleaned", detail, seconds, facts=facts)


def for_each(
    candidates: Sequence[Candidate],
    work: Callable[[Candidate, threading.Event], Done],
    on_done: Callable[[int, Candidate, Done], None],
    jobs: int = 1,
) -> list[Done]:
    """Runs `work` on every candidate. After an interrupt, running work stops where it can.

    Args:
        candidates: The models.
        work: Called with a candidate and an event that is set when it should stop.
        on_done: Called after each model with the number done so far, the model and its outcome.
        jobs: Models at a time.
    """
    stopping = threading.Event()
    results: dict[int, Done] = {}
    prefix = f"batch {secrets.token_hex(4)} "
    with ThreadPoolExecutor(jobs, thread_name_prefix=prefix) as pool:
        try:
            pending: dict[Future[Done], int] = {
                pool.submit(work, candidate, stopping): index
                for index, candidate in enumerate(candidates)
            }
            while pending:
                # In short steps: on Windows nothing interrupts a longer wait.
                completed = wait(pending, 0.5, FIRST_COMPLETED).done
                for future in sorted(completed, key=pending.__getitem__):
                    index = pending.pop(future)
                    results[index] = future.result()
                    on_done(len(results), candidates[index], results[index])
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            # The pool does not know of a thread during whose start we were interrupted.
            for thread in threading.enumerate():
                if thread.name.startswith(prefix):
                    thread.join()
            raise
    return [results[index] for index in sorted(results)]
