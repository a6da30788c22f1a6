"""One job on many models: each cleaned, found finished, passed over, or failed without stopping the
rest.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ..errors import FileError, NotFoundError, SpeedError, error_code, user_message
from ..files.checkpoint import Checkpoint
from ..models.detect import is_lora, model_name, piece_name, unet_conflict
from ..models.keys import Shapes, find_unet
from ..progress import Stage
from ..provenance import read_provenance
from ..recipe import Recipe, StoredJob, recipe_of, same_work
from .erase_file import Note, clean_file, made_by, possible_outputs
from .output_files import PRODUCTS, OutputFiles, Product
from .source import ModelSource, TextSetup

SUFFIXES = (".safetensors", ".ckpt", ".pt")
Status = Literal["cleaned", "ready", "skipped", "failed"]


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    model: Path | str
    """Its path, or its URL in a store."""
    status: Status
    """ready: nothing has been done yet, and nothing speaks against it."""
    detail: str
    seconds: float = 0.0
    code: str = ""
    """Of a failure, for programs."""
    facts: Mapping[str, Any] | None = None
    """What else programs may want to know."""


@dataclass(frozen=True)
class Candidate:
    """What may be a model, and where its results go."""

    path: Path
    outputs: OutputFiles
    name: str
    """For people: the path below the folder that was searched."""
    known: Done | None = None
    """What becomes of it, where that is plain before any work."""

    def paths(self, products: tuple[Product, ...] | None = None) -> dict[Product, Path]:
        """Where its results go; of those that are asked for, or of others."""
        outputs = self.outputs if products is None else replace(self.outputs, products=products)
        return outputs.paths(self.path, is_folder=self.path.is_dir())

    def passed(self, reason: str) -> Candidate:
        """The same, not to be cleaned."""
        return replace(self, known=Done(self.path, "skipped", reason))

    def failed(self, fault: Exception, started: float | None = None) -> Done:
        """What becomes of it after a fault."""
        seconds = 0.0 if started is None else time.perf_counter() - started
        return Done(self.path, "failed", user_message(fault), seconds, error_code(fault))


def find_models(
    folder: Path,
    outputs: OutputFiles,
    *,
    recursive: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Candidate]:
    """Single files and diffusers folders in a folder, or in all folders below it, whose results
    mirror those folders.

    Hidden folders, the output folder and the insides of diffusers folders are not searched.
    Patterns are matched on the path below `folder`, written with slashes; their `*` matches
    slashes, too.
    """
    found = []
    for path in _entries(folder, outputs.folder, recursive):
        inner = path.relative_to(folder)
        name = inner.as_posix()
        if chosen(name, include, exclude):
            found.append(
                Candidate(path, replace(outputs, folder=outputs.folder / inner.parent), name)
            )
    if not found:
        what = "no .safetensors file and no diffusers folder"
        what = f"{what} that --include and --exclude let through" if include or exclude else what
        raise NotFoundError(f"There is no checkpoint in {folder}: it contains {what}.")
    return found


def chosen(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the patterns let a model through; `name` is its path below the folder that is
    searched.
    """
    wanted = not include or any(fnmatchcase(name, pattern) for pattern in include)
    return wanted and not any(fnmatchcase(name, pattern) for pattern in exclude)


def _entries(folder: Path, out: Path, recursive: bool) -> Iterator[Path]:
    """What looks like a model, folder by folder; a folder that links lead to twice is searched
    once.
    """
    waiting, seen = [folder], {_identity(out)} - {_identity(folder)}
    while waiting:
        place = waiting.pop(0)
        if (identity := _identity(place)) in seen:
            continue
        seen.add(identity)
        try:
            entries = sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
        except OSError as error:
            raise FileError(
                f"Cannot read the folder {place}: {error.strerror or error}."
            ) from error
        for entry in entries:
            if not entry.is_dir():
                if entry.suffix.lower() in SUFFIXES:
                    yield entry
            elif (entry / "model_index.json").is_file():
                if _identity(entry) not in seen:
                    yield entry
            elif recursive:
                waiting.append(entry)


def _identity(path: Path) -> str:
    """The same for two paths that may be one file: letters' case and composition differ on some
    systems only.
    """
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


def sort_out(
    candidates: Sequence[Candidate], stored: StoredJob, clip_skip: int | None
) -> list[Candidate]:
    """The candidates, those marked that are no model, cannot be read, or are results of this or an
    earlier run.

    Refuses the whole when two models would be written to the same place.
    """
    made = {_identity(path): one for one in candidates for path in one.paths(PRODUCTS).values()}
    recipe = recipe_of(stored.job, strength=stored.strength, clip_skip=clip_skip)
    sorted_out = [_looked_at(one, made.get(_identity(one.path)), recipe) for one in candidates]
    _refuse_collisions([one for one in sorted_out if one.known is None])
    return sorted_out


def _looked_at(one: Candidate, maker: Candidate | None, recipe: Recipe) -> Candidate:
    try:
        checkpoint = Checkpoint.open(one.path)
    except SpeedError as fault:
        return replace(one, known=one.failed(fault))
    if (
        maker is not None
        and maker is not one
        and any(key.startswith("speed.") for key in checkpoint.metadata)
    ):
        return one.passed(f"It is the result of an earlier run on {maker.name}.")
    if reason := no_model(checkpoint.shapes):
        return one.passed(f"{reason}.")
    if _says(checkpoint, recipe):
        return one.passed("This recipe has been applied to it before.")
    return one


