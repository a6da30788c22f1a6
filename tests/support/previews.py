"""The pictures beside the example workflows: what each one does, drawn by the model that comes with
the package.

    python tests/support/previews.py [FOLDER]

erases and draws for a few minutes and writes `example_workflows/*.jpg`, or the same names into
FOLDER. Templates that ask for models from elsewhere show a wiring icon, because no image of such a
model was made here.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
SIDE = 512
"""Front ends show previews in a square, and newer ones lay a badge over the upper left corner."""
_PAPER, _INK, _SOFT, _GONE, _STAYS, _BLUE = (
    "#1b1f29",
    "#f2f4f8",
    "#a4adbd",
    "#e25b5b",
    "#3fb582",
    "#5b93ea",
)
_FONT = ROOT / "speed_ops" / "report" / "chart_font.ttf"
_FOOT = "made with the demo model"
MOST_BYTES = 60_000


@dataclass(frozen=True)
class Erased:
    """A file with something erased, beside the one it came from."""

    before: Path
    after: Path

    def pairs(self, *prompts: str, seed: int = 3) -> list[tuple[Image.Image, Image.Image]]:
        """Each prompt drawn with both, from the same noise."""
        from speed_erase.speed_ops.demo.generate import encode_prompts, generate_images

        rows, seeds = encode_prompts(self.before, prompts), [seed] * len(prompts)
        sides = [generate_images(path, rows, seeds) for path in (self.before, self.after)]
        return [
            tuple(Image.fromarray(item.numpy()) for item in pair)
            for pair in zip(*sides, strict=True)
        ]


class Workshop:
    """The model, and what was erased from it, in a folder that goes away."""

    def __init__(self, folder: Path) -> None:
        from speed_erase.speed_ops.demo.packed_model import write_checkpoint

        self.folder, self.model = folder, write_checkpoint(folder / "model.safetensors")

    def erase(self, lines: str, kind: str = "style", **changes: Any) -> Erased:
        """As the demo erases: everything else that the model knows is kept. `changes`: of
        settings.
        """
        from speed_erase.speed_ops.checkpoints.erase_file import clean_file
        from speed_erase.speed_ops.checkpoints.output_files import OutputFiles
        from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
        from speed_erase.speed_ops.demo.packed_model import known_names
        from speed_erase.speed_ops.engine.settings import EraseSettings
        from speed_erase.speed_ops.job import Job
        from speed_erase.speed_ops.recipe import StoredJob
        from speed_erase.speed_ops.text.concept_list import parse_concepts
        from speed_erase.speed_ops.text.retain_set import parse_retain

        retain = parse_retain("\n".join(known_names()["painters"] + known_names()["subjects"]))
        job = Job.of(
            parse_concepts(lines, kind),
            retain,
            EraseSettings.preset("auto", effort="fast", **changes),
        )
        outputs = OutputFiles(
            self.folder, ("checkpoint",), name=f"task{len(list(self.folder.iterdir()))}"
        )
        outcome = clean_file(
            self.model, StoredJob(job), TextSetup(), outputs, note=lambda text: None
        )
        return Erased(self.model, outcome.files["checkpoint"])

    def leaks(
        self, erased: Erased, description: str, strength: float
    ) -> list[tuple[str, float, bool]]:
        """Phrases that the leak probe tried on it, with a description: (phrase, what is left,
        whether it leaks).
        """
        from speed_erase.speed_ops.checkpoints.erased_file import open_erased
        from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
        from speed_erase.speed_ops.leak_probe import probe_leaks

        file = open_erased(erased.after, erased.before)
        job = file.stored.job
        weights = file.source.model(job.settings.layers).weights
        report = probe_leaks(
            TextSetup().encoder(file.source),
            weights,
            file.edits,
            job.concepts,
            description=description,
            strength=strength,
        )
        return [(item.phrase, item.after, item.leaks) for item in report.tried]


class Sheet:
    """A square to draw on."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (SIDE, SIDE), _PAPER)
        self.pen = ImageDraw.Draw(self.image)

    def made_with_the_demo_model(self) -> None:
        """States where the images come from."""
        self.text(SIDE // 2, SIDE - 14, _FOOT, 13, _SOFT)

    def text(
        self, x: float, y: float, words: str, size: int, colour: str = _INK, anchor: str = "mm"
    ) -> None:
        self.pen.text((x, y), words, colour, ImageFont.truetype(_FONT, size), anchor=anchor)

    def tile(self, picture: Image.Image, x: int, y: int, side: int, frame: str = "") -> None:
        """A picture with round corners; `frame`: the colour around it."""
        if frame:
            self.pen.rounded_rectangle((x - 4, y - 4, x + side + 3, y + side + 3), 14, frame)
        mask = Image.new("L", (side, side), 0)
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, side - 1, side - 1), 10, 255)
        self.image.paste(picture.resize((side, side), Image.Resampling.BICUBIC), (x, y), mask)

    def arrow(self, x: int, y: int, length: int = 26, down: bool = False) -> None:
        end = (x, y + length) if down else (x + length, y)
        self.pen.line((x, y, *end), _INK, 5)
        head = [(-9, -9), (9, -9), (0, 6)] if down else [(-9, -9), (-9, 9), (6, 0)]
        self.pen.polygon([(end[0] + dx, end[1] + dy) for dx, dy in head], _INK)

    def slider(
        self, pair: Sequence[Image.Image], x: int, y: int, side: int, frame: str = ""
    ) -> None:
        """Before on the left, after on the right, a handle between."""
        before, after = (item.resize((side, side), Image.Resampling.BICUBIC) for item in pair)
        before.paste(after.crop((side // 2, 0, side, side)), (side // 2, 0))
        self.tile(before, x, y, side, frame)
        middle, ring = x + side // 2, max(8, side // 22)
        self.pen.line((middle, y, middle, y + side), "white", 3)
        self.pen.ellipse(
            (middle - ring, y + side // 2 - ring, middle + ring, y + side // 2 + ring), "white"
        )

    def save(self, path: Path) -> None:
        """As a JPEG, as good as fits."""
        for quality in (90, 84, 76, 68):
            out = io.BytesIO()
            self.image.save(out, "JPEG", quality=quality, optimize=True)
            if out.tell() <= MOST_BYTES:
                break
        path.write_bytes(out.getvalue())


def columns(
    sheet: Sheet, pairs: Sequence[Sequence[Image.Image]], names: Sequence[str], retained: int = 0
) -> None:
    """Before above after, one column for each prompt; the last `retained` of them are those that
    stay.
    """
    count = len(pairs)
    side = min(180, (SIDE - 60) // count - 16)
    left, top = (SIDE - count * side - (count - 1) * 24) // 2, (SIDE - 2 * side - 90) // 2
    for position, (pair, name) in enumerate(zip(pairs, names, strict=True)):
        x, colour = left + position * (side + 24), _STAYS if position >= count - retained else _GONE
        sheet.tile(pair[0], x, top, side)
        sheet.arrow(x + side // 2, top + side + 6, 12, down=True)
        sheet.tile(pair[1], x, top + side + 34, side, colour)
        sheet.text(x + side // 2, top + 2 * side + 58, name, 19, colour)


def start(shop: Workshop, sheet: Sheet) -> None:
    done = shop.erase("Orla Venn | the Copper Hand -> art")
    pairs = done.pairs("a cat by Orla Venn", "a cat by Dario Fenwick")
    columns(sheet, pairs, ("Orla Venn: erased", "Dario Fenwick: same"), retained=1)


def one_style(shop: Workshop, sheet: Sheet) -> None:
    (pair,) = shop.erase("Soren Vale -> art").pairs("a castle by Soren Vale")
    sheet.slider(pair, 66, 70, 380)
    sheet.text(160, 472, "before", 19)
    sheet.text(352, 472, "after", 19)


def objects(shop: Workshop, sheet: Sheet) -> None:
    done = shop.erase("cat -> object\nfish -> object\nbutterfly -> object", "object")
    pairs = done.pairs(
        "a cat by Hedda Stroud", "a fish by Ines Marrow", "a butterfly by Kaya Brandt"
    )
    columns(sheet, pairs, ("cat", "fish", "butterfly"))


def many(shop: Workshop, sheet: Sheet) -> None:
    from speed_erase.speed_ops.demo.packed_model import known_names

    names, subjects = known_names()["painters"][:8], known_names()["subjects"]
    done = shop.erase("\n".join(f"{name} -> art" for name in names), drift_budget=0.45)
    prompts = [f"a {subjects[i % len(subjects)]} by {name}" for i, name in enumerate(names)]
    for half, top in ((0, 62), (1, 284)):
        for position, pair in enumerate(done.pairs(*prompts)):
            sheet.tile(pair[half], 62 + position % 4 * 100, top + position // 4 * 86, 78)
    sheet.arrow(SIDE // 2, 232, 24, down=True)
    sheet.text(SIDE // 2, 472, "many names, one edit", 20)


def idea(shop: Workshop, sheet: Sheet) -> None:
    wiring(sheet, "an idea", "SD1.5")


def replaced(shop: Workshop, sheet: Sheet) -> None:
    done = shop.erase("cat -> fish", "object")
    for position, pair in enumerate(done.pairs("a cat by Petra Lunde", "a cat by Bruna Castell")):
        y = 62 + position * 208
        sheet.tile(pair[0], 36, y, 190)
        sheet.arrow(240, y + 95)
        sheet.tile(pair[1], 286, y, 190, _BLUE)


def never(shop: Workshop, sheet: Sheet) -> None:
    sheet.text(SIDE // 2, 110, "never draw", 52)
    sheet.pen.rounded_rectangle((70, 190, SIDE - 70, 300), 12, "#343b4a")
    sheet.text(96, 245, "cat, Van Gogh, blood", 28, _INK, "lm")
    sheet.text(SIDE // 2, 370, "a negative prompt at CFG 1", 24, _STAYS)


def sdxl(shop: Workshop, sheet: Sheet) -> None:
    wiring(sheet, "SDXL", "SDXL")


def flux(shop: Workshop, sheet: Sheet) -> None:
    wiring(sheet, "Flux", "Flux")


def anima(shop: Workshop, sheet: Sheet) -> None:
    wiring(sheet, "Anima", "Anima")


def klein(shop: Workshop, sheet: Sheet) -> None:
    wiring(sheet, "Flux.2 Klein", "Klein")


def wan(shop: Workshop, sheet: Sheet) -> None:
    sheet.text(SIDE // 2, 96, "Wan 2.2", 64)
    for y, noise in ((190, "high noise"), (310, "low noise")):
        for x, words, color in (
            (40, noise, "#343b4a"),
            (200, "SPEED Erase", _BLUE),
            (360, "LoRA", "#343b4a"),
        ):
            if x > 40:
                sheet.pen.line((x - 48, y + 34, x, y + 34), _SOFT, 4)
            sheet.pen.rounded_rectangle((x, y, x + 112, y + 68), 10, color)
            sheet.text(x + 56, y + 34, words, 16)
    sheet.text(SIDE // 2, SIDE - 40, "needs models that you download", 17, _SOFT)


def wiring(sheet: Sheet, title: str, model: str) -> None:
    """Three nodes with wires, below a title: no image, because none was made."""
    sheet.text(SIDE // 2, 96, title, 64)
    nodes = ((40, 200, model), (40, 330, "names"), (200, 240, "SPEED Erase"), (360, 200, "compare"))
    ends = {name: (x, y + 34) for x, y, name in nodes}
    for start, end in (
        (model, "SPEED Erase"),
        ("names", "SPEED Erase"),
        ("SPEED Erase", "compare"),
    ):
        (x, y), (to_x, to_y) = ends[start], ends[end]
        sheet.pen.line((x + 112, y, to_x, to_y), _SOFT, 4)
    for x, y, name in nodes:
        color = _BLUE if name == "SPEED Erase" else "#343b4a"
        sheet.pen.rounded_rectangle((x, y, x + 112, y + 68), 10, color)
        sheet.text(x + 56, y + 34, name, 16)
    sheet.text(SIDE // 2, SIDE - 40, "needs a model that you download", 17, _SOFT)


def paper(sheet: Sheet, x: int, y: int, words: str, colour: str) -> None:
    """A file with its name."""
    sheet.pen.polygon(
        [(x, y), (x + 70, y), (x + 104, y + 34), (x + 104, y + 128), (x, y + 128)], _INK
    )
    sheet.pen.polygon([(x + 70, y), (x + 70, y + 34), (x + 104, y + 34)], _SOFT)
    for line in range(3):
        sheet.pen.rectangle(
            (x + 14, y + 50 + 20 * line, x + (90 if line < 2 else 60), y + 57 + 20 * line), colour
        )
    sheet.text(x + 52, y + 150, words, 20)


def saving(shop: Workshop, sheet: Sheet) -> None:
    (pair,) = shop.erase("Ines Marrow -> art").pairs("a flower by Ines Marrow")
    sheet.tile(pair[0], 62, 62, 168)
    sheet.arrow(242, 146)
    sheet.tile(pair[1], 284, 62, 168, _GONE)
    sheet.arrow(SIDE // 2, 250, 26, down=True)
    for x, words, colour in (
        (56, "LoRA", _BLUE),
        (204, "checkpoint", _GONE),
        (352, "recipe", _STAYS),
    ):
        paper(sheet, x, 306, words, colour)


def recipe(shop: Workshop, sheet: Sheet) -> None:
    pairs = shop.erase("Yuki Tallow -> art").pairs(
        "a castle by Yuki Tallow", "a mushroom by Yuki Tallow"
    )
    paper(sheet, 28, 190, "recipe", _STAYS)
    for position, (pair, words) in enumerate(zip(pairs, ("a checkpoint", "another"), strict=True)):
        y = 74 + position * 200
        sheet.text(336, y + 160, words, 16, _SOFT)
        sheet.pen.line((144, 254, 172, y + 75), _SOFT, 4)
        sheet.tile(pair[0], 182, y, 140)
        sheet.arrow(328, y + 70, 14)
        sheet.tile(pair[1], 350, y, 140, _GONE)


def compared(shop: Workshop, sheet: Sheet) -> None:
    done = shop.erase("Orla Venn | the Copper Hand -> art")
    pairs = done.pairs(
        "a house by Orla Venn",
        "a boat by the Copper Hand",
        "a house by Dario Fenwick",
        "a tree",
        seed=4,
    )
    words = ("the name", "its alias", "similar", "unrelated")
    for position, pair in enumerate(pairs):
        x, y = 54 + position % 2 * 214, 48 + position // 2 * 222
        sheet.slider(pair, x, y, 188, _GONE if position < 2 else _STAYS)
        sheet.text(x + 94, y + 204, words[position], 17, _GONE if position < 2 else _STAYS)


def leaks(shop: Workshop, sheet: Sheet) -> None:
    matches = shop.leaks(shop.erase("Orla Venn -> art"), "the Copper Hand", strength=0.3)
    assert matches[0][2], "the preview shows a leak"
    sheet.text(SIDE // 2, 76, "What still brings it back?", 30)
    sheet.text(SIDE // 2, 106, "at strength 0.3", 17, _SOFT)
    for position, (phrase, left, leaking) in enumerate(matches[:7]):
        y, colour = 138 + position * 50, _GONE if leaking else _STAYS
        sheet.text(34, y, phrase, 17, _INK, "lm")
        sheet.pen.rounded_rectangle((34, y + 14, 398, y + 28), 6, "#343b4a")
        sheet.pen.rounded_rectangle(
            (34, y + 14, 34 + max(10, 364 * min(1.0, left)), y + 28), 6, colour
        )
        sheet.text(482, y + 20, "leaks" if leaking else "closed", 17, colour, "rm")


def my_style(shop: Workshop, sheet: Sheet) -> None:
    paper(sheet, 40, 160, "a model", _BLUE)
    sheet.text(242, 230, "- my style", 28, _GONE)
    sheet.arrow(338, 230)
    paper(sheet, 392, 160, "LoRA", _STAYS)
    sheet.text(SIDE // 2, 400, "erase my style", 32)


def checked(shop: Workshop, sheet: Sheet) -> None:
    paper(sheet, 90, 150, "a file", _BLUE)
    sheet.arrow(236, 220)
    sheet.text(300, 190, "Orla Venn → art", 22, _INK, "lm")
    sheet.text(300, 230, "erased", 22, _STAYS, "lm")
    sheet.text(SIDE // 2, 400, "what was erased from it?", 26)


PREVIEWS: dict[str, Callable[[Workshop, Sheet], None]] = {
    "1 - Start here": start,
    "Erase one artist's style": one_style,
    "Erase three objects": objects,
    "Erase many names at once": many,
    "Erase an idea": idea,
    "Replace one thing with another": replaced,
    "Never draw": never,
    "Erase from SDXL": sdxl,
    "Erase from Flux": flux,
    "Erase from Anima": anima,
    "Erase from Flux.2 Klein": klein,
    "Erase from Wan 2.2": wan,
    "Save a LoRA, a checkpoint and a recipe": saving,
    "Compare before and after": compared,
    "Find leaks and close them": leaks,
    "App - Erase my style": my_style,
    "App - Check a model": checked,
    "App - Repeat a recipe": recipe,
}
"""A template's title -> what draws its preview."""


WITHOUT_IMAGES = (idea, never, sdxl, flux, anima, klein, wan, checked, my_style)


def main(folder: Path, titles: Sequence[str]) -> None:
    """Writes the previews of these titles."""
    with tempfile.TemporaryDirectory() as scratch:
        shop = Workshop(Path(scratch))
        for title in titles:
            sheet = Sheet()
            PREVIEWS[title](shop, sheet)
            if PREVIEWS[title] not in WITHOUT_IMAGES:
                sheet.made_with_the_demo_model()
            sheet.save(folder / f"{title}.jpg")
            print(title)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest  # noqa: F401  makes the package importable

    given: list[Any] = sys.argv[1:]
    main(Path(given[0]) if given else ROOT / "example_workflows", given[1:] or list(PREVIEWS))
