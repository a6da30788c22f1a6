"""The CLIP encoder: equal to transformers and to ComfyUI, whatever the file's spelling, trimmed or
padded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from text_pico import (
    FAMILIES,
    INNER,
    WIDTH,
    checkpoint_tensors,
    encoder_rows,
    encoder_tensors,
    full_prompt,
    read_rows,
    tiny_encoder,
    to_open_clip,
)

from speed_erase.speed_ops.encoders import tower as lazy_blocks
from speed_erase.speed_ops.encoders.clip import ClipTextEncoder, ClipWeights
from speed_erase.speed_ops.encoders.encoder import TextEncoder
from speed_erase.speed_ops.encoders.tokenizers import (
    END_TOKEN,
    START_TOKEN,
    ClipTokenizer,
    clip_tokenizer,
)
from speed_erase.speed_ops.errors import FileError, InputError, SettingsError
from speed_erase.speed_ops.text.requests import RowRequest

PROMPTS = [
    "",
    "Van Gogh",
    "a painting in the style of Claude Monet, highly detailed",
    "葛飾北斎",
    "Hulk (film) {a|b}",
]


def full(encoder: TextEncoder, prompts: list[str] = PROMPTS) -> torch.Tensor:
    return torch.stack(encoder.encode(prompts, [77] * len(prompts)))


def ids(prompt: str, pad: int) -> list[int]:
    return [START_TOKEN, *ClipTokenizer.from_package().token_ids(prompt), END_TOKEN, *[pad] * 77][
        :77
    ]


def test_equals_transformers_own_model() -> None:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=3,
        num_attention_heads=WIDTH // 64,
    )
    model = CLIPTextModel(config).eval()
    names = set(model.state_dict())
    strip = "" if any(name.startswith("text_model.") for name in names) else "text_model."
    halves = encoder_tensors(dtype=torch.float16)
    model.load_state_dict(
        {k.removeprefix(strip): v.float() for k, v in halves.items() if "projection" not in k}
    )
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor([ids(prompt, END_TOKEN) for prompt in PROMPTS])
        ).last_hidden_state
    torch.testing.assert_close(full(tiny_encoder("sd1")), expected, atol=1e-6, rtol=0)


def test_without_comfyui_a_textual_inversion_is_no_text() -> None:
    words = clip_tokenizer(None, ())
    with pytest.raises(InputError, match="'my-style'"):
        words.token_ids("a harbour by embedding:my-style")
    assert (
        len(words.token_ids("embedding :my-style"))
        == len(words.token_ids("an-embedding:my-style")) - 2
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_closed_encoder_holds_no_weights_and_works_again(family: str) -> None:
    encoder = tiny_encoder(family)
    before = full(encoder)
    held = [
        p
        for tower in encoder._towers
        for part in (tower._built.call, tower._built.blocks.layers)
        for p in part.parameters()
    ]
    assert sum(parameter.numel() for parameter in held) > 0
    encoder.close()
    assert sum(parameter.numel() for parameter in held) == 0
    assert torch.equal(full(encoder), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_trimmed_rows_equal_padded_ones(family: str) -> None:
    encoder = tiny_encoder(family)
    padded = full(encoder)
    lengths = [1, 3, 77, 4, 9]
    for rows, length, reference in zip(
        encoder.encode(PROMPTS, lengths), lengths, padded, strict=True
    ):
        assert rows.shape == (length, encoder.width) and rows.dtype == torch.float32
        torch.testing.assert_close(rows, reference[:length], atol=2e-6, rtol=0)
    assert encoder.width == WIDTH * len(encoder_rows(family))


def test_start_row_is_common_and_padding_knows_the_text() -> None:
    padded = full(tiny_encoder("sd1"))
    torch.testing.assert_close(
        padded[:, 0], padded[:1, 0].expand(len(PROMPTS), -1), atol=1e-6, rtol=0
    )
    assert (padded[1:, 76] - padded[0, 76]).abs().amax(dim=1).min() > 1e-3


def test_padding_token_is_the_family_s() -> None:
    """CLIP-L pads with the end token, H and G with 0: padding rows must differ from the wrong
    choice.
    """
    from dataclasses import replace

    tensors, rows = checkpoint_tensors("sd2"), encoder_rows("sd2")
    right = ClipTextEncoder(tensors, rows, ClipTokenizer.from_package())
    wrong = ClipTextEncoder(
        tensors, [replace(rows[0], pad_token=END_TOKEN)], ClipTokenizer.from_package()
    )
    a, b = full(right), full(wrong)
    assert torch.equal(a[1, :4], b[1, :4]) and (a[1, 76] - b[1, 76]).abs().max() > 1e-3
    assert right.fingerprint != wrong.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
def test_diffusers_folder_equals_single_file(family: str) -> None:
    single, folder = tiny_encoder(family), tiny_encoder(family, layout="folder")
    assert torch.equal(full(single), full(folder))
    assert single.fingerprint == folder.fingerprint


def test_truncated_diffusers_encoder_counts_layers_from_the_whole() -> None:
    """Diffusers ships SD2's encoder without its last block; the hidden state is the same."""
    whole, cut = (
        checkpoint_tensors("sd2", layers=24),
        checkpoint_tensors("sd2", layers=24, layout="folder"),
    )
    cut = {key: value for key, value in cut.items() if ".layers.23." not in key}
    encoders = [
        ClipTextEncoder(t, encoder_rows("sd2"), ClipTokenizer.from_package()) for t in (whole, cut)
    ]
    assert torch.equal(full(encoders[0]), full(encoders[1]))
    assert encoders[0].fingerprint == encoders[1].fingerprint
    with pytest.raises(SettingsError, match=r"-2 or lower"):
        ClipTextEncoder(cut, encoder_rows("sd2"), ClipTokenizer.from_package(), clip_skip=-1)


