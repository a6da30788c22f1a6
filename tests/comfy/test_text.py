"""Embeddings as the model sees them: the CLIP that is wired in, its skip and LoRAs, literal names,
the shared cache.
"""

from __future__ import annotations

import gc

import mini_checkpoints as mini
import pytest
import torch
from graph import erased, left, notices, sample, value_outputs
from safetensors.torch import save_file

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]


def test_a_clip_lora_and_clip_skip_change_what_is_erased(sd15):
    model, clip, _ = sd15
    skipped = clip.clone()
    skipped.clip_layer(-2)
    patched = erased(model, skipped)[0]
    assert left(model, patched, skipped) < 0.05
    changed = clip.clone()
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    shape = clip.patcher.model.state_dict()[key].shape
    assert changed.add_patches({key: (torch.full(shape, 0.02),)}) == [key]
    assert left(model, erased(model, changed)[0], changed) < 0.05


def test_second_run_with_one_more_concept_encodes_little(sd15, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEED_ERASE_CACHE", str(tmp_path))
    model, clip, _ = sd15
    first = erased(model, clip, "Joan Miro", preset="auto")[2].text_report.encoded
    second = erased(model, clip, "Joan Miro\nMark Rothko", preset="auto")[2].text_report.encoded
    assert 0 < second < first / 3


def test_names_are_literal(sd15):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    encoder = open_text(sd15[1], by_name("sd1"))
    plain = encoder.streams[0].token_ids("Hulk film")
    inside = encoder.streams[0].token_ids("Hulk (film)")
    assert [i for i in inside if i in plain] == plain and len(inside) == len(plain) + 2
    assert (
        len(encoder.streams[0].token_ids("embedding:foo"))
        == len(encoder.streams[0].token_ids("embedding :foo"))
        >= 3
    )
    assert encoder.streams[0].token_ids("{a|b}") and encoder.streams[0].token_ids("") == []


def inversion(folder, name: str, seed: int, width: int = 768) -> None:
    """A file of two random vectors."""
    vectors = torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    save_file({"emb_params": vectors}, folder / f"{name}.safetensors")


def test_a_textual_inversion_is_erased_as_comfyui_reads_it(sd15, tmp_path, monkeypatch):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.errors import InputError
    from speed_erase.speed_ops.models.families import by_name

    model, clip, _ = sd15
    monkeypatch.setattr(clip.tokenizer.clip_l, "embedding_directory", str(tmp_path))
    inversion(tmp_path, "my-style", 1)
    encoder = open_text(clip, by_name("sd1"))
    (rows,) = encoder.encode(["embedding:my-style's (old) harbour"], [77])
    assert torch.allclose(
        rows,
        clip.encode_from_tokens(clip.tokenize(r"embedding:my-style 's \(old\) harbour")),
        atol=1e-5,
    )
    assert (
        len(encoder.streams[0].token_ids("by embedding:my-style, 1900"))
        == len(encoder.streams[0].token_ids("by , 1900")) + 2
    )

    text, last = "embedding:my-style", 2
    first = erased(model, clip, f"{text} -> art")[0]
    goal, before, after = (
        value_outputs(m, clip, name) for m, name in ((model, "art"), (model, text), (first, text))
    )
    shares = [
        (after[k][last] - goal[k][1]).norm() / (before[k][last] - goal[k][1]).norm() for k in goal
    ]
    assert max(shares) < 0.05, shares

    inversion(tmp_path, "my-style", 2)
    again = erased(model, clip, f"{text} -> art")[2]
    assert "edit_reused" not in notices(again), "another file is another concept"
    assert "edit_reused" in notices(erased(model, clip, f"{text} -> art")[2]), "the control"
    with pytest.raises(InputError, match="nowhere"):
        erased(model, clip, "embedding:nowhere -> art")
    inversion(tmp_path, "other", 3, width=1024)
    with pytest.raises(InputError, match="other"):
        erased(model, clip, "embedding:other -> art")


def test_trimmed_rows_are_the_public_ones_and_the_fingerprint_follows_the_weights(sd15):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    clip = sd15[1]
    encoder = open_text(clip, by_name("sd1"))
    rows = encoder.encode(["a (very) old house", "Snoopy"], [77, 4])
    public = clip.encode_from_tokens(clip.tokenize(r"a \(very\) old house"))[0]
    assert torch.allclose(rows[0], public, atol=1e-5) and rows[1].shape == (4, 768)
    assert encoder.notes == []
    patched = clip.clone()
    assert open_text(patched, by_name("sd1")).fingerprint == encoder.fingerprint
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    patched.add_patches({key: (torch.full(clip.patcher.model.state_dict()[key].shape, 0.02),)})
    assert open_text(patched, by_name("sd1")).fingerprint != encoder.fingerprint
    patched.clip_layer(-2)
    assert len({open_text(c, by_name("sd1")).fingerprint for c in (clip, patched)}) == 2


@pytest.mark.parametrize(
    ("checkpoint", "name"), [("sd15", "sd1"), ("sd21", "sd2"), ("sdxl", "sdxl")]
)
def test_the_fingerprint_is_the_command_lines(comfyui, checkpoint, name):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.encoders.clip import ClipTextEncoder
    from speed_erase.speed_ops.encoders.tokenizers import ClipTokenizer
    from speed_erase.speed_ops.files.checkpoint import Checkpoint
    from speed_erase.speed_ops.models.families import by_name

    family = by_name(name)
    file = Checkpoint.open(mini.shared(checkpoint))
    theirs = ClipTextEncoder(file, family.encoders, ClipTokenizer.from_package())
    clip = mini.load(mini.shared(checkpoint))[1]
    assert open_text(clip, family).fingerprint == theirs.fingerprint


@pytest.fixture
def short_of_memory(monkeypatch):
    """`short_of_memory(bears)`: encoding raises what ComfyUI raises unless `bears(number of texts,
    is on the CPU)`.
    """
    import comfy.model_management
    from comfy.sd import CLIP

    from speed_erase.nodes.host.text import HostTextEncoder
    from speed_erase.speed_ops.encoders.clip import ClipTextEncoder

    def arrange(bears) -> None:
        real = {"trimmed": ClipTextEncoder.encode, "public": CLIP.encode_from_tokens}
        moved = []
        leave = HostTextEncoder._move_to_cpu
        monkeypatch.setattr(HostTextEncoder, "_move_to_cpu", lambda self: moved.append(leave(self)))

        def check(count: int) -> None:
            if not bears(count, bool(moved)):
                raise comfy.model_management.OOM_EXCEPTION("out of memory")

        def trimmed(self, prompts, lengths, progress=None):
            check(len(prompts))
            return real["trimmed"](self, prompts, lengths, progress)

        def public(self, tokens, *args, **kwargs):
            check(len(next(iter(tokens.values()))))
            return real["public"](self, tokens, *args, **kwargs)

        monkeypatch.setattr(ClipTextEncoder, "encode", trimmed)
        monkeypatch.setattr(CLIP, "encode_from_tokens", public)

    return arrange


NAMES = [f"Painter {i}" for i in range(20)]


@pytest.mark.parametrize("plain", [True, False], ids=["trimmed", "padded"])
@pytest.mark.parametrize(
    ("bears", "fallback"),
    [
        (lambda count, on_cpu: count <= 4, {"at_once": 4}),
        (lambda count, on_cpu: on_cpu, {"device": "cpu"}),
    ],
    ids=["smaller chunks", "the CPU"],
)
def test_running_out_of_gpu_memory_falls_back_and_is_said(
    sd15, short_of_memory, plain, bears, fallback
):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.models.families import by_name

    encoder = open_text(sd15[1], by_name("sd1"))
    encoder._agrees = plain
    expected = encoder.encode(NAMES, [4] * 20)
    short_of_memory(bears)
    got = encoder.encode(NAMES, [4] * 20)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, got, strict=True))
    assert [note.data for note in encoder.notes] == [{"code": "out_of_gpu_memory", **fallback}]


