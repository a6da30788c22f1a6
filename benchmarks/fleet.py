"""What the plan in docs/hosts/fleet.md is made from: reading headers, cleaning models, Ray's share.

    python -m benchmarks.fleet [--models N] [--gigabytes X] [--tasks N] [--folder DIR]

Processor seconds are given, too: they are meaningful on a busy machine. The models are the demo's,
with zeros added until they are as large as real ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from speed_erase.speed_ops.checkpoints.batch import Candidate, classify
from speed_erase.speed_ops.checkpoints.output_files import PRODUCTS, OutputFiles
from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup, survey
from speed_erase.speed_ops.demo.packed_model import write_checkpoint
from speed_erase.speed_ops.engine.settings import EraseSettings
from speed_erase.speed_ops.files.header import TensorEntry, encode_header, read_header
from speed_erase.speed_ops.fleet.catalogue import HeaderMirror
from speed_erase.speed_ops.fleet.ray_session import connected
from speed_erase.speed_ops.fleet.worker import SharedRows, Worker
from speed_erase.speed_ops.job import Job
from speed_erase.speed_ops.recipe import StoredJob
from speed_erase.speed_ops.text.concept_list import parse_concepts
from speed_erase.speed_ops.text.retain_set import builtin_retain

SETTINGS = EraseSettings.preset("auto", held_out=0.1, effort="fast")
KEPT = builtin_retain("artists").limit(100)
CONCEPTS = parse_concepts("Van Gogh -> art", "style")
JOB = StoredJob(Job.of(CONCEPTS, KEPT, SETTINGS), 1.0, None, ())


def measured(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds of the clock and of the processor."""
    clock, used = time.perf_counter(), time.process_time()
    result = work()
    spent = time.perf_counter() - clock, time.process_time() - used
    return {"clock": round(spent[0], 3), "processor": round(spent[1], 3)}, result


def look(demo: Path, folder: Path, count: int) -> dict[str, Any]:
    """Headers of many models, as the scheduler reads them; the weights are holes."""
    header, size = read_header(demo), demo.stat().st_size
    start = demo.open("rb").read(header.data_start)
    (folder / "many").mkdir()
    for number in range(count):
        with (folder / "many" / f"{number}.safetensors").open("wb") as handle:
            handle.write(start)
            handle.truncate(size)
    mirror = HeaderMirror(folder / "none", folder / "many", folder / "out")

    def survey_all() -> None:
        models = mirror.find_models(OutputFiles(folder / "out", PRODUCTS))
        for model in classify(models, JOB, None):
            survey(model.path, TextSetup(), mirror.read, model.label)

    seconds, _ = measured(survey_all)
    facts = {"models": count, "tensors": len(header.entries), "header bytes": header.data_start}
    return facts | {"seconds": seconds}


def alike(demo: Path) -> dict[str, int]:
    """How many of some texts get other rows when they are encoded with other texts, or alone."""
    encoder = TextSetup().encoder(ModelSource.open(demo)).encoder
    things = ("cat", "tree", "ship") * 8
    texts = [f"a painting of a {thing} by painter number {n}" for n, thing in enumerate(things)]
    together = encoder.encode(texts, [encoder.context_length] * len(texts))
    counts = {}
    for name, size in (("alone", 1), ("in fives", 5)):
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        length = encoder.context_length
        encoded = (encoder.encode(batch, [length] * len(batch)) for batch in batches)
        separate = list(itertools.chain.from_iterable(encoded))
        pairs = zip(together, separate, strict=True)
        counts[name] = sum(not torch.equal(rows, again) for rows, again in pairs)
    return counts


def padded(demo: Path, path: Path, size: int) -> None:
    """The demo with zeros instead of the VAE, so that it is as large as a real model."""
    header, content = read_header(demo), demo.read_bytes()
    end = header.data_size
    zeros = TensorEntry("U8", (size - end,), end, size)
    entries = {**header.entries, "first_stage_model.decoder.filling": zeros}
    with path.open("wb") as handle:
        handle.write(encode_header(entries, dict(header.metadata)))
        handle.write(content[header.data_start :])
        filling = bytes(1 << 24)
        for _ in range((size - end) // len(filling)):
            handle.write(filling)
        handle.write(bytes((size - end) % len(filling)))


def clean(models: list[Path], out: Path) -> dict[str, Any]:
    """Two models with one text encoder in turn; the second has the rows of the first."""
    worker = Worker(JOB, TextSetup(), caching=False)
    shared: SharedRows | None = None
    figures: dict[str, Any] = {}
    for path in models:
        model = Candidate(path, OutputFiles(out, PRODUCTS), path.name)
        seconds, (done, _, rows) = measured(
            lambda model=model, shared=shared: worker.clean(model, shared, shared is None)  # type: ignore[misc]
        )
        assert done.status == "cleaned", done.detail
        counts = {name: done.facts[name] for name in ("encoded", "reused")}
        figures[path.stem] = counts | {"seconds": seconds}
        if rows is not None:
            shared = rows
            figures["rows"] = {"count": len(rows.keys), "bytes": rows.values.nbytes}
    figures["peak bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def nothing(number: int) -> int:
    """A task that does nothing."""
    return number


def hand_out(tasks: int) -> dict[str, Any]:
    """How fast Ray itself hands out work, one processor each."""
    with connected(cores=1) as (ray, _):
        task = ray.remote(max_retries=0)(nothing)
        ray.get(task.remote(0))
        seconds, _ = measured(lambda: ray.get([task.remote(number) for number in range(tasks)]))
    return {"tasks": tasks, "seconds": seconds}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--gigabytes", type=float, default=2.1)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="a place for some gigabytes")
    parser.add_argument("--clean", nargs=3, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clean:  # in a process of its own, whose peak memory is its own
        print(json.dumps(clean(args.clean[:2], args.clean[2])))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        folder = Path(scratch)
        demo = folder / "demo.safetensors"
        write_checkpoint(demo)
        figures: dict[str, Any] = {"alike": alike(demo), "look": look(demo, folder, args.models)}
        figures["hand out"] = hand_out(args.tasks)
        for name in ("first", "second"):
            padded(demo, folder / f"{name}.safetensors", int(args.gigabytes * 1e9))
        models = [folder / "first.safetensors", folder / "second.safetensors"]
        arguments = ["--clean", *models, folder / "out"]
        command = [sys.executable, "-m", "benchmarks.fleet", *map(str, arguments)]
        single = os.environ | {"OMP_NUM_THREADS": "1"}
        child = subprocess.run(command, stdout=subprocess.PIPE, env=single, check=True)
        figures["clean"] = json.loads(child.stdout)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