def test_clip_skip() -> None:
    default, last, before = (tiny_encoder("sd1", skip) for skip in (None, -1, -2))
    assert torch.equal(full(default), full(last)) and default.fingerprint == last.fingerprint
    assert (full(last) - full(before)).abs().max() > 1e-2 and last.fingerprint != before.fingerprint
    for bad in (0, 2, -4):
        with pytest.raises(SettingsError, match=r"-1 .* to -3"):
            tiny_encoder("sd1", bad)


def test_streamed_blocks_equal_resident_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = full(tiny_encoder("sdxl"))
    monkeypatch.setattr(lazy_blocks, "RESIDENT_BYTES", 0)
    encoder = tiny_encoder("sdxl")
    assert torch.equal(full(encoder), resident) and torch.equal(full(encoder), resident)
    layers = encoder._towers[0]._built.blocks.layers
    assert layers is not None and len(layers) == 3 and len(set(layers)) == 1


def test_weights_are_held_in_half_precision_as_comfyui_does() -> None:
    wide, half = tiny_encoder("sd1"), tiny_encoder("sd1", dtype=torch.float16)
    assert torch.equal(full(wide), full(half)) and wide.fingerprint == half.fingerprint
    assert full(tiny_encoder("sd1", dtype=torch.bfloat16)).isfinite().all()


def test_fingerprint_follows_every_weight_that_counts() -> None:
    tensors = checkpoint_tensors("sd2")

    def fingerprint(changed: str = "") -> str:
        copy = {k: v + 1e-3 if k == changed else v for k, v in tensors.items()}
        return ClipTextEncoder(copy, encoder_rows("sd2"), ClipTokenizer.from_package()).fingerprint

    original = fingerprint()
    assert original == fingerprint()
    unused = {k for k in tensors if ".resblocks.2." in k or "text_projection" in k}
    for key in [k for k in tensors if ".resblocks.1." not in k]:
        assert (fingerprint(key) == original) == (key in unused), key


