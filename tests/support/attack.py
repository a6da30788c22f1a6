"""Attacks on the command line: runs killed at any moment, and input that parsers stumble over.

The suite runs a few of each, `python -m benchmarks.attack` thousands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import mini
from fake_comfy import FakeComfy

from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.fleet.ledger import read_ledger

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has but one way
KINDS = ("erase", "folder", "batch", "fleet", "demo", "evaluate")
"""What is killed. The fleet runs on a double of Ray, in the process that is killed."""
REPLACING = ("erase", "folder")
"""Those that begin with results of an earlier job, which they replace."""
RAY_DOUBLE = str(Path(__file__).parent / "ray_double")
HIDDEN = (".speed-tmp", ".speed-lock")
"""Endings of what a killed run may leave for the next one to sweep."""


class Workshop:
    """Models, a recipe, results and a warm cache: a run then takes little but the writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: FakeComfy | None = None
        self.cache = folder / "cache"
        (folder / "models").mkdir(parents=True)
        mini.write_model(folder / "models" / "m.safetensors")
        mini.write_folder(folder / "models" / "pipeline")
        os.environ["SPEED_ERASE_CACHE"] = str(self.cache)
        self.run(
            [
                *self.erase("m.safetensors", folder / "good"),
                "--save",
                "checkpoint,lora,recipe,report",
            ]
        )

    def run(self, arguments: list[str]) -> None:
        """To its end, here."""
        assert main(arguments) == 0, arguments

    def erase(self, model: str, out: Path, strength: str = "1") -> list[str]:
        """`erase` with results that may be replaced."""
        common = [
            "erase",
            str(self.folder / "models" / model),
            "--concepts",
            mini.CONCEPTS,
            *mini.QUICK,
        ]
        return [*common, "--strength", strength, "--out", str(out), "--quiet", "--force"]

    def batch(self, out: Path) -> list[str]:
        """`batch` over both models."""
        recipe = self.folder / "good" / "m-recipe.json"
        return [
            "batch",
            "--recipe",
            str(recipe),
            "--in",
            str(self.folder / "models"),
            "--out",
            str(out),
            "--quiet",
        ]

    def evaluate(self, out: Path) -> list[str]:
        """`evaluate` with a server that draws at once."""
        self.server = self.server or FakeComfy()
        prompts = self.folder / "prompts.txt"
        prompts.write_text("".join(f"a boat number {number} by Klee\n" for number in range(40)))
        models = ["--original", "model.safetensors", "--erased", "lora:eraser.safetensors"]
        settings = ["--size", "16x16", "--seeds", "2", "--prompts", str(prompts)]
        server = ["--server", self.server.url, "--out", str(out), "--quiet"]
        return ["evaluate", *models, *settings, *server]


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder and what it holds, but for what a run hides while it works.

    A report and a ledger have times in them, so of those it counts only whether they are whole.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.endswith(HIDDEN) for part in relative.parts):
            if path.suffix == ".jsonl":
                read_ledger(path)
                found[relative.as_posix()] = "a ledger"
                continue
            content = path.read_bytes()
            whole_page = path.suffix == ".html" and content.rstrip().endswith(b"</html>")
            found[relative.as_posix()] = (
                "a whole page" if whole_page else hashlib.sha256(content).hexdigest()
            )
    return found


def leftovers(folder: Path) -> list[str]:
    """What is hidden in a folder."""
    return (
        [path.name for path in folder.iterdir() if path.name.endswith(HIDDEN)]
        if folder.exists()
        else []
    )


class Killer:
    """Starts one kind of run over and over, kills it at a random moment, and looks at what is
    there.
    """

    def __init__(
        self, workshop: Workshop, nursery: mini.Nursery, kind: str, out: Path, seed: int = 0
    ) -> None:
        self.nursery, self.out, self.dice = nursery, out, random.Random(seed)
        model = "pipeline" if kind == "folder" else "m.safetensors"
        arguments = {
            "erase": workshop.erase(model, out, "0.5"),
            "folder": workshop.erase(model, out, "0.5"),
            "batch": workshop.batch(out),
            "fleet": [*workshop.batch(out), "--on", "ray", "--jobs", "1"],
            "demo": ["demo", "--out", str(out), "--quiet"],
            "evaluate": workshop.evaluate(out) if kind == "evaluate" else [],
        }
        self.kind, self.arguments = kind, arguments[kind]
        self.old: dict[str, str] = {}
        if kind in REPLACING:
            workshop.run(workshop.erase(model, out))
            self.old = digests(out)
        started = time.monotonic()
        self._whole()
        self.longest = time.monotonic() - started
        self.new = digests(out)
        assert set(self.old) <= set(self.new)
        self._reset(workshop, model)

    def _reset(self, workshop: Workshop, model: str) -> None:
        shutil.rmtree(self.out)
        if self.kind in REPLACING:
            workshop.run(workshop.erase(model, self.out))

    def _whole(self) -> None:
        self.nursery.start(self.arguments)
        assert self.nursery.wait() == 0

    def strike(self, how: int = KILL) -> bool:
        """One run, killed; whether it was caught at work. Every name must hold the old content or
        the new one.
        """
        before = set(leftovers(self.out))
        process = self.nursery.start(self.arguments)
        time.sleep(self.dice.uniform(0.02, 1.0) * self.longest)
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(process, how)
        caught = self.nursery.wait() != 0
        found = digests(self.out) if self.out.exists() else {}
        for name, content in found.items():
            assert content in (
                self.old.get(name),
                self.new.get(name),
            ), f"{name} is neither old nor new"
        lost = [name for name in self.old if name not in found and not self._aside(name)]
        assert not lost, f"{lost} are gone"
        if how != KILL:
            assert set(leftovers(self.out)) <= before, "a run that could clean up did not"
        # How busy the machine is decides which strikes come while there is something to kill.
        self.longest *= 1.1 if caught else 0.8
        if self.kind not in REPLACING and not (caught and self.dice.randrange(3)):
            # start over now and then, or everything would be done and skipped
            shutil.rmtree(self.out, ignore_errors=True)
        return caught

    def _aside(self, name: str) -> bool:
        """Whether a folder's file is where the next sweep puts it back from."""
        return any(self.out.glob(f".*{HIDDEN[0]}/aside/{name}"))

    def finish(self) -> None:
        """An undisturbed run, a minute later: everything is there, and nothing else."""
        for name in leftovers(self.out):
            os.utime(self.out / name, (time.time() - 60,) * 2)
        self._whole()
        assert digests(self.out) == self.new
        # An upload to a store may leave a hidden file: other machines may be at work there.
        assert self.kind == "fleet" or leftovers(self.out) == []