def test_a_whole_erasure_without_gpu_memory_runs_on_the_cpu_and_its_report_says_so(
    comfyui, short_of_memory
):
    # a model whose CLIP was not read yet: reading it takes memory as well
    model, clip, _ = mini.load(mini.shared("sd15"))
    short_of_memory(lambda count, on_cpu: on_cpu)
    _, _, erasure, report, _ = erased(model, clip, "Nobody at all")
    (note,) = [note for note in erasure.notes if note.data.get("code") == "out_of_gpu_memory"]
    assert note.data["device"] == "cpu" and note in report


def test_too_little_memory_anywhere_is_a_sentence(sd15, short_of_memory):
    from speed_erase.nodes.host.wiring import open_text
    from speed_erase.speed_ops.errors import SpeedError
    from speed_erase.speed_ops.models.families import by_name

    encoder = open_text(sd15[1], by_name("sd1"))
    short_of_memory(lambda count, on_cpu: False)
    with pytest.raises(SpeedError):
        encoder.encode(NAMES, [4] * 20)


def test_no_copy_of_the_text_encoder_stays_behind(sd15, monkeypatch):
    """Without the garbage collector, which may be long in coming and does not look at the GPU's
    memory.
    """
    from speed_erase.speed_ops.encoders.clip import ClipTextEncoder

    def held() -> int:
        """Numbers in all parameters of all modules that are alive."""
        return sum(item.numel() for item in gc.get_objects() if type(item) is torch.nn.Parameter)

    model, clip, _ = sd15
    erased(model, clip, "Somebody Before")
    gc.collect()
    gc.disable()
    try:
        before = held()
        erased(model, clip, "Somebody Forgotten")
        assert held() == before
        monkeypatch.setattr(ClipTextEncoder, "close", lambda self: None)
        erased(model, clip, "Somebody Remembered")
        assert held() > before, "the control: where it is not let go of, this test sees it"
    finally:
        gc.enable()
        gc.collect()


def test_the_diffusion_model_is_not_loaded_for_the_edit(sd15, monkeypatch):
    import comfy.model_management as host

    model, clip, _ = sd15
    real, loaded = host.load_models_gpu, []
    monkeypatch.setattr(
        host,
        "load_models_gpu",
        lambda models, *args, **kwargs: (loaded.extend(models), real(models, *args, **kwargs)),
    )
    erased(model, clip, "Somebody Light", preset="auto")
    sample_uses = len(loaded)
    assert all(entry.model is clip.cond_stage_model for entry in loaded)
    sample(model, clip, "a dog")
    assert any(entry.model is model.model for entry in loaded[sample_uses:]), (
        "the control: sampling does load it"
    )