def test_progress_reaches_the_end_and_can_stop_it() -> None:
    encoder, seen = tiny_encoder("sd1"), []
    prompts = [f"name {i}" for i in range(60)]
    encoder.encode(prompts, [77] * 60, lambda *report: seen.append(report))
    assert seen[-1] == ("encode", 60, 60) and seen == sorted(seen, key=lambda report: report[1])
    assert len(seen) > 2 * 3  # every block of every batch reports

    def stop(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder.encode(prompts, [77] * 60, stop)
    assert len(encoder.encode(prompts[:1], [2])) == 1


def test_rows_are_cut_out_of_prompts_encoded_once() -> None:
    encoder = tiny_encoder("sd1")
    whole = full_prompt(encoder, "Van Gogh")
    found = read_rows(encoder, [RowRequest("Van Gogh", (2, 76, 0)), RowRequest("Van Gogh", (3,))])
    torch.testing.assert_close(found[0], whole[[2, 76, 0]], atol=2e-6, rtol=0)
    torch.testing.assert_close(found[1], whole[[3]], atol=2e-6, rtol=0)
    with pytest.raises(InputError, match="beyond 77 rows"):
        read_rows(encoder, [RowRequest("x", (77,))])


def test_long_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="100 tokens"):
        tiny_encoder("sd1").encode(["cat " * 100], [77])


def test_damaged_weights_are_named() -> None:
    tensors = checkpoint_tensors("sd1")
    key = "cond_stage_model.transformer.text_model.encoder.layers.1.mlp.fc1.weight"

    def encoder(changed: dict[str, Any]) -> ClipTextEncoder:
        kept = {k: v for k, v in {**tensors, **changed}.items() if v is not None}
        return ClipTextEncoder(kept, encoder_rows("sd1"), ClipTokenizer.from_package())

    with pytest.raises(
        FileError, match=r"incomplete: the file has no .*layers\.1\.mlp\.fc1\.weight"
    ):
        full(encoder({key: None}))
    with pytest.raises(FileError, match="do not fit together"):
        full(encoder({key: torch.zeros(3, 3)}))
    with pytest.raises(InputError, match="NaN or Inf for"):
        full_prompt(encoder({key: torch.full((INNER, WIDTH), float("nan"))}), "x")
    with pytest.raises(FileError, match="not a CLIP text encoder"):
        full(
            encoder(
                {
                    "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": (
                        torch.zeros(9, WIDTH)
                    )
                }
            )
        )
    with pytest.raises(FileError, match="contains no text encoder 'clip_l'"):
        ClipTextEncoder({"x": torch.zeros(1)}, encoder_rows("sd1"), ClipTokenizer.from_package())


def test_a_damaged_stack_of_attention_inputs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = checkpoint_tensors("sd2")
    key = "cond_stage_model.model.transformer.resblocks.1.attn.in_proj_weight"
    for limit in (0, 2**30):
        monkeypatch.setattr(lazy_blocks, "RESIDENT_BYTES", limit)
        for rows in (0, 1, WIDTH, 100):
            damaged = {**tensors, key: torch.zeros(rows, WIDTH)}
            with pytest.raises(FileError, match=r"fit together|different shapes"):
                full(ClipTextEncoder(damaged, encoder_rows("sd2"), ClipTokenizer.from_package()))


def test_shapes_come_from_the_header_where_there_is_one() -> None:
    class Lazy(dict[str, torch.Tensor]):
        def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
            super().__init__(tensors)
            self.shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
            self.read: set[str] = set()

        def __getitem__(self, key: str) -> torch.Tensor:
            self.read.add(key)
            return super().__getitem__(key)

    lazy = Lazy(checkpoint_tensors("sd1"))
    encoder = ClipTextEncoder(lazy, encoder_rows("sd1"), ClipTokenizer.from_package())
    assert (encoder.width, encoder.context_length, lazy.read) == (WIDTH, 77, set())
    full(encoder)
    assert len(lazy.read) == len([key for key in lazy if "projection" not in key])


