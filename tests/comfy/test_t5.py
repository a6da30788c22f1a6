"""SD3 and Flux beside ComfyUI: the same embeddings from the same files, LoRAs that its loader takes
whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mini
import mini_checkpoints
import mini_dit
import pytest
import torch
from safetensors.torch import load_file, save_file
from text_pico import full_prompt

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.encoders.cache import CachedEncoder
from speed_erase.speed_ops.encoders.tokenizers import T5_END_TOKEN, T5_IN_COMFYUI, T5Tokenizer
from speed_erase.speed_ops.models.families import by_name

pytestmark = [pytest.mark.comfy, pytest.mark.usefixtures("shared_embeddings")]

PROMPTS = ("", "a (very) old house by d'Artagnan, 1984!", "naïve ½ 葛飾北斎, Ｆｕｌｌ  two  spaces")
SMALL, WHOLE = 1024, 32128
"""Vocabularies of T5: a small one for most tests, with a tokenizer of that size, and the real
one.
"""
T5_KINDS = {
    "fp16": lambda tensors: {key: value.half() for key, value in tensors.items()},
    "fp32": lambda tensors: tensors,
    "bf16": lambda tensors: {key: value.bfloat16() for key, value in tensors.items()},
    "fp8": lambda tensors: {key: value.to(torch.float8_e4m3fn) for key, value in tensors.items()},
    "fp8 scaled": mini_dit.to_scaled_fp8,
}


def options(vocabulary: int) -> dict[str, dict[str, int]]:
    """What tells ComfyUI that the encoders are shrunken."""
    t5 = mini_dit.T5_SHAPE | {"vocab_size": vocabulary}
    return mini_checkpoints.te_options() | {
        "t5xxl_model_config": t5,
        "model_config": dict(mini_checkpoints.SHRUNK),
    }


def encoders(
    kind: str = "fp16", without: str = "", vocabulary: int = SMALL
) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of the encoders by their name."""
    tensors_by_name = {name: mini_dit.clip_tensors(name) for name in ("clip_l", "clip_g")}
    tensors_by_name["t5xxl"] = T5_KINDS[kind](mini_dit.t5_tensors(vocabulary))
    return {
        name: tensors for name, tensors in tensors_by_name.items() if name not in without.split()
    }


def write_sd3(path: Path, files: dict[str, dict[str, torch.Tensor]]) -> Path:
    """ComfyUI's smallest SD3 with these encoders inside."""
    content = load_file(mini_checkpoints.shared("sd3"))
    for name, tensors in files.items():
        content |= {
            f"text_encoders.{name}.transformer.{key}": value for key, value in tensors.items()
        }
    save_file(content, path)
    return path


def load_clip(path: Path, vocabulary: int = SMALL) -> Any:
    import comfy.sd

    with torch.inference_mode():
        loaded = comfy.sd.load_checkpoint_guess_config(
            str(path), output_vae=False, te_model_options=options(vocabulary)
        )
    return loaded[1]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the small T5 tokenizer."""
    return mini_dit.write_tokenizer(tmp_path_factory.mktemp("words"))


def use_small_words(clip: Any, folder: Path) -> None:
    """Gives ComfyUI's T5 tokenizer, whose rules stay its own, the small vocabulary."""
    small = T5Tokenizer.from_files(folder)
    clip.tokenizer.t5xxl.tokenizer = lambda text: {
        "input_ids": [*small.token_ids(text), T5_END_TOKEN]
    }


def wired(clip: Any, family: str) -> CachedEncoder:
    """The encoder of the nodes."""
    from speed_erase.nodes.host.wiring import open_text

    return CachedEncoder(open_text(clip, by_name(family)))


def assert_equal(encoder: Any, clip: Any) -> None:
    for text in PROMPTS:
        escaped = text.replace("(", "\\(").replace(")", "\\)")
        with torch.inference_mode():
            expected = clip.encode_from_tokens(clip.tokenize(escaped))[0].clone()
        got = full_prompt(encoder.encoder, text)
        assert got.shape == expected.shape
        assert (got - expected).norm() <= 1e-4 * expected.norm(), (
            got - expected
        ).norm() / expected.norm()