def mutated(content: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled, or replaced by what parsers stumble over."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data) or 1)
        choice = dice.randrange(5)
        if choice == 0 and data:
            data[place] = dice.randrange(256)
        elif choice == 1:
            del data[place : place + dice.randint(1, 40)]
        elif choice == 2:
            data[place:place] = data[place : place + dice.randint(1, 40)]
        elif choice == 3:
            data[place:place] = dice.choice(STONES)
        else:
            data[place : place + 8] = dice.choice([b"true", b"{}", b"[]", b"-5", b'""'])
    return bytes(data)


STONES = (
    *(
        b"null",
        b"-1e999",
        b'"',
        b"\xff",
        b"[" * 2000,
        b"9" * 400,
        b"\\ud800",
        b"&a [*a,*a]",
        b"!!python/name:os",
    ),
    *(
        b"\x1b[31m",
        "\u202e".encode(),
        "\u200b".encode(),
        b"\0",
        b"\r\n",
        b"- " * 500,
        b"{" * 500,
        b"1e400",
        b".nan",
    ),
)

LISTS = (
    "Van Gogh | Vincent -> art\nClaude Monet\n# a comment\nC# -> language\n",
    "target,anchor,aliases,kind\nVan Gogh,art,Vincent|VvG,style\nMonet,,,\n",
    '{"names": ["Claude Monet", "Edgar Degas"]}',
    '["Claude Monet", "\\u00c9douard Manet"]',
)
JOB = """\
model: absent.safetensors
concepts:
  - "Van Gogh -> art"
  - target: Claude Monet
    anchor: art
    kind: style
retain: [artists]
settings: {preset: few}
output: out
"""


class Fuzzer:
    """Feeds the command line with broken files; `survives(arguments)` judges each run."""

    def __init__(
        self, workshop: Workshop, place: Path, survives: Callable[[list[str]], None]
    ) -> None:
        self.place, self.survives = place, survives
        good = workshop.folder / "good"
        self.recipe = (good / "m-recipe.json").read_bytes()
        self.file = (good / "m-eraser-lora.safetensors").read_bytes()
        # A model that is not there: everything before it is read and checked in full, and nothing
        # is solved.
        self.absent, self.out = str(place / "absent.safetensors"), str(place / "out")

    def __call__(self, number: int) -> None:
        """One broken input of each kind."""
        for attack in (self.broken_recipe, self.broken_header, self.broken_list, self.broken_job):
            attack(random.Random(f"{attack.__name__} {number}"))

    def broken_recipe(self, dice: random.Random) -> None:
        file = self._write("r.json", mutated(self.recipe, dice))
        self.survives(["inspect", file])
        self.survives(["apply", file, self.absent, "--out", self.out])

    def broken_header(self, dice: random.Random) -> None:
        length = int.from_bytes(self.file[:8], "little")
        head = mutated(self.file[8 : 8 + length], dice)
        said = len(head) if dice.random() < 0.8 else dice.randrange(2**63)
        file = self._write(
            "f.safetensors", said.to_bytes(8, "little") + head + self.file[8 + length :]
        )
        self.survives(["inspect", file])
        self.survives(["verify", file, "--base", file])
        self.survives(["apply", file, self.absent, "--out", self.out])

    def broken_list(self, dice: random.Random) -> None:
        suffix = dice.choice([".txt", ".csv", ".json", ".tsv", ".xlsx", ""])
        file = self._write(f"list{suffix}", mutated(dice.choice(LISTS).encode(), dice))
        for option in (["--concepts-file", file], ["--concepts", "a -> b", "--retain-file", file]):
            self.survives(["erase", self.absent, *option, "--out", self.out])

    def broken_job(self, dice: random.Random) -> None:
        file = self._write("recipe.yaml", mutated(JOB.encode(), dice))
        self.survives(["run", file, "--dry-run"])

    def _write(self, name: str, content: bytes) -> str:
        (self.place / name).write_bytes(content)
        return str(self.place / name)
