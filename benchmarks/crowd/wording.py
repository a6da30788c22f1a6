"""The same prompts as people type them elsewhere, as tags and at length: the image stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from speed_erase.speed_ops.text.concept_list import Concept

from .prompts import Prompt
from .tasks import TASKS, Question, Task
from .world import PLAIN

TAGS = (
    "best quality",
    "highly detailed, sharp focus",
    "masterpiece, trending",
    "4k, award winning",
)
HELD_OUT_TAGS = "masterpiece, best quality"
"""Training never sees these two together."""
DETAILS = (
    "made with great care, plenty of room around it, the edges clean, the whole thing calm and"
    " quiet, as in an old book",
    "shown from the front, in the middle of the page, with nothing else around, simple and clear,"
    " the kind that children like",
    "the first of a long series, kept for years in a drawer, found again by chance and hung in a"
    " small kitchen",
    "well balanced, neatly finished, easy to recognize from far away, printed on thick paper and"
    " sent to a friend",
)
HELD_OUT_DETAILS = (
    "the kind one sees in a waiting room, done in one afternoon without a break, neither large nor"
    " small, with a sure hand and much patience"
)
"""Training never sees these."""


def as_tags(prompt: Prompt, tags: str) -> Prompt:
    """Painter, subject and the ending in a list, tags after them."""
    named = [] if prompt.style == PLAIN.name else [prompt.painter_words]
    words = [*named, prompt.subject or "art", prompt.ending, tags]
    return replace(prompt, text=", ".join(word for word in words if word))


def at_length(prompt: Prompt, details: str) -> Prompt:
    """The prompt and twenty words more."""
    return replace(prompt, text=f"{prompt.text}, {details}")


def reworded(prompts: dict[str, list[Prompt]]) -> dict[str, list[Prompt]]:
    """Training's prompts; a fifth of them again in tags, and a fifth at length."""
    found = {}
    for kind, group in prompts.items():
        found[kind] = list(group)
        for i, prompt in enumerate(group):
            if i % 5 == 1:
                found[kind].append(at_length(prompt, DETAILS[i // 5 % len(DETAILS)]))
            if i % 5 == 3 and prompt.subject:
                found[kind].append(as_tags(prompt, TAGS[i // 5 % len(TAGS)]))
    return found


def _reworded_task(task: Task, name: str, label: str, change: Callable[[Prompt], Prompt]) -> Task:
    """The same questions in other words."""

    def ask(concepts: tuple[Concept, ...], count: int) -> list[Question]:
        return [replace(q, prompt=change(q.prompt)) for q in task.ask(concepts, count)]

    return replace(task, name=f"{task.name}_{name}", label=f"{task.label}, {label}", ask=ask)


_CHANGES: dict[str, tuple[str, Callable[[Prompt], Prompt]]] = {
    "long": ("long prompts", lambda prompt: at_length(prompt, HELD_OUT_DETAILS)),
    "tags": ("as tags", lambda prompt: as_tags(prompt, HELD_OUT_TAGS)),
}
REWORDED = {
    task.name: task
    for base in ("painters10", "subjects3")
    for name, change in _CHANGES.items()
    for task in (_reworded_task(TASKS[base], name, *change),)
}
"""Tasks for which training's sentences are not enough."""
