"""Qwen3 from files: the rows that `transformers` gives, block by block, in a chat template."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mini_qwen import write_words

from speed_erase.speed_ops.encoders import tower as lazy_blocks
from speed_erase.speed_ops.encoders.encoder import RootMeanSquareNorm
from speed_erase.speed_ops.encoders.qwen import QwenTextEncoder
from speed_erase.speed_ops.encoders.tokenizers import QwenTokenizer
from speed_erase.speed_ops.errors import FileError, InputError, SettingsError
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.text.kinds import Prompt
from speed_erase.speed_ops.text.tokens import Position

BLOCKS, WIDTH = 4, 32
SHORT = replace(by_name("z-image").encoders[0], width=WIDTH, layers=BLOCKS, length=64)
TEXT = "a photo by Van Gogh"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> QwenTokenizer:
    return QwenTokenizer.from_files(write_words(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    """`transformers`' own model, with random weights in half precision."""
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    model = Qwen3Model(config).eval()
    for name, value in model.named_parameters():
        size = 1.0 if "norm" in name else value.shape[-1] ** -0.5
        value.data = (torch.randn(value.shape) * 0.3 * size + size * ("norm" in name)).half()
        value.data = value.data.float()
    return model


def encoder(reference, words: QwenTokenizer, **changes) -> QwenTextEncoder:
    tensors = {
        f"text_encoder/model.{name}": value for name, value in reference.state_dict().items()
    }
    return QwenTextEncoder(tensors | changes, SHORT, words)


def test_rows_are_those_of_transformers(reference, words) -> None:
    ids = torch.tensor([[*words.template_ids(SHORT.template[0]), *words.token_ids(TEXT)]])
    with torch.no_grad():
        expected = reference(ids, output_hidden_states=True).hidden_states[-2][0]
    (rows,) = encoder(reference, words).encode([TEXT], [ids.shape[1]])
    assert torch.allclose(rows, expected, atol=1e-5) and rows.norm() > 1


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
        QwenTextEncoder(
            {f"text_encoder/model.{name}": v for name, v in reference.state_dict().items()},
            *(SHORT, words, -BLOCKS - 1),
        )


def test_a_norm_is_torchs() -> None:
    weight, rows = torch.rand(WIDTH), torch.randn(5, WIDTH)
    expected = torch.nn.functional.rms_norm(rows, (WIDTH,), weight, 1e-5)
    norm = RootMeanSquareNorm(weight, 1e-5)
    assert torch.allclose(norm(rows), expected, atol=1e-6) and norm.width == WIDTH
    assert norm.fingerprint != RootMeanSquareNorm(weight + 1e-3, 1e-5).fingerprint