def _says(checkpoint: Checkpoint, recipe: Recipe) -> bool:
    """Whether a file says that this was done to it, last or before that."""
    try:
        said = read_provenance(checkpoint.metadata, str(checkpoint.path))
    except SpeedError:
        return False
    if said is None or said.recipe is None:
        return False
    earlier = recipe.as_earlier()
    return same_work(recipe, said.recipe) or any(
        same_work(earlier, one) for one in said.recipe.history
    )


def no_model(shapes: Shapes) -> str | None:
    """What a file is that holds no text-to-image model, as a sentence without its end; None where
    it may hold one.
    """
    if is_lora(shapes):
        return "It is a LoRA, not a model"
    unet = find_unet(shapes)
    if unet is not None:
        return unet_conflict(shapes, unet[1])
    other = model_name(shapes)
    if other is not None and "ControlNet" not in other:
        return None
    return f"It looks like {other or piece_name(shapes) or 'a file without a model'}"


def _refuse_collisions(models: Iterable[Candidate]) -> None:
    models = list(models)
    sources = {_identity(one.path): one for one in models}
    taken: dict[str, Candidate] = {}
    for one in models:
        for path in one.paths().values():
            key = _identity(path)
            if key in sources and sources[key] is not one:
                other = sources[key].path
                raise FileError(
                    f"The result of {one.path} would replace the model {other}: choose another"
                    " folder."
                )
            if key in taken:
                both = f"{taken[key].path} and {one.path}"
                raise FileError(
                    f"{both} would both be written to {path}: rename one of them, or leave it out."
                )
            taken[key] = one


def clean_one(
    one: Candidate, stored: StoredJob, text: TextSetup, note: Note, stopping: threading.Event
) -> Done:
    """Cleans one model unless that is done already; `stopping` is set when the batch is to end."""
    if one.known is not None:
        return one.known
    started = time.perf_counter()

    def stop_if_asked(stage: Stage, done: int, total: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt

    try:
        if there := finished(one, stored, text.clip_skip):
            facts: dict[str, Any] = {
                "files": {product: str(path) for product, path in there.items()}
            }
            return Done(
                one.path, "skipped", "Already done.", time.perf_counter() - started, facts=facts
            )
        outcome = clean_file(
            one.path,
            stored.job,
            text,
            one.outputs,
            strength=stored.strength,
            note=note,
            progress=stop_if_asked,
        )
    except Exception as fault:  # one bad file must not stop the rest
        return one.failed(fault, started)
    erasure = outcome.erasure
    concepts = erasure.certificate.concepts if erasure.certificate is not None else ()
    erased = sum(concept.verdict == "erased" for concept in concepts)
    what = f"{erased} of {len(concepts)} concept{'' if len(concepts) == 1 else 's'} erased"
    facts = {
        "files": {product: str(path) for product, path in outcome.files.items()},
        "erased": erased,
    }
    if (report := erasure.text_report) is not None:
        facts |= {"encoded": report.encoded, "reused": report.reused}
    return Done(
        one.path, "cleaned", f"{what}, {outcome.seconds:.1f} s.", outcome.seconds, facts=facts
    )


def finished(one: Candidate, stored: StoredJob, clip_skip: int | None) -> dict[Product, Path]:
    """Its results, if every file is there and says that it was made by this job from this very
    model; else none.
    """
    source = ModelSource.open(one.path)
    outputs = possible_outputs(source, stored.job, one.outputs, lambda text: None)
    paths = outputs.paths(one.path, is_folder=source.checkpoint.is_folder)
    if not all(path.exists() for path in paths.values()):
        return {}
    recipe = recipe_of(stored.job, strength=stored.strength, clip_skip=clip_skip)
    speaking = {path for product, path in paths.items() if product != "report"}
    return paths if speaking and made_by(recipe, source, speaking) == speaking else {}


def for_each(
    candidates: Sequence[Candidate],
    work: Callable[[Candidate, threading.Event], Done],
    told: Callable[[int, Candidate, Done], None],
    jobs: int = 1,
) -> list[Done]:
    """Does the work for each, some at a time, and tells of each as soon as it is done: how many
    are, which, and what.

    If this is interrupted, what is at work stops where it can, and what is done stays.
    """
    stopping = threading.Event()
    results: dict[int, Done] = {}
    name = f"batch {secrets.token_hex(4)} "
    with ThreadPoolExecutor(jobs, thread_name_prefix=name) as pool:
        try:
            waiting: dict[Future[Done], int] = {
                pool.submit(work, one, stopping): place for place, one in enumerate(candidates)
            }
            while waiting:
                # In short steps: on Windows nothing interrupts a longer wait.
                for future in sorted(
                    wait(waiting, 0.5, FIRST_COMPLETED).done, key=lambda one: waiting[one]
                ):
                    place = waiting.pop(future)
                    results[place] = future.result()
                    told(len(results), candidates[place], results[place])
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            # The pool does not know of a thread during whose start we were interrupted.
            for thread in [
                thread for thread in threading.enumerate() if thread.name.startswith(name)
            ]:
                thread.join()
            raise
    return [results[place] for place in sorted(results)]
