"""T5: rows without a start token, whole prompts only, blocks from the file one at a time, and two
streams as one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mini_chat
import mini_dit
import pytest
import torch
from text_pico import full_prompt

from speed_erase.speed_ops.encoders import tower as lazy_blocks
from speed_erase.speed_ops.encoders.encoder import EncoderPart, JoinedTextEncoder
from speed_erase.speed_ops.encoders.t5 import T5TextEncoder
from speed_erase.speed_ops.encoders.tokenizers import SentencePieceTokenizer, T5Tokenizer
from speed_erase.speed_ops.errors import FileError, InputError
from speed_erase.speed_ops.models.families import by_name
from speed_erase.speed_ops.text.concept_list import Concept
from speed_erase.speed_ops.text.kinds import BARE, Prompt
from speed_erase.speed_ops.text.plan import RowPlan
from speed_erase.speed_ops.text.requests import all_pairs
from speed_erase.speed_ops.text.tokens import IN_CONTEXT, Position, Stream

ROW = by_name("flux-dev").encoders[0]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> T5Tokenizer:
    return T5Tokenizer.from_files(mini_dit.write_tokenizer(tmp_path_factory.mktemp("words")))


def encoder(words: T5Tokenizer, length: int = 24, **changes: torch.Tensor) -> T5TextEncoder:
    tensors = mini_dit.t5_tensors(1024) | changes
    return T5TextEncoder(
        {f"{ROW.folder}/{key}": value for key, value in tensors.items()},
        replace(ROW, length=length),
        words,
    )


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_stream_without_a_start_token_begins_with_the_text() -> None:
    stream = Stream(letters, 20, first=77, before=0, causal=False)
    span = stream.locate(Prompt("by me, now", 5))
    assert span.subject == 5
    assert stream.rows(IN_CONTEXT, span) == (77 + 4, 77 + 10, 77 + 11, 96)
    assert stream.rows(Position.ALL, span) == tuple(range(77, 97)) and stream.rows_from_name(
        span
    ) == range(81, 97)
    assert stream.locate(Prompt.bare("x" * 19)).subject == 19
    with pytest.raises(InputError, match="takes 19"):
        stream.locate(Prompt.bare("x" * 20))
    empty = stream.locate(Prompt.bare(""))
    assert stream.rows(Position.LAST_SUBJECT | Position.EOS, empty) == (77, 77)


def test_rows_that_read_both_ways_are_the_same_only_in_the_same_prompt() -> None:
    both, causal = (Stream(letters, 20, before=0, causal=causal) for causal in (False, True))
    alone, followed = (
        stream.locate(Prompt(text, 2)) for stream in [both] for text in ("me", "me too")
    )
    assert both.key(alone, 1) != both.key(followed, 1) and causal.key(alone, 1) == causal.key(
        followed, 1
    )
    assert Stream(letters, 20, first=20).key(alone, 1) != Stream(letters, 20).key(alone, 1)


def test_an_empty_anchor_has_the_row_at_the_targets_place() -> None:
    stream = Stream(letters, 20, first=5, before=0, causal=False)
    spans = stream.locate(Prompt.bare("name")), stream.locate(Prompt.bare(""))
    for start in (False, True):
        _, rows, anchors = zip(
            *stream.paired_rows(Position.LAST_SUBJECT | Position.EOS, *spans, start), strict=True
        )
        assert rows == (8, 9) and anchors == (8, 5), "there is no start token that could stand in"


def test_rows_of_both_streams_pair_off(words: T5Tokenizer) -> None:
    whole = JoinedTextEncoder(
        [EncoderPart(encoder(words), 0), EncoderPart(encoder(words, 30), 0)], mini_dit.WIDTH
    )
    assert whole.context_length == 54 and [stream.first for stream in whole.streams] == [0, 24]
    concept = Concept("van gogh", "art", "style")
    (pair,) = all_pairs(whole.streams, [concept], lambda kind: [BARE], RowPlan())
    n, m = (len(words.token_ids(text)) for text in ("van gogh", "art"))
    assert pair.target.rows == (n - 1, n, n + 1, 23, 24 + n - 1, 24 + n, 24 + n + 1, 53)
    assert pair.anchor.rows == (m - 1, m, m + 1, 23, 24 + m - 1, 24 + m, 24 + m + 1, 53)
    assert pair.in_context == (False, True, True, True) * 2


def test_joined_rows_are_the_parts_in_their_columns(words: T5Tokenizer) -> None:
    first, second = encoder(words), encoder(words, 30)
    whole = JoinedTextEncoder([EncoderPart(first, 8), EncoderPart(second, 0)], mini_dit.WIDTH + 8)
    got = full_prompt(whole, "a house")
    assert torch.equal(got[:24, 8:], full_prompt(first, "a house")) and not got[:24, :8].any()
    assert torch.equal(got[24:, :-8], full_prompt(second, "a house")) and not got[24:, -8:].any()
    short, long = whole.encode(["a house", "a house"], [5, 54])
    assert torch.equal(short, got[:5]) and torch.equal(long, got)
    swapped = JoinedTextEncoder([EncoderPart(first, 0), EncoderPart(second, 8)], mini_dit.WIDTH + 8)
    assert len({whole.fingerprint, swapped.fingerprint, first.fingerprint, second.fingerprint}) == 4


def test_every_row_reads_the_whole_prompt_padding_included(words: T5Tokenizer) -> None:
    alone, followed = (full_prompt(encoder(words), text) for text in ("van", "van gogh"))
    assert (alone[0] - followed[0]).norm() > 1e-3 * alone[0].norm()
    padded = full_prompt(encoder(words, 40), "van")
    assert (alone[0] - padded[0]).norm() > 1e-4 * alone[0].norm()
    assert torch.equal(encoder(words).encode(["van"], [1])[0], alone[:1]), (
        "fewer rows, the same rows"
    )


def test_streamed_blocks_equal_resident_ones(
    words: T5Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = full_prompt(encoder(words), "a house")
    monkeypatch.setattr(lazy_blocks, "RESIDENT_BYTES", 0)
    streamed = encoder(words)
    assert torch.equal(full_prompt(streamed, "a house"), resident)
    assert torch.equal(full_prompt(streamed, "a house"), resident), "the second time, too"
    assert len(set(streamed._towers[0]._built.blocks.layers)) == 1


def test_scaled_fp8_is_read_with_its_scale(words: T5Tokenizer) -> None:
    plain = mini_dit.t5_tensors(1024)
    scaled = mini_dit.to_scaled_fp8(plain)
    wide = {}
    for key, value in scaled.items():
        scale = scaled.get(key.removesuffix("weight") + "scale_weight")
        wide[key] = (
            value.float()
            if scale is None or key.endswith("scale_weight")
            else value.float() * scale
        )
    source = {f"{ROW.folder}/{key}": value for key, value in scaled.items()}
    got = full_prompt(T5TextEncoder(source, replace(ROW, length=24), words), "a house")
    same = full_prompt(
        encoder(words, **{key: value for key, value in wide.items() if key in plain}), "a house"
    )
    assert (got - same).norm() < 2e-3 * same.norm()
    away = {key: value for key, value in source.items() if not key.endswith("scale_weight")}
    lost = full_prompt(T5TextEncoder(away, replace(ROW, length=24), words), "a house")
    assert (lost - same).norm() > 0.1 * same.norm(), (
        "the control: without the scales it is another encoder"
    )


def test_control_words_and_foreign_tokenizers_are_refused(
    words: T5Tokenizer, tmp_path: Path
) -> None:
    for text in ("a</s>b", "<pad>", "<extra_id_7> x"):
        with pytest.raises(InputError, match="would start or end"):
            words.token_ids(text)
    with pytest.raises(FileError, match="do not belong together"):
        encoder(words, **{"shared.weight": torch.zeros(8, mini_dit.WIDTH)})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match="cannot be read"):
        T5Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize(("design", "family"), [("UMT5", "wan"), ("T5", "ltxv"), ("T5", "chroma")])
def test_padding_that_the_model_does_not_read_changes_no_row(design: str, family: str) -> None:
    """The rows are those that `transformers` gives for the prompt alone, also in a batch."""
    import transformers

    torch.manual_seed(0)
    width, vocabulary = 32, 400
    config = getattr(transformers, f"{design}Config")(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    model = getattr(transformers, f"{design}EncoderModel")(config).eval()
    for value in model.parameters():
        value.data = (torch.randn(value.shape) * value.shape[-1] ** -0.5).half().float()
    (row,) = by_name(family).encoders
    tokenizer = SentencePieceTokenizer.from_model(
        mini_chat.pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1).numpy().tobytes(), "test"
    )
    tensors = {f"{row.folder}/{key}": value for key, value in model.state_dict().items()}
    ours = T5TextEncoder(tensors, replace(row, width=width, layers=3, length=60), tokenizer)
    texts = ["art", "a photo by d'Artagnan, 1984!", ""]
    counts = [len(tokenizer.token_ids(text)) + 1 for text in texts]
    asked = [60] * 3 if row.padding == "masked" else counts
    for text, count, rows in zip(texts, counts, ours.encode(texts, asked), strict=True):
        ids = torch.tensor([[*tokenizer.token_ids(text), *tokenizer.end]])
        with torch.no_grad():
            expected = model(ids).last_hidden_state[0]
        assert torch.allclose(rows[:count], expected, atol=1e-5) and rows.norm() > 0.1
        assert not rows[count:].any()