def test_sd3_rows_are_comfyuis_with_the_real_tokenizers(comfyui, tmp_path: Path) -> None:
    path = write_sd3(tmp_path / "sd3.safetensors", encoders(vocabulary=WHOLE))
    encoder = TextSetup(tokenizer=comfyui).encoder(ModelSource.open(path))
    assert encoder.encoder.context_length == 154
    assert_equal(encoder, load_clip(path, WHOLE))


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        *(
            ("fp16", without)
            for without in ("", "t5xxl", "clip_l", "clip_g t5xxl", "clip_l clip_g")
        ),
        *((kind, "clip_l clip_g") for kind in ("fp32", "bf16", "fp8", "fp8 scaled")),
    ],
)
def test_sd3_rows_are_comfyuis(
    comfyui, words: Path, tmp_path: Path, kind: str, without: str
) -> None:
    path = write_sd3(tmp_path / "sd3.safetensors", encoders(kind, without))
    clip = load_clip(path)
    use_small_words(clip, words)
    assert_equal(TextSetup(tokenizer=words).encoder(ModelSource.open(path)), clip)
    assert_equal(wired(clip, "sd3"), clip)


def test_flux_rows_are_comfyuis_at_any_clip_skip(comfyui, words: Path, tmp_path: Path) -> None:
    import comfy.sd

    mini_dit.write_dit(tmp_path / "flux.safetensors", "flux-dev")
    tensors_by_encoder = encoders(without="clip_g")
    paths = tuple(tmp_path / f"{name}.safetensors" for name in tensors_by_encoder)
    for path, tensors in zip(paths, tensors_by_encoder.values(), strict=True):
        save_file(tensors, path)
    clip = comfy.sd.load_text_encoder_state_dicts(
        [dict(tensors) for tensors in tensors_by_encoder.values()],
        clip_type=comfy.sd.CLIPType.FLUX,
        model_options=options(SMALL),
    )
    use_small_words(clip, words)
    source = ModelSource.open(tmp_path / "flux.safetensors")
    encoder = TextSetup(tokenizer=words, text_encoders=paths).encoder(source)
    assert encoder.encoder.context_length == 256
    assert_equal(encoder, clip)
    assert_equal(wired(clip, "flux-dev"), clip)
    skipped = clip.clone()
    skipped.clip_layer(-2)
    assert_equal(TextSetup(-2, words, paths).encoder(source), skipped)
    assert_equal(wired(skipped, "flux-dev"), skipped)


def test_t5_tokens_are_comfyuis(comfyui) -> None:
    from comfy.text_encoders.sd3_clip import T5XXLTokenizer

    ours, host = T5Tokenizer.from_files(comfyui / T5_IN_COMFYUI), T5XXLTokenizer()
    for text in (*PROMPTS, "Van Gogh's", "tab\tand\nline", "🤖 {a|b} #7 ...", "\u200b", " "):
        section = host.tokenize_with_weights(text.replace("(", "\\(").replace(")", "\\)"))[0]
        tokens = ours.token_ids(text)
        assert [*tokens, T5_END_TOKEN] == [token for token, _ in section[: len(tokens) + 1]]
        assert len(section) == 77 and all(token == 0 for token, _ in section[len(tokens) + 1 :])


def test_the_lora_loads_in_comfyui_and_does_what_the_checkpoint_does(
    comfyui, words: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import comfy.sd
    import comfy.utils

    base = write_sd3(tmp_path / "sd3.safetensors", encoders())
    out = tmp_path / "out"
    arguments = [
        "erase",
        str(base),
        "--concepts",
        mini.CONCEPTS,
        *mini.QUICK,
        "--tokenizer",
        str(words),
    ]
    assert main([*arguments, "--out", str(out), "--quiet"]) == 0
    model = comfy.sd.load_diffusion_model(str(mini_checkpoints.shared("sd3")))
    lora = comfy.utils.load_torch_file(str(out / "sd3-eraser-lora.safetensors"), safe_load=True)
    with caplog.at_level("WARNING"):
        patched, _ = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0.0)
    assert not caplog.records, "every key is accepted"
    key = "diffusion_model.context_embedder.weight"
    assert set(patched.patches) == {key, "diffusion_model.y_embedder.mlp.0.weight"}
    before, cleaned = load_file(base), load_file(out / "sd3-erased.safetensors")
    weight = model.model.state_dict()[key].float()
    edited = comfy.lora.calculate_weight(patched.patches[key], weight.clone(), key)
    baked = cleaned[f"model.{key}"].float() - before[f"model.{key}"].float()
    assert baked.norm() > 0
    assert (edited - weight - baked).norm() < 0.02 * baked.norm()
