"""One erasure after another: the later one holds what the earlier one erased, however that came
onto the model.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import pytest
from graph import erased, left, notices, run

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("own_output")]

FIRST, SECOND = "Vincent van Gogh", "Van Gogh's friend Paul Gauguin"
"""Alike, so that erasing the second without holding the first would move it."""
_numbers = itertools.count()


def saved_lora(erasure) -> str:
    """Saves the LoRA and gives the name by which the nodes list it."""
    import folder_paths

    from speed_erase.nodes.save_erased_model import SaveErasedModel

    choice = {
        "checkpoint": False,
        "diffusion_model": False,
        "recipe": False,
        "dtype": "float32",
        "overwrite": False,
    }
    text = run(
        SaveErasedModel,
        erasure=erasure,
        filename_prefix=f"first{next(_numbers)}",
        lora=True,
        **choice,
    )[0]
    path = text.split(": ")[1].split(" (")[0]
    folder_paths.add_model_folder_path("loras", os.path.dirname(path))
    return os.path.basename(path)


def from_file(model, erasure):
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure

    return run(SpeedApplyErasure, model=model, lora=saved_lora(erasure), strength=1.0)


def off(patched, clip, model) -> float:
    """How far the first name is from its anchor after the second erasure."""
    return left(model, patched, clip, FIRST)


def test_a_second_erasure_holds_the_first(sd15):
    model, clip, _ = sd15
    first = erased(model, clip, f"{FIRST} -> art")[0]
    second, _, erasure, _, _ = erased(first, clip, f"{SECOND} -> art")
    assert notices(erasure)["still_erased"]["names"] == [FIRST]
    for name in (FIRST, SECOND):
        assert left(model, second, clip, name) < 0.1
    assert "still_erased" not in notices(erased(model, clip, f"{SECOND} -> art")[2])


def test_an_erasure_from_a_file_is_held_by_the_names_in_its_header(sd15):
    model, clip, _ = sd15
    _, _, erasure, _, _ = erased(model, clip, f"{FIRST} -> art")
    first, read = from_file(model, erasure)
    assert [concept.target for concept in read.concepts] == [FIRST]
    second, _, later, _, _ = erased(first, clip, f"{SECOND} -> art")
    assert notices(later)["still_erased"]["names"] == [FIRST]
    assert not notices(later).keys() & {"names_unknown", "lora_without_names"}
    assert off(second, clip, model) < 0.1
    third = erased(second, clip, "Salvador Dali -> art")[2]
    assert notices(third)["still_erased"]["names"] == [FIRST, SECOND]


def test_what_cannot_be_held_is_said(sd15):
    import comfy.sd
    import comfy.utils
    import folder_paths

    model, clip, _ = sd15
    _, _, erasure, _, _ = erased(model, clip, f"{FIRST} -> art")
    secret = replace(erasure, recipe=erasure.recipe.without_names())
    first, read = from_file(model, secret)
    assert read.concepts == ()
    second, _, later, _, _ = erased(first, clip, f"{SECOND} -> art")
    assert notices(later)["names_unknown"]["source"] == read.source
    stored = comfy.utils.load_torch_file(folder_paths.get_full_path("loras", saved_lora(erasure)))
    stock = comfy.sd.load_lora_for_models(model, None, stored, 1.0, 0)[0]
    loosely, _, later, _, _ = erased(stock, clip, f"{SECOND} -> art")
    assert "lora_without_names" in notices(later) and "still_erased" not in notices(later)
    distance = off(erased(from_file(model, erasure)[0], clip, f"{SECOND} -> art")[0], clip, model)
    assert all(off(candidate, clip, model) > 2 * distance for candidate in (second, loosely)), (
        "and holding is worth it"
    )


def test_a_style_lora_is_not_taken_for_an_erasure(sd15):
    import torch

    model, clip, _ = sd15
    styled = model.clone()
    keys = [
        key
        for key in model.model.state_dict()
        if key.endswith((".attn1.to_v.weight", ".attn2.to_v.weight"))
    ]
    shapes = {key: model.model.state_dict()[key].shape for key in keys}
    styled.add_patches({key: (torch.full(shape, 1e-3),) for key, shape in shapes.items()})
    assert "lora_without_names" not in notices(erased(styled, clip)[2])


def test_a_name_that_is_erased_anew_goes_where_the_new_erasure_sends_it(sd15):
    model, clip, _ = sd15
    first = erased(model, clip, f"{FIRST} -> art")[0]
    second, _, later, _, _ = erased(first, clip, f"{FIRST} -> photograph")
    assert "still_erased" not in notices(later)
    assert left(model, second, clip, FIRST, "photograph") < 0.1
