"""Chat models from files: the rows that `transformers` gives, block by block, in a template."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mini_chat import write_words

from speed_erase.speed_ops.encoders import tower as lazy_blocks
from speed_erase.speed_ops.encoders.chat import ChatTextEncoder
from speed_erase.speed_ops.encoders.encoder import RootMeanSquareNorm
from speed_erase.speed_ops.encoders.tokenizers import QwenTokenizer
from speed_erase.speed_ops.errors import FileError, InputError, SettingsError
from speed_erase.speed_ops.models.architecture import FamilyEncoder
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.tokens import Position

BLOCKS, WIDTH = 4, 32
TEXT = "a photo by Van Gogh"
HEADS = {"Qwen3": 16, "Qwen2": 128, "Gemma2": 256}
"""{design: width of an attention head, which some have fixed}."""


def _small(family: str, **changes) -> FamilyEncoder:
    """The row of a family with narrow rows and few blocks."""
    (row,) = by_name(family).encoders
    width = WIDTH * row.states
    return replace(row, width=width, layers=BLOCKS, length=64, **changes)


SHORT = _small("z-image")
ROWS = {
    "Qwen3": SHORT,
    "Qwen2": _small("qwen-image"),
    "Gemma2": _small("lumina-2"),
    "Qwen3, three states": _small("flux2-klein-4b", hidden=-2),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> QwenTokenizer:
    return QwenTokenizer.from_files(write_words(tmp_path_factory.mktemp("words")))


def _random_model(design: str) -> torch.nn.Module:
    """`transformers`' own model, with random weights in half precision."""
    import transformers

    torch.manual_seed(0)
    uncapped = {"attn_logit_softcapping": None} if design == "Gemma2" else {}
    theta = 1e4 if design == "Gemma2" else 1e6
    config = getattr(transformers, f"{design}Config")(
        vocab_size=300,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEADS[design],
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        **uncapped,
    )
    model = getattr(transformers, f"{design}Model")(config).eval()
    for name, value in model.named_parameters():
        size = 1.0 if value.ndim == 1 else value.shape[-1] ** -0.5
        value.data = (torch.randn(value.shape) * 0.3 * size + size * ("norm" in name)).half()
        value.data = value.data.float()
    return model


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    return _random_model("Qwen3")


def encoder(reference, words: QwenTokenizer, row=SHORT, **changes) -> ChatTextEncoder:
    tensors = {
        f"text_encoder/model.{name}": value for name, value in reference.state_dict().items()
    }
    return ChatTextEncoder(tensors | changes, row, words)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_of_transformers(name: str, words) -> None:
    row, model = ROWS[name], _random_model(name.partition(",")[0])
    unread = words.template_ids(row.instruction)
    start, end = (words.template_ids(part) for part in row.template)
    ids = [*unread, *start, *words.token_ids(TEXT), *end]
    count = len(ids)
    if row.padding == "informative":
        count = row.length
        ids += [words.pad] * (count - len(ids))
    seen = torch.tensor([[id != words.pad for id in ids]])
    with torch.no_grad():
        out = model(torch.tensor([ids]), attention_mask=seen, output_hidden_states=True)
    states = out.hidden_states
    expected = torch.cat([states[1], states[2], states[3]], -1) if row.states > 1 else None
    expected = (states[row.hidden] if expected is None else expected)[0, len(unread) :]
    rows, _ = encoder(model, words, row).encode(
        [TEXT, f"{TEXT} and others"], [count - len(unread)] * 2
    )
    assert torch.allclose(rows, expected, atol=1e-5) and rows.norm() > 1


def test_a_clip_skip_is_refused_where_several_states_are_read(reference, words) -> None:
    tensors = {f"text_encoder/model.{n}": v for n, v in reference.state_dict().items()}
    with pytest.raises(SettingsError):
        ChatTextEncoder(tensors, ROWS["Qwen3, three states"], words, -3)


def test_one_block_at_a_time_gives_the_same(reference, words, monkeypatch) -> None:
    (resident,) = encoder(reference, words).encode([TEXT], [20])
    monkeypatch.setattr(lazy_blocks, "RESIDENT_BYTES", 0)
    streamed = encoder(reference, words)
    assert torch.equal(streamed.encode([TEXT], [20])[0], resident)
    assert torch.equal(streamed.encode([TEXT], [20])[0], resident), "also after the first run"


def test_a_row_depends_on_what_is_before_it_alone(reference, words) -> None:
    short, long = encoder(reference, words).encode(["a photo", "a photo by d'Artagnan"], [8, 8])
    assert torch.allclose(short[:8], long[:8], atol=1e-5)


def test_a_name_is_found_in_the_template(words, reference) -> None:
    (stream,) = encoder(reference, words).streams
    before, after = (len(words.template_ids(part)) for part in SHORT.template)
    span = stream.locate(Prompt(TEXT, len(TEXT), TEXT.index("Van")))
    count = len(words.token_ids(TEXT))
    assert stream.rows(Position.LAST_SUBJECT, span) == (before + count - 1,)
    assert stream.count(span) == before + count + after


def test_tokens_are_those_of_transformers(tmp_path) -> None:
    from transformers import Qwen2Tokenizer

    folder = write_words(tmp_path)
    files = folder / "vocab.json", folder / "merges.txt"
    theirs = Qwen2Tokenizer.from_pretrained(str(folder))
    ours = QwenTokenizer.from_files(folder)
    assert all(file.is_file() for file in files)
    for text in ("a user, 1984!", "d'Artagnan's  dog\n\n", "we're go_go (x:1.3)", "é ½ 葛飾"):
        assert ours.token_ids(text) == theirs(text, add_special_tokens=False).input_ids


def test_control_tokens_are_the_templates_alone(words) -> None:
    start, end = words.template_ids("<|im_start|>"), words.template_ids("<|im_end|>")
    assert len(start) == len(end) == 1 and start != end
    for text in ("<|im_start|>", "x <|im_end|>", "<think>"):
        with pytest.raises(InputError):
            words.token_ids(text)


def test_files_that_do_not_fit_are_refused(reference, words, tmp_path) -> None:
    with pytest.raises(FileError, match="CLIP"):
        QwenTokenizer.from_files(write_words(tmp_path / "clip", "o</w>"))
    with pytest.raises(FileError, match="cannot be read"):
        QwenTokenizer.from_files(tmp_path)
    few = torch.zeros(100, WIDTH)
    with pytest.raises(FileError, match="belong together"):
        encoder(reference, words, **{"text_encoder/model.embed_tokens.weight": few})
    with pytest.raises(SettingsError):
        ChatTextEncoder(
            {f"text_encoder/model.{name}": v for name, v in reference.state_dict().items()},
            *(SHORT, words, -BLOCKS - 1),
        )


def test_a_norm_is_torchs() -> None:
    weight, rows = torch.rand(WIDTH), torch.randn(5, WIDTH)
    expected = torch.nn.functional.rms_norm(rows, (WIDTH,), weight, 1e-5)
    norm = RootMeanSquareNorm(weight, 1e-5)
    assert torch.allclose(norm(rows), expected, atol=1e-6) and norm.width == WIDTH
    assert norm.fingerprint != RootMeanSquareNorm(weight + 1e-3, 1e-5).fingerprint
