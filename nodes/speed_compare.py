"""Compare Before/After: the same prompts and seeds with the original and the erased model."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui
from torch import Tensor, stack

from ..speed_ops.errors import InputError
from ..speed_ops.text.concept_list import read_lines
from ..speed_ops.text.kinds import kind_of
from ..speed_ops.text.names import same_name_key
from ..speed_ops.text.retain_set import builtin_retain
from .host.progress import outside_inference_mode
from .host.sampling import SAMPLERS, SCHEDULERS, Sampler
from .sockets import CATEGORY, image_of, search_aliases, ui_text

ROWS = {"target": "Erased", "alias": "Alias", "neighbour": "Neighbor", "control": "Unrelated"}
"""Inputs with prompts -> titles of the rows."""


class SpeedCompare(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeedCompare",
            display_name="Compare Before/After",
            category=CATEGORY,
            **search_aliases("before after", "compare models", "slider"),
            description=(
                "Generates the same prompts and seeds with the original and the erased model, and"
                " shows both under a slider."
            ),
            is_output_node=True,
            inputs=[
                io.Model.Input("original", tooltip="The model before SPEED Erase."),
                io.Model.Input("erased", tooltip="The model from SPEED Erase."),
                io.Clip.Input("clip", tooltip="The CLIP from the same checkpoint."),
                io.Vae.Input("vae", tooltip="The VAE from the same checkpoint."),
                *_prompt_inputs(),
                *_sampler_inputs(),
            ],
            outputs=[
                io.Image.Output(
                    display_name="grid",
                    tooltip="All images in one: before and after, row by row.",
                ),
                io.Image.Output(
                    display_name="before", tooltip="The images of the original model, row by row."
                ),
                io.Image.Output(
                    display_name="after",
                    tooltip="The images of the erased model, in the same order.",
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    @outside_inference_mode
    def execute(
        cls, original: Any, erased: Any, clip: Any, vae: Any, seed: int, pairs: int, **widgets: Any
    ) -> io.NodeOutput:
        prompts = {
            name: text.strip() for name in ROWS if (text := str(widgets.get(name) or "")).strip()
        }
        if not prompts:
            raise InputError("There is nothing to generate. Write at least one prompt.")
        sampler = Sampler(clip, vae, widgets, 2 * pairs * len(prompts), cls.hidden)
        tasks = [(prompt, seed + index) for prompt in prompts.values() for index in range(pairs)]
        # All images of one model first: on a GPU each change of model moves weights.
        before = [sampler.generate(original, *task) for task in tasks]
        after = [sampler.generate(erased, *task) for task in tasks]
        files = ui.PreviewImage(stack([*before, *after]), cls=cls).as_dict()["images"]
        facts = {"seeds": pairs, "rows": _rows(prompts, seed, pairs, files)}
        preview = ui_text(cls, f"Generated {len(before)} pairs of images.") | {"speed": (facts,)}
        grid = _grid_of(prompts, before, after)
        return io.NodeOutput(grid, stack(before), stack(after), ui=preview)


def _rows(prompts: dict[str, str], seed: int, pairs: int, files: list[Any]) -> list[dict[str, Any]]:
    """What the UI shows. `files` has all images before, then all images after."""
    count = len(prompts) * pairs
    rows = []
    for index, (name, prompt) in enumerate(prompts.items()):
        generated = [
            {"seed": seed + n % pairs, "before": files[n], "after": files[count + n]}
            for n in range(index * pairs, (index + 1) * pairs)
        ]
        rows.append({"name": ROWS[name], "prompt": prompt, "pairs": generated})
    return rows


def _grid_of(prompts: dict[str, str], before: list[Tensor], after: list[Tensor]) -> Tensor:
    """One row per prompt: its pairs, before and after side by side."""
    from ..speed_ops.report.chart import picture_grid

    pairs = zip(before, after, strict=True)
    images = [(image * 255).round().byte().numpy() for pair in pairs for image in pair]
    count = len(images) // len(prompts)
    titles = [f"{ROWS[name]}: {prompt}  (before, after)" for name, prompt in prompts.items()]
    rows = [(title, images[n * count : (n + 1) * count]) for n, title in enumerate(titles)]
    return image_of(picture_grid(rows))


def prompts_for(question: dict[str, Any]) -> dict[str, Any]:
    """A prompt per row for the first concept of a list: for SPEED Compare added by a click."""
    kind = str(question.get("kind") or "style")
    concepts = [line.concept for line in read_lines(str(question.get("text", "")), kind)]
    concept = next((concept for concept in concepts if concept is not None), None)
    if concept is None:
        return {}
    templates = kind_of(concept.kind).probe_templates
    erased = {same_name_key(phrase) for item in concepts if item for phrase in item.phrases}
    sets = [name for name in kind_of(concept.kind).retain_sets if name != "scenes"]
    listed = (name for name_set in sets for name in builtin_retain(name_set).names)
    neighbor = next((name for name in listed if same_name_key(name) not in erased), "")
    alias = concept.aliases[0] if concept.aliases else ""
    names = {"target": concept.target, "alias": alias, "neighbour": neighbor}
    filled = zip(names.items(), (templates * 3)[:3], strict=True)
    return {row: template.fill(name).text if name else "" for (row, name), template in filled}


def _prompt_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "target",
            default="a painting in the style of Van Gogh",
            tooltip="A prompt with the erased name. The image should change.",
        ),
        io.String.Input(
            "alias",
            default="",
            tooltip=(
                "A prompt with an alias of the erased name. The image should change as well. Leave"
                " empty to skip this row."
            ),
        ),
        io.String.Input(
            "neighbour",
            display_name="neighbor",
            default="a painting in the style of Monet",
            tooltip="A prompt with something similar. The image should stay recognizable.",
        ),
        io.String.Input(
            "control",
            display_name="unrelated",
            default="a photo of a dog in a park",
            tooltip="A prompt about something else. The image should look the same.",
        ),
    ]


def _sampler_inputs() -> list[io.Input]:
    return [
        io.String.Input("negative", default="", tooltip="The negative prompt for every image."),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=2**53,
            control_after_generate=False,
            tooltip="Seed of the first pair. It goes up by 1 for each further pair.",
        ),
        io.Int.Input(
            "pairs",
            default=2,
            min=1,
            max=8,
            tooltip="Seeds per prompt. More seeds make the comparison more reliable.",
        ),
        io.Int.Input("steps", default=20, min=1, max=200, tooltip="As in KSampler."),
        io.Float.Input(
            "cfg",
            default=7.0,
            min=0.0,
            max=100.0,
            step=0.1,
            tooltip="As in KSampler. Use 1 for Flux.",
        ),
        io.Combo.Input(
            "sampler_name", options=SAMPLERS, default="euler", tooltip="As in KSampler."
        ),
        io.Combo.Input(
            "scheduler", options=SCHEDULERS, default="normal", tooltip="As in KSampler."
        ),
        io.Int.Input(
            "width", default=512, min=64, max=4096, step=8, tooltip="Width of each image."
        ),
        io.Int.Input(
            "height", default=512, min=64, max=4096, step=8, tooltip="Height of each image."
        ),
    ]
