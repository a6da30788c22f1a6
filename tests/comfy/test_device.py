"""The nodes' whole path on a device that is not the CPU: the real ComfyUI with a stand-in GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mini_checkpoints as mini
import mini_families as minis
import pytest
import torch
from device_double import DEVICE, DeviceTensor, Double, watching_the_device
from graph import concepts, erased, retained, run
from safetensors.torch import load_file

from speed_erase.speed_ops.errors import Notice, SpeedError

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

PLAIN = {"ipf": False, "held_out": 0.0}
TOLERANCE = 1e-7
"""In single precision the closed form would be off by more."""
LOOKS_PER_LAYER, LOOKS_AT_ALL = 8, 90
"""How often the host may wait for the device in a run of SPEED Erase whose texts are cached."""


@pytest.fixture
def forget(comfyui) -> Callable[[], None]:
    """Makes the next erasure compute, and look at its CLIP, as if it were the first one."""
    from speed_erase.nodes import erasing
    from speed_erase.nodes.host import public_text, text

    def clear() -> None:
        for memory in (erasing._recent, text._examined, public_text._cuts):
            memory.clear()

    return clear


@pytest.fixture
def on_device(forget, monkeypatch) -> Iterator[Double]:
    """ComfyUI computes on the stand-in, which has a gigabyte free."""
    import comfy.model_management as host

    def of_device(real: Callable[..., Any]) -> Callable[..., Any]:
        def memory(device: Any = None, torch_free_too: bool = False, **options: Any) -> Any:
            if device is None or torch.device(device).type != DEVICE.type:
                return real(device, torch_free_too, **options)
            return (2**30, 2**20) if torch_free_too else 2**30

        return memory

    for name in ("get_free_memory", "get_total_memory"):
        monkeypatch.setattr(host, name, of_device(getattr(host, name)))
    monkeypatch.setattr(host, "get_torch_device", lambda: DEVICE)
    forget()
    with watching_the_device() as double:
        yield double
    host.unload_all_models()
    forget()


def placed(clip: Any) -> Any:
    """The CLIP, to be run on the device."""
    clone = clip.clone()
    clone.patcher.load_device = DEVICE
    return clone


def same(edits: Any, expected: Any, rows: float = 0.0) -> bool:
    """Whether two erasures add the same to every layer; `rows`: how far those may be apart that
    were encoded twice.
    """
    assert edits.keys() == expected.keys() and expected
    assert all(edit.up.device.type == edit.down.device.type == "cpu" for edit in edits.values())
    assert all(edit.up.dtype == torch.float64 for edit in edits.values())
    return all(
        float((edits[key].delta() - edit.delta()).norm())
        < max(TOLERANCE, rows) * float(edit.norm())
        for key, edit in expected.items()
    )


def files(double: Double) -> set[str]:
    return {site.partition(":")[0] for site in double.sites}


def has_left(erasure: Any) -> bool:
    """Whether a report says that the GPU had too little memory."""
    return "computed_on_cpu" in [n.code for n in erasure.notes if isinstance(n, Notice)]


@pytest.fixture(scope="module")
def tiny(comfyui) -> tuple[Any, Any]:
    return mini.load(mini.shared("sd15-tiny"))[:2]


def test_from_names_to_saved_files(tiny, forget, request, own_output):
    from speed_erase.nodes.save_erased_model import SaveErasedModel
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure

    model, clip = tiny
    forget()
    plain = erased(model, clip)
    half = erased(model, clip, strength=0.5)[2]
    again = erased(plain[0], clip, "Joan Miro -> art")[2]

    double = request.getfixturevalue("on_device")
    text, weights = placed(clip), dict(model.model.named_parameters())
    patched, lora, erasure, _, _ = erased(model, text)
    assert same(erasure.edits, plain[2].edits) and not has_left(erasure)
    assert files(double) >= {
        "speed_ops/encoders/tower.py",
        "speed_ops/engine/closed_form.py",
        "speed_ops/certificate/measure.py",
        "nodes/host/weights.py",
    }
    left, expected = erasure.certificate.concepts[0], plain[2].certificate.concepts[0]
    assert left.solved_median == pytest.approx(expected.solved_median, abs=1e-4)
    assert not model.patches and dict(model.model.named_parameters()) == weights
    values = [*lora.values(), *(v for item in patched.patches.values() for v in item[0][1].weights)]
    assert not any(isinstance(value, DeviceTensor) for value in values)

    measured = erased(model, text, strength=0.5)[2].certificate.concepts[0]
    assert measured.solved_median == pytest.approx(
        half.certificate.concepts[0].solved_median, abs=1e-4
    )
    applied = run(SpeedApplyErasure, model=model, strength=0.5, erasure=erasure)[1]
    assert applied.certificate.concepts[0] == measured
    assert same(erased(patched, text, "Joan Miro -> art")[2].edits, again.edits), "the first holds"

    run(
        SaveErasedModel,
        erasure=erasure,
        model=patched,
        filename_prefix="x",
        dtype="as the source",
        lora=True,
        checkpoint=False,
        diffusion_model=False,
        recipe=True,
        overwrite=True,
    )
    assert load_file(own_output / "loras" / "x.safetensors").keys()


def test_the_default_preset_gives_all_memory_of_the_device_back(tiny, forget, request):
    import comfy.model_management as host

    model, clip = tiny
    forget()
    plain = erased(model, clip, preset="auto")[2]
    double = request.getfixturevalue("on_device")
    erasure = erased(model, placed(clip), preset="auto")[2]
    assert same(erasure.edits, plain.edits) and not has_left(erasure)
    assert double.peak > 2**20
    host.unload_all_models()
    gc.collect()
    assert double.bytes == 0


def test_weights_that_are_on_the_device_leave_it_only_to_be_hashed(tiny, on_device, monkeypatch):
    """Once per layer."""
    from speed_erase.nodes.host import weights

    # A tensor of the stand-in is of a class of its own, and a tensor of a GPU is not.
    monkeypatch.setattr(weights, "_refuse_packed", lambda patcher, keys: None)
    model, clip = tiny
    (layer,) = (m for name, m in model.model.named_modules() if name.endswith("attn2.to_v"))
    stored = layer.weight
    layer.weight = torch.nn.Parameter(stored.detach().to(DEVICE), requires_grad=False)
    try:
        erasure = erased(model, clip)[2]
    finally:
        layer.weight = stored
    assert on_device.to_host.count(tuple(stored.shape)) == 1
    (edit,) = erasure.edits.values()
    assert tuple(edit.up.shape) in on_device.to_host, "the control: this does leave"


def test_one_layer_at_a_time_is_on_the_device(sd15, on_device, monkeypatch):
    from speed_erase.nodes.host import weights

    read = weights.effective_weight
    stores: list[weakref.ref[torch.UntypedStorage]] = []
    alive: list[int] = []

    def watched(patcher: Any, key: str, device: torch.device) -> torch.Tensor:
        gc.collect()
        alive.append(sum(store() is not None for store in stores))
        weight = read(patcher, key, device)
        stores.append(weakref.ref(weight._inner.untyped_storage()))
        return weight

    monkeypatch.setattr(weights, "effective_weight", watched)
    erasure = erased(sd15[0], placed(sd15[1]))[2]
    assert len(alive) >= len(erasure.edits) == 7 and set(alive) == {0}


FAMILIES = {mini.family: name for name, mini in reversed(minis.MINIS.items())}


@pytest.mark.parametrize("name", ["sdxl", *reversed(FAMILIES.values())])
def test_what_every_family_does_to_text_first_and_the_pooled_input(comfyui, forget, request, name):
    if name in minis.MINIS and not minis.in_this_host(name):
        pytest.skip(f"this ComfyUI has no {name}")
    if name in minis.MINIS:
        model, clip = minis.load_model(name), minis.load_text(name)
    else:
        model, clip = mini.load(mini.shared(name))[:2]
    forget()
    plain = erased(model, clip, settings=PLAIN)[2]
    double = request.getfixturevalue("on_device")
    erasure = erased(model, placed(clip), settings=PLAIN)[2]
    assert same(erasure.edits, plain.edits) and not has_left(erasure)
    assert "speed_ops/engine/closed_form.py" in files(double)
    architecture = erasure.architecture
    assert (architecture.text_part is not None) == ("nodes/host/text_part.py" in files(double))
    assert bool(erasure.certificate.other_inputs) == (architecture.second_input is not None)


@pytest.mark.parametrize("stored", ["fp8", "gguf"])
def test_packed_weights(comfyui, forget, request, stored):
    if stored == "gguf":
        import gguf_double

        model, clip = gguf_double.load_model("wan"), minis.load_text("wan")
    else:
        options = {"model_options": {"dtype": torch.float8_e4m3fn}}
        model, clip = mini.load(mini.shared("sd15-tiny"), **options)[:2]
    forget()
    plain = erased(model, clip, settings=PLAIN)[2]
    double = request.getfixturevalue("on_device")
    erasure = erased(model, placed(clip), settings=PLAIN)[2]
    assert same(erasure.edits, plain.edits) and not has_left(erasure)
    assert "nodes/host/weights.py" in files(double)


def test_a_tensor_made_on_the_wrong_device_is_seen(tiny, on_device, monkeypatch):
    """The negative control."""
    from speed_erase.speed_ops.certificate import measure

    def planted(amounts, index, concepts):
        total = torch.zeros((*amounts.shape[:-1], concepts), dtype=amounts.dtype)
        return total.index_add(-1, index, amounts)

    monkeypatch.setattr(measure, "per_concept", planted)
    with pytest.raises(RuntimeError, match="same device"):
        erased(tiny[0], tiny[1])


def test_a_device_without_double_precision_is_left_alone(tiny, on_device, monkeypatch):
    from speed_erase.nodes.host import progress

    monkeypatch.setattr(progress, "has_double_precision", lambda _: False)
    erasure = erased(tiny[0], tiny[1])[2]
    assert not on_device.sites and not has_left(erasure)


def test_the_host_rarely_waits_for_the_device(tiny, sd15, on_device):
    """However many layers there are: once for a few of them, not once per number."""
    from speed_erase.nodes import erasing

    def looks(model: Any, clip: Any) -> int:
        erased(model, placed(clip))
        erasing._recent.clear()
        with watching_the_device() as double:
            erasure = erased(model, placed(clip))[2]
        assert not erasure.text_report.encoded and len(double.sites) > 500
        return sum(double.looks.values())

    one, seven = looks(*tiny), looks(*sd15[:2])
    assert (seven - one) / 6 <= LOOKS_PER_LAYER and one <= LOOKS_AT_ALL


def test_texts_are_encoded_in_few_batches_in_memory_that_was_asked_for(
    tiny, on_device, monkeypatch, tmp_path
):
    import comfy.model_management as host

    asked: list[tuple[int, torch.device]] = []
    free = host.free_memory

    def noting(count: int, device: torch.device, *args: Any, **options: Any) -> Any:
        asked.append((count, device))
        return free(count, device, *args, **options)

    monkeypatch.setattr(host, "free_memory", noting)
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    erasure = erased(tiny[0], placed(tiny[1]))[2]
    encoding = {site: n for site, n in on_device.looks.items() if "/encoders/" in site}
    assert sum(encoding.values()) < 10 < erasure.text_report.encoded
    of_device = [count for count, device in asked if device == DEVICE]
    assert max(of_device) >= on_device.peak > 0


def first_of_each(double: Double) -> dict[str, int]:
    """{place of an allocation in our code: its first number}."""
    return {site: number for number, site in reversed(list(enumerate(double.sites)))}


@pytest.mark.slow
def test_running_out_of_memory_anywhere_ends_on_the_cpu_or_in_a_sentence(
    tiny, forget, request, monkeypatch, tmp_path
):
    """At the first allocation of every place in our code that makes one."""
    from speed_erase.nodes import erasing

    model, clip = tiny
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path / "warm"))
    forget()
    plain = erased(model, clip)
    request.getfixturevalue("on_device")
    erased(model, placed(clip))

    def attempt(number: int | None, cold: bool) -> Double:
        """`cold`: texts are encoded again."""
        erasing._recent.clear()
        if cold:
            forget()
        with monkeypatch.context() as patch, watching_the_device() as double:
            if cold:
                patch.setenv("SPEED_ERASE_CACHE", str(tmp_path / f"{number}"))
            double.fails_at = number
            try:
                patched, _, erasure, _, _ = erased(model, placed(clip))
            except SpeedError as fault:
                assert number is not None and str(fault)
            else:
                codes = [note.code for note in erasure.notes if isinstance(note, Notice)]
                told = {"computed_on_cpu", "out_of_gpu_memory"} & {*codes}
                assert bool(told) == (number is not None)
                assert same(erasure.edits, plain[2].edits, rows=1e-4 * cold)
                assert patched.patches.keys() == plain[0].patches.keys()
        assert not model.patches and double.failed == (number is not None)
        return double

    encoding, solving = (first_of_each(attempt(None, cold)) for cold in (True, False))
    assert len(encoding.keys() - solving) > 5 and len(solving) > 150
    for site, number in encoding.items():
        if site not in solving:
            attempt(number, cold=True)
    for number in solving.values():
        attempt(number, cold=False)


def run_other(name: str, model: Any, clip: Any, erasure: Any) -> tuple[str, list[str]]:
    """Another node that computes: its text, without the notes, and the codes of these."""
    from speed_erase.nodes.speed_apply_erasure import SpeedApplyErasure
    from speed_erase.nodes.speed_forecast import SpeedForecast
    from speed_erase.nodes.speed_leak_probe import SpeedLeakProbe

    if name == "Load Erasure":
        applied = run(SpeedApplyErasure, model=model, strength=0.5, erasure=erasure)[1]
        codes = [note.code for note in applied.notes if isinstance(note, Notice)]
        return replace(applied, notes=()).text(), codes
    if name == "Preview Side Effects":
        inputs = {"concepts": concepts("Van Gogh -> art"), "retain": retained(), "shown": 5}
        text = run(SpeedForecast, model=model, clip=clip, **inputs)[0]
    else:
        text = run(SpeedLeakProbe, model=model, clip=clip, erasure=erasure, templates=0)[0]
    lines = [line for line in text.splitlines() if "GPU" not in line]
    return "\n".join(lines), ["computed_on_cpu"] * (len(text.splitlines()) - len(lines))


@pytest.mark.parametrize("name", ["Load Erasure", "Preview Side Effects", "Find Leaks"])
def test_the_other_nodes_go_on_without_the_device(tiny, forget, request, name):
    model, clip = tiny
    forget()
    erasure = erased(model, clip)[2]
    plain, codes = run_other(name, model, clip, erasure)
    assert "computed_on_cpu" not in codes
    request.getfixturevalue("on_device")
    run_other(name, model, placed(clip), erasure)  # encodes, and looks at the device
    with watching_the_device() as double:
        assert run_other(name, model, placed(clip), erasure) == (plain, codes)
    count = len(double.sites)
    assert count > 10
    for number in (0, count // 2, count - 1):
        with watching_the_device() as double:
            double.fails_at = number
            shown, codes = run_other(name, model, placed(clip), erasure)
        assert double.failed and shown == plain and codes.count("computed_on_cpu") == 1


class Dynamic:
    """A patcher as ComfyUI's dynamic VRAM has it: it knows the devices that it was told of."""

    def __init__(self, model: Any, loads_again: bool) -> None:
        self.model, self.loads_again = model, loads_again
        self.load_device, self.devices = DEVICE, {DEVICE}

    def is_dynamic(self) -> bool:
        return self.loads_again is not None

    def register_load_device(self, device: torch.device) -> None:
        self.devices.add(device)

    def clone(self, disable_dynamic: bool = False) -> Any:
        if not disable_dynamic:
            return Dynamic(self.model, self.loads_again)
        if not self.loads_again:
            raise RuntimeError("Cannot create non-dynamic delegate")
        plain = type("Plain", (), {"is_dynamic": lambda self: False})()
        plain.model, plain.load_device = f"{self.model}, again", DEVICE
        return plain


class Clip:
    def __init__(self, patcher: Any) -> None:
        self.patcher, self.cond_stage_model = patcher, patcher.model

    def clone(self, disable_dynamic: bool = False) -> Clip:
        return Clip(self.patcher.clone(disable_dynamic=disable_dynamic))


@pytest.mark.parametrize("loads_again", [True, False])
def test_a_clip_under_dynamic_vram_moves_to_the_cpu_the_way_it_can(comfyui, loads_again):
    from speed_erase.nodes.host.text import on_cpu

    clip = Clip(Dynamic("encoder", loads_again))
    moved, cpu = on_cpu(clip), torch.device("cpu")
    assert moved.patcher.load_device == cpu and clip.patcher.load_device == DEVICE
    assert moved.cond_stage_model is moved.patcher.model
    if loads_again:
        assert not moved.patcher.is_dynamic() and moved.cond_stage_model == "encoder, again"
    else:
        assert cpu in moved.patcher.devices, "or ComfyUI raises KeyError when it loads"