def comfy_clip(family: str, layers: int) -> Any:
    """ComfyUI's own CLIP for the same checkpoint keys, its encoders shrunk to the tiny ones."""
    import comfy.sd
    from comfy import supported_models

    classes = {"sd1": "SD15", "sd2": "SD20", "sdxl": "SDXL", "sdxl-refiner": "SDXLRefiner"}
    config = getattr(supported_models, classes[family])({})
    tiny = {
        "num_hidden_layers": layers,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": WIDTH // 64,
    }
    options = {f"clip_{name}_model_config": tiny for name in "lhg"}
    state = config.process_clip_state_dict(checkpoint_tensors(family, layers))
    target = config.clip_target(state)
    clip = comfy.sd.CLIP(
        target, embedding_directory=None, tokenizer_data={}, parameters=1, model_options=options
    )
    missing, _ = clip.load_sd(state, full_model=True)
    assert not [key for key in missing if "logit_scale" not in key and "text_projection" not in key]
    return clip


@pytest.mark.comfy
@pytest.mark.parametrize("skip", [None, -1, -2, -3])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_comfyui(comfyui: Path, family: str, skip: int | None) -> None:
    clip = comfy_clip(family, layers=4)
    if skip is not None:
        clip.clip_layer(skip)
    encoder = tiny_encoder(family, skip, layers=4)
    for prompt in PROMPTS:
        literal = prompt.replace("(", "\\(").replace(")", "\\)")
        expected, pooled = clip.encode_from_tokens(clip.tokenize(literal), return_pooled=True)
        torch.testing.assert_close(full(encoder, [prompt])[0], expected[0], atol=1e-5, rtol=0)
        if family in ("sdxl", "sdxl-refiner"):
            rows, whole = encoder.encode_both([prompt, "another"], [2, 0])
            torch.testing.assert_close(whole[0], pooled[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(rows[0], expected[0, :2], atol=1e-5, rtol=0)
        else:
            assert encoder.pooled_width == 0


def test_open_clip_spelling_is_the_only_difference() -> None:
    """The conversion in the helper loses nothing: it is the oracle of the tests above."""
    plain = encoder_tensors()
    spelled = to_open_clip(plain)
    assert sum(v.numel() for v in spelled.values()) == sum(v.numel() for v in plain.values())


def test_an_interrupt_inside_a_block_leaves_no_half_filled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large encoder's only block, stopped while it is filled, must not pass for the block it held
    before.
    """
    monkeypatch.setattr(lazy_blocks, "RESIDENT_BYTES", 0)
    encoder = tiny_encoder("sd1")
    expected = full(encoder)
    overwrite = lazy_blocks._overwrite

    def half(module: torch.nn.Module, tensors: dict[str, torch.Tensor], name: str) -> None:
        next(module.parameters()).zero_()
        raise KeyboardInterrupt

    for stop_at in range(3):
        calls = iter(range(3))
        monkeypatch.setattr(
            lazy_blocks,
            "_overwrite",
            lambda *args, c=calls, s=stop_at: (half if next(c) == s else overwrite)(*args),
        )
        with pytest.raises(KeyboardInterrupt):
            full(encoder)
        monkeypatch.setattr(lazy_blocks, "_overwrite", overwrite)
        assert torch.equal(full(encoder), expected)


def test_blocks_that_add_nothing_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model's CLIP is of full size with most blocks idle: leaving them out changes nothing
    but the time.
    """
    tensors = dict(checkpoint_tensors("sd1"))
    first = [
        key for key in tensors if ".layers.0." in key and key.split(".")[-2] in ("out_proj", "fc2")
    ]
    assert len(first) == 4
    for key in first:
        tensors[key] = torch.zeros_like(tensors[key])
    ran: list[int] = []
    read = ClipWeights.block
    monkeypatch.setattr(
        ClipWeights, "block", lambda self, layer: ran.append(layer) or read(self, layer)
    )
    encoder = ClipTextEncoder(tensors, encoder_rows("sd1"), ClipTokenizer.from_package())
    skipped = full(encoder)
    assert set(ran) == set(range(1, max(ran) + 1)) and max(ran) >= 2
    monkeypatch.setattr(ClipWeights, "idle", lambda self: ())
    again = ClipTextEncoder(tensors, encoder_rows("sd1"), ClipTokenizer.from_package())
    torch.testing.assert_close(skipped, full(again))
    assert 0 in ran
