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
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mini
import mini_dit
import torch
from fake_comfy import FakeComfy
from safetensors.torch import save_file

from speed_erase.speed_ops.cli import main
from speed_erase.speed_ops.demo import demo
from speed_erase.speed_ops.demo.packed_model import write_checkpoint
from speed_erase.speed_ops.evaluate.album import decode_image, encode_png
from speed_erase.speed_ops.fleet.ledger import LedgerEntry, read_ledger

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has but one way
KINDS = ("erase", "folder", "batch", "fleet", "demo", "evaluate")
"""What is killed. The fleet runs on a double of Ray, in the process that is killed."""
REPLACING = ("erase", "folder")
"""Those that begin with results of an earlier job, which they replace."""
RAY_DOUBLE = str(Path(__file__).parent / "ray_double")
BALLAST = 8_000_000
"""Bytes of a model besides the layers that count, so that writing it takes a while."""
HIDDEN = (".speed-tmp", ".speed-lock")
"""Endings of what a killed run may leave for the next one to sweep."""


class Workshop:
    """Models, a recipe, results and a warm cache: a run then takes little but the writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: FakeComfy | None = None
        self.cache = folder / "cache"
        models = folder / "models"
        models.mkdir(parents=True)
        for name in ("m", "n"):  # a Flux in miniature is solved in no time
            file = models / f"{name}.safetensors"
            content = mini_dit.write_dit(file, "flux-schnell", "model.diffusion_model.")
            save_file({**content, "vae.x": torch.zeros(BALLAST, dtype=torch.uint8)}, file)
        mini_dit.write_t5(folder / "t5.safetensors")
        mini_dit.write_tokenizer(folder / "words")
        files = ("--text-encoder", str(folder / "t5.safetensors"))
        self.encoder = (*files, "--tokenizer", str(folder / "words"))
        mini.write_folder(folder / "pipeline")
        os.environ["SPEED_ERASE_CACHE"] = str(self.cache)
        products = ["--save", "checkpoint,lora,recipe,report"]
        self.run([*self.erase("m.safetensors", folder / "good"), *products])

    def run(self, arguments: list[str]) -> None:
        """To its end, here."""
        assert main(arguments) == 0, arguments

    def erase(self, model: str, out: Path, strength: str = "1") -> list[str]:
        """`erase` with results that may be replaced."""
        names = ["--concepts", mini.CONCEPTS, *mini.QUICK, "--strength", strength]
        common = ["--out", str(out), "--quiet", "--force"]
        if model == "pipeline":
            return ["erase", str(self.folder / model), *names, *common]
        return ["erase", str(self.folder / "models" / model), *names, *common, *self.encoder]

    def batch(self, out: Path) -> list[str]:
        """`batch` over two models."""
        recipe = str(self.folder / "good" / "m-recipe.json")
        folders = ["--in", str(self.folder / "models"), "--out", str(out)]
        return ["batch", "--recipe", recipe, *folders, *self.encoder, "--quiet"]

    def evaluate(self, out: Path, count: int = 20) -> list[str]:
        """`evaluate` with a server that draws at once: `count` images per model."""
        self.server = self.server or FakeComfy()
        prompts = self.folder / f"{count} prompts.txt"
        prompts.write_text("".join(f"a boat number {number} by Klee\n" for number in range(count)))
        models = ["--original", "model.safetensors", "--erased", "lora:eraser.safetensors"]
        settings = ["--size", "16x16", "--seeds", "1", "--prompts", str(prompts)]
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
        """One run, killed; whether it was caught at work: not yet at its end, and no longer before
        its first write. Every name must hold the old content or the new one.
        """
        before, started = set(leftovers(self.out)), time.time_ns()
        process = self.nursery.start(self.arguments)
        time.sleep(self.dice.uniform(0.02, 1.0) * self.longest)
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(process, how)
        done = self.nursery.wait() == 0
        caught = not done and self._began(started)
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
        self.longest *= 0.8 if done else 1.1
        if self.kind not in REPLACING and not (caught and self.dice.randrange(3)):
            # start over now and then, or everything would be done and skipped
            shutil.rmtree(self.out, ignore_errors=True)
        return caught

    def _began(self, started: int) -> bool:
        """Whether a run that started then has put anything into its folder, if only its lock."""
        paths = self.out.rglob("*") if self.out.exists() else ()
        return any(path.lstat().st_mtime_ns >= started for path in paths)

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
ODD_NAMES = (
    *(
        "../outside.safetensors",
        "/absolute.safetensors",
        "a/../../b.safetensors",
        "C:\\x.safetensors",
    ),
    *(
        "a//b.safetensors",
        "folder/model_index.json",
        "\u202e.safetensors",
        "x" * 300 + ".safetensors",
    ),
    *(
        "A.SAFETENSORS",
        "con.safetensors",
        "a\nb.safetensors",
        ".hidden.safetensors",
        " .safetensors",
    ),
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


PROMPTS = (
    "prompt,concept,type,seed,group\na boat by Klee,Klee,erase,7,a\na house,,keep,7.0,b\n",
    "a boat by Klee\n# a comment\na house\n",
    '{"annotations": [{"caption": "a dog"}, {"caption": "a cat"}]}',
)
ANSWERS = ("/object_info/", "/prompt", "/history/", "/view?", "/view_metadata/")
"""What `evaluate` asks a server."""
MODEL = "speed_demo.safetensors"


class Fuzzer:
    """Feeds the command line with broken files; `survives(arguments)` judges each run."""

    def __init__(
        self, workshop: Workshop, place: Path, survives: Callable[[list[str]], None]
    ) -> None:
        self.workshop, self.place, self.survives = workshop, place, survives
        good = workshop.folder / "good"
        self.recipe = (good / "m-recipe.json").read_bytes()
        self.file = (good / "m-eraser-lora.safetensors").read_bytes()
        # A model that is not there: everything before it is read and checked in full, and nothing
        # is solved.
        self.absent, self.out = str(place / "absent.safetensors"), str(place / "out")
        self.kinds = (self.broken_recipe, self.broken_header, self.broken_list, self.broken_job)
        self.kinds += (self.broken_answer, self.broken_image, self.broken_prompts)
        self.kinds += (self.broken_ledger, self.broken_catalogue, self.broken_demo)

    def __call__(self, number: int) -> None:
        """One broken input of each kind."""
        for attack in self.kinds:
            attack(random.Random(f"{attack.__name__} {number}"))

    def broken_recipe(self, dice: random.Random) -> None:
        file = self._write("r.json", mutated(self.recipe, dice))
        self.survives(["inspect", file])
        self.survives(["apply", file, self.absent, "--out", self.out])

    def broken_header(self, dice: random.Random) -> None:
        file = self._write("f.safetensors", self._broken_file(dice))
        self.survives(["inspect", file])
        self.survives(["verify", file, "--base", file])
        self.survives(["apply", file, self.absent, "--out", self.out])

    def _broken_file(self, dice: random.Random) -> bytes:
        length = int.from_bytes(self.file[:8], "little")
        head = mutated(self.file[8 : 8 + length], dice)
        announced = len(head) if dice.random() < 0.8 else dice.randrange(2**63)
        return announced.to_bytes(8, "little") + head + self.file[8 + length :]

    def broken_list(self, dice: random.Random) -> None:
        suffix = dice.choice([".txt", ".csv", ".json", ".tsv", ".xlsx", ""])
        file = self._write(f"list{suffix}", mutated(dice.choice(LISTS).encode(), dice))
        for option in (["--concepts-file", file], ["--concepts", "a -> b", "--retain-file", file]):
            self.survives(["erase", self.absent, *option, "--out", self.out])

    def broken_job(self, dice: random.Random) -> None:
        file = self._write("recipe.yaml", mutated(JOB.encode(), dice))
        self.survives(["run", file, "--dry-run"])

    def broken_answer(self, dice: random.Random) -> None:
        """`evaluate` with a server of which one kind of answer is broken."""
        spoiled = dice.choice(ANSWERS)
        arguments = [*self.workshop.evaluate(self.place / "seen", 1), "--timeout", "2"]
        server = self.workshop.server
        assert server is not None
        server.spoil = lambda path, content: (
            mutated(content, dice) if path.startswith(spoiled) else content
        )
        self.survives(arguments)
        server.spoil = lambda path, content: content
        shutil.rmtree(self.place / "seen", ignore_errors=True)

    def broken_image(self, dice: random.Random) -> None:
        """`evaluate` that goes on with an earlier run's images, one of them broken."""
        folder = self.place / "album"
        arguments = self.workshop.evaluate(folder, 1)
        if not folder.exists():
            self.survives(arguments)
        image = dice.choice(sorted(folder.rglob("*.png")))
        content = image.read_bytes()
        if dice.random() < 0.5:
            image.write_bytes(mutated(content, dice))
        else:  # a sound image with broken facts in its header
            facts = mutated(b'{"finite": true, "seconds": 0.5}', dice)
            pixels = decode_image(content, "image")
            image.write_bytes(encode_png(pixels, {"speed.evaluate": facts.decode("latin-1")}))
        self.survives(arguments)
        image.write_bytes(content)

    def broken_prompts(self, dice: random.Random) -> None:
        sound = dice.randrange(len(PROMPTS))
        suffix = (".csv", ".txt", ".json")[sound]
        file = self._write(f"prompts{suffix}", mutated(PROMPTS[sound].encode(), dice))
        models = ["--original", "model.safetensors", "--erased", "lora:eraser.safetensors"]
        common = ["evaluate", *models, "--out", str(self.place / "listed"), "--list-prompts"]
        self.survives([*common, "--prompts", file])
        self.survives([*common, "--setup", "implicit/nudity", "--list", f"captions={file}"])

    def broken_ledger(self, dice: random.Random) -> None:
        models = self.workshop.folder / "models"
        entry = LedgerEntry(str(models / "m.safetensors"), "cleaned", files={"lora": "x"})
        file = self._write("ledger.jsonl", mutated(3 * entry.line(), dice))
        self.survives([*self._fleet(str(models)), "--ledger", file])

    def broken_catalogue(self, dice: random.Random) -> None:
        """Models of a store: an archive with broken files under odd names, itself broken at
        times."""
        file = self.place / "models.zip"
        with zipfile.ZipFile(file, "w") as archive:
            for name in ("a.safetensors", *dice.sample(ODD_NAMES, dice.choice((0, 1, 3)))):
                archive.writestr(name, self._broken_file(dice))
        if dice.random() < 0.3:
            file.write_bytes(mutated(file.read_bytes(), dice))
        ledger = str(self.place / "absent.jsonl")
        self.survives([*self._fleet(f"zip://::file://{file}"), "--ledger", ledger])

    def _fleet(self, models: str) -> list[str]:
        recipe = str(self.workshop.folder / "good" / "m-recipe.json")
        options = ["--on", "ray", "--dry-run", "--recursive", "--out", self.out]
        return ["batch", "--recipe", recipe, "--in", models, *options, *self.workshop.encoder]

    def broken_demo(self, dice: random.Random) -> None:
        """A packed model that is damaged, and what is in the way of the results."""
        folder = self.place / f"demo {dice.random()}"
        models = folder / "models" / "checkpoints"
        models.mkdir(parents=True)
        (models / MODEL).write_bytes(mutated(self.file, dice))
        self.survives(["demo", "--comfyui", str(folder)])
        packed = Path(self._write("packed.safetensors", mutated(self.file, dice)))
        demo.write_checkpoint = partial(write_checkpoint, file=packed)
        try:
            self.survives(["demo", "--out", str(folder / dice.choice(["out", "models", "a\0b"]))])
        finally:
            demo.write_checkpoint = write_checkpoint
        shutil.rmtree(folder)

    def _write(self, name: str, content: bytes) -> str:
        (self.place / name).write_bytes(content)
        return str(self.place / name)
