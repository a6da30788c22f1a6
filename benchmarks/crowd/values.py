"""Values of the text stream inside a transformer (`add_v`), edited by rows that are sampled: they
depend on the timestep, the pooled input and the image, so no list of rows is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..rivals import solved
from .model import BATCH, Crowd
from .prompts import PLAIN_TEMPLATES, TEMPLATES
from .tasks import Task, own_names
from .transformer import Block

PROMPTS = 6
"""Of each concept; of each kept name there are two."""
EVERY = 4
"""Every fourth step of a drawing gives rows."""
ERASE, RIDGE = 10.0, 0.01
"""The concepts' weight where the kept rows weigh 1; the ridge as a share of their mean square."""


def value_edit(crowd: Crowd, task: Task, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Q, K and V of every block's text stream. V is edited: what a concept's last word and padding
    say there becomes what its replacement's say in the untouched model.

    Args:
        crowd: The model.
        task: What to erase.
        weights: Edits that are made before this one; none is a choice.
    """
    targets, anchors = [], []
    for concept in task.concepts:
        templates = TEMPLATES if concept.kind == "style" else PLAIN_TEMPLATES
        for template in templates[:PROMPTS]:
            targets.append(template.format(a=concept.target, s=concept.target, p=concept.target))
            to = concept.anchor or "art"
            anchors.append(template.format(a=to, s=to, p=to))
    kept = [t.format(a=name, s=name, p=name) for name in own_names(task.concepts).names
            for t in (PLAIN_TEMPLATES[0], TEMPLATES[0])]  # fmt: skip
    gone, goal, others = (
        text_rows(crowd, texts, edits)
        for texts, edits in ((targets, weights), (anchors, {}), (kept, weights))
    )
    return {key: _edited(crowd, key, gone[key], goal[key], others[key]) for key in gone}


def _edited(crowd: Crowd, key: str, gone: Tensor, goal: Tensor, others: Tensor) -> Tensor:
    whole = crowd.model.state_dict()[key].double()
    width = whole.shape[1]
    moment = others.T @ others / len(others)
    ridge = RIDGE * float(moment.diagonal().mean())
    value = solved(whole[2 * width :], gone, goal, moment, ERASE / len(gone), 1.0, ridge)
    return torch.cat([whole[: 2 * width], value]).float()


def text_rows(
    crowd: Crowd, texts: Sequence[str], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """{key of a block's Q, K and V: what it reads of the prompts' last words and last padding, at
    several steps while they are drawn, `n x width`}.

    Args:
        crowd: The model.
        texts: Prompts.
        weights: The edits in effect.
    """
    locate = crowd.text.reader().last
    found: dict[str, list[Tensor]] = {}
    calls: dict[str, list[Tensor]] = {}
    hooks = []
    for name, block in crowd.model.named_modules():
        if isinstance(block, Block):
            key = f"{name}.context_block.attn.qkv"
            calls[f"{key}.weight"] = inputs = []
            layer = crowd.model.get_submodule(key)
            hooks.append(layer.register_forward_pre_hook(lambda _, x, to=inputs: to.append(x[0])))
    try:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            crowd.draw(batch, start, weights)
            ends, index = [locate(text) for text in batch], range(len(batch))
            for key, inputs in calls.items():
                for rows in inputs[1::EVERY]:  # of each call the first half is guided
                    found.setdefault(key, []).extend((rows[index, ends], rows[index, -1]))
                inputs.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return {key: torch.cat(parts).double() for key, parts in found.items()}
