"""The stop button, at every stage: heard within a second, and nothing stays behind."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from graph import erased, notices, run

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("own_output")]


@pytest.fixture
def press(monkeypatch):
    """`press(stage)` presses stop when that stage has begun; the answer holds the moment it did."""
    import comfy.model_management as host

    from speed_erase.nodes.host.progress import HostProgress

    def arrange(stage: str, after: float = 0.0) -> list[float]:
        real, pressed = HostProgress.__call__, []

        def call(self, now: str, done: int, total: int) -> None:
            real(self, now, done, total)
            if now == stage and done >= after * total and not pressed:
                pressed.append(time.monotonic())
                host.interrupt_current_processing(True)

        monkeypatch.setattr(HostProgress, "__call__", call)
        return pressed

    return arrange


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "speed-erase"]


@pytest.mark.parametrize(
    "stage",
    [
        "fingerprint",
        "empty prompt",
        "concepts",
        "probes",
        "retain names",
        "retain contexts",
        "prepare",
        "layers",
        "certificate",
    ],
)
def test_every_stage_of_an_erasure_stops_within_a_second(sd15, press, stage):
    import comfy.model_management as host

    model, clip, _ = sd15
    pressed, name = press(stage), f"Interrupted While {stage}"
    with pytest.raises(host.InterruptProcessingException):
        erased(model, clip, name, preset="auto", seed=3)
    assert time.monotonic() - pressed[0] < 1.0
    assert not model.patches and not host.processing_interrupted()
    _, _, erasure, report, _ = erased(model, clip, name, preset="auto", seed=3)
    assert name in report and "edit_reused" not in notices(erasure)


def test_a_call_of_many_seconds_is_not_waited_for(sd15, monkeypatch):
    """An eigenproblem of SDXL's width takes up to nine seconds on two busy cores; a slow one stands
    in for it.
    """
    import comfy.model_management as host

    model, clip, _ = sd15
    for thread in workers():
        thread.join(10)  # what earlier tests left behind
    real, finished, pressed = torch.linalg.eigh, threading.Event(), []

    def slow(*args, **kwargs):
        if not pressed:
            pressed.append(time.monotonic())
            host.interrupt_current_processing(True)
            time.sleep(3)
            finished.set()
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.linalg, "eigh", slow)
    with pytest.raises(host.InterruptProcessingException):
        erased(model, clip, "Somebody Slow")
    assert time.monotonic() - pressed[0] < 1.0 and not finished.is_set() and len(workers()) == 1
    # meant for the next prompt: the work left behind must not take it
    host.interrupt_current_processing(True)
    assert finished.wait(10)
    for thread in workers():
        thread.join(10)
    assert workers() == [] and host.processing_interrupted() and not model.patches
    host.interrupt_current_processing(False)
    monkeypatch.setattr(torch.linalg, "eigh", real)
    assert "edit_reused" not in notices(erased(model, clip, "Somebody Slow")[2])


@pytest.mark.parametrize("node", ["forecast", "leak probe"])
def test_forecast_and_leak_probe_stop_too(sd15, press, node):
    import comfy.model_management as host
    from graph import concepts, retained

    from speed_erase.nodes.speed_forecast import SpeedForecast
    from speed_erase.nodes.speed_leak_probe import SpeedLeakProbe

    model, clip, _ = sd15
    erasure = erased(model, clip)[2]
    pressed = press("retain names" if node == "forecast" else "leaks")
    with pytest.raises(host.InterruptProcessingException):
        if node == "forecast":
            run(
                SpeedForecast,
                model=model,
                clip=clip,
                concepts=concepts("Goya"),
                shown=5,
                retain=retained(),
            )
        else:
            run(SpeedLeakProbe, model=model, clip=clip, erasure=erasure, templates=2)
    assert time.monotonic() - pressed[0] < 1.0


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 0.95])
def test_saving_a_checkpoint_stops_and_leaves_no_file(sd15, press, own_output, after):
    """While weights are gathered (the first half) and while they are written (the second)."""
    import comfy.model_management as host

    from speed_erase.nodes.save_erased_model import SaveErasedModel

    model, clip, vae = sd15
    patched, _, erasure, _, _ = erased(model, clip)
    choice = {
        "lora": False,
        "checkpoint": True,
        "diffusion_model": False,
        "recipe": False,
        "overwrite": False,
    }
    inputs = {
        "filename_prefix": "x",
        "dtype": "same as source",
        "model": patched,
        "clip": clip,
        "vae": vae,
        **choice,
    }
    pressed = press("write", after)
    with pytest.raises(host.InterruptProcessingException):
        run(SaveErasedModel, erasure=erasure, **inputs)
    assert time.monotonic() - pressed[0] < 1.0
    assert [path for path in own_output.rglob("*") if path.is_file()] == []
