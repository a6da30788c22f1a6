"""Text encoders that write phrases for Find Leaks: a stand-in, and ComfyUI's own Qwen."""

from __future__ import annotations

import itertools
from typing import Any

import mini_families as minis
import pytest
from graph import erased, run

from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.written import QUESTIONS, SEED

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

ANSWERS = (
    "Here are ten ways:\n1. swirling night sky\n2. in the style of Van Gogh",
    "1. Paul Gauguin",
    "1. ファン・ゴッホ\n2. Ван Гог",
)
CONCEPT = Concept("Van Gogh", "art", "style")


class WritingClip:
    """A CLIP of ComfyUI's that also answers questions, one after another."""

    def __init__(self, clip: Any, fault: BaseException | None = None) -> None:
        self._clip, self._fault = clip, fault
        self.asked: list[str] = []
        self.sampling: list[dict[str, Any]] = []
        self._answers = itertools.cycle(ANSWERS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clip, name)

    def tokenize(self, text: str, **options: Any) -> Any:
        if "thinking" not in options:
            return self._clip.tokenize(text, **options)
        self.asked.append(text)
        return [text]

    def generate(self, tokens: Any, **sampling: Any) -> list[int]:
        if self._fault is not None:
            raise self._fault
        self.sampling.append(sampling)
        return [1]

    def decode(self, ids: Any) -> str:
        return next(self._answers)


@pytest.fixture
def writing(sd15, monkeypatch):
    """Makes a CLIP of which ComfyUI believes that it writes."""
    from speed_erase.nodes.host import writing

    def make(fault: BaseException | None = None) -> WritingClip:
        monkeypatch.setattr(writing, "can_write", lambda clip: isinstance(clip, WritingClip))
        return WritingClip(sd15[1], fault)

    return make


def leaks(sd15, clip: Any, **inputs: Any) -> tuple[str, Any, Any]:
    from speed_erase.nodes.speed_leak_probe import SpeedLeakProbe

    model, plain, _ = sd15
    erasure = erased(model, plain)[2]
    return run(SpeedLeakProbe, model=model, clip=clip, erasure=erasure, templates=0, **inputs)


def test_written_phrases_are_tried_and_the_user_chooses(sd15, writing) -> None:
    clip = writing()
    listing, leaking, closed = leaks(sd15, clip)
    for phrase in ("swirling night sky", "Paul Gauguin", "ファン・ゴッホ", "Ван Гог"):
        assert sum(f": '{phrase}'" in line for line in listing.splitlines()) == 1
        assert phrase not in {name for concept in (*leaking, *closed) for name in concept.phrases}
    assert all(f"  {label}: '" in listing for label in QUESTIONS)
    assert "4 usable phrases in 6 lines" in listing
    assert len(clip.asked) == len(QUESTIONS) and all('"Van Gogh"' in text for text in clip.asked)
    assert {sampling["seed"] for sampling in clip.sampling} == {SEED}


def test_one_switch_turns_it_off(sd15, writing) -> None:
    clip = writing()
    off, _, _ = leaks(sd15, clip, ask_encoder=False)
    assert not clip.asked
    assert off == leaks(sd15, sd15[1])[0], "the built-in phrases, as with an encoder of no words"


def test_an_encoder_that_fails_leaves_the_built_in_phrases(sd15, writing) -> None:
    import comfy.model_management

    plain = leaks(sd15, sd15[1])[0].splitlines()
    for fault in (AttributeError("lm_head"), comfy.model_management.OOM_EXCEPTION("full")):
        listing = leaks(sd15, writing(fault))[0].splitlines()
        assert [line for line in listing if line not in plain] == [
            f"The text encoder wrote no phrases ({type(fault).__name__})."
        ]
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        leaks(sd15, writing(comfy.model_management.InterruptProcessingException()))


def test_clip_does_not_write(sd15) -> None:
    from speed_erase.nodes.host.writing import can_write

    assert not can_write(sd15[1])


def test_comfyuis_qwen_of_random_weights_breaks_nothing(comfyui, monkeypatch) -> None:
    from speed_erase.nodes.host import writing
    from speed_erase.nodes.host.progress import HostProgress

    if not minis.in_this_host("z-image"):
        pytest.skip("this ComfyUI has no Z-Image")
    clip = minis.load_text("z-image")
    if not hasattr(clip, "generate"):
        pytest.skip("this ComfyUI's text encoders do not write")
    monkeypatch.setitem(writing._SAMPLING, "max_length", 40)
    assert writing.can_write(clip)
    (phrases, notes), again = (
        writing.written_phrases(clip, [CONCEPT], HostProgress()) for _ in range(2)
    )
    assert again == (phrases, notes), "the seed is fixed"
    (note,) = notes
    assert f"{len(phrases[CONCEPT])} usable phrases" in note
