"""CLIP's ids are those of the reference, whichever copy of the vocabulary is read."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import string
import unicodedata
from pathlib import Path

import mini_chat
import pytest
from safetensors.torch import save_file

from speed_erase.speed_ops.encoders.tokenizers import (
    T5_IN_COMFYUI,
    ClipTokenizer,
    clip_tokenizer,
    piece_tokenizer,
    read_merges,
)
from speed_erase.speed_ops.errors import FileError, InputError
from speed_erase.speed_ops.files.checkpoint import Checkpoint

RECORDED = json.loads(Path(__file__).with_name("clip_ids.json").read_text("utf-8"))
"""Ids of the tokenizer `instant-clip-tokenizer` 0.1.1, an independent implementation: of texts, and
a hash of those of every character in Unicode 3.2's first plane."""
PACKAGE = ClipTokenizer.from_package()


def character_texts(last: int) -> list[str]:
    """Every letter, mark, number and sign up to a code point, seven per text."""
    category = unicodedata.ucd_3_2_0.category  # the same in every Python
    letters = [chr(code) for code in range(32, last) if category(chr(code))[0] in "LMNPSZ"]
    return ["".join(letters[i : i + 7]) + "'s x" for i in range(0, len(letters), 7)]


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of single bytes with two merges."""
    folder = tmp_path_factory.mktemp("model") / "tokenizer"
    folder.mkdir()
    letters = [*string.ascii_lowercase, "'", "Ã", "©"]
    words = [*letters, *(letter + "</w>" for letter in letters), "th", "the</w>"]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n", "utf-8")
    return folder


def test_known_ids() -> None:
    assert PACKAGE.token_ids("a photo of a cat") == [320, 1125, 539, 320, 2368]
    assert PACKAGE.token_ids("A  PHOTO\nof a cat") == PACKAGE.token_ids("a photo of a cat")
    assert PACKAGE.token_ids("") == []


def test_ids_are_those_of_another_implementation() -> None:
    assert {text: PACKAGE.token_ids(text) for text in RECORDED["texts"]} == RECORDED["texts"]
    ids = json.dumps([PACKAGE.token_ids(text) for text in character_texts(0x10000)])
    assert hashlib.sha256(ids.encode()).hexdigest() == RECORDED["characters_sha256"]


@pytest.mark.comfy
def test_ids_are_those_of_transformers_and_of_comfyui_s_files(comfyui: Path) -> None:
    from transformers import CLIPTokenizer

    folder = os.path.join(comfyui, "comfy", "sd1_tokenizer")
    files, reference = ClipTokenizer.from_files(Path(folder)), CLIPTokenizer.from_pretrained(folder)
    assert files.fingerprint == PACKAGE.fingerprint
    for text in [*RECORDED["texts"], *character_texts(0x3000)]:
        expected = reference(text)["input_ids"][1:-1]
        assert PACKAGE.token_ids(text) == files.token_ids(text) == expected, text


def test_a_model_folder_s_vocabulary_is_read_and_merged(small_files: Path) -> None:
    tokenizer = clip_tokenizer(small_files.parent, ())
    assert tokenizer.token_ids("the") == tokenizer.token_ids("THE")
    assert len(tokenizer.token_ids("the")) == 1 and len(tokenizer.token_ids("thet")) == 3
    assert tokenizer.token_ids("The\u0301 the's THE")[-1:] == tokenizer.token_ids("the")
    direct = ClipTokenizer.from_files(small_files)
    assert tokenizer.fingerprint == direct.fingerprint != PACKAGE.fingerprint


@pytest.mark.parametrize("t5", [Path("tokenizer.json"), T5_IN_COMFYUI / "tokenizer.json"])
def test_a_folder_for_t5_leaves_clip_the_package_s_vocabulary(tmp_path: Path, t5: Path) -> None:
    (tmp_path / t5).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / t5).write_text("{}")
    assert clip_tokenizer(tmp_path, ()).fingerprint == PACKAGE.fingerprint


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"vocab\.json"):
        clip_tokenizer(tmp_path, ())
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(FileError, match=r"merges\.txt"):
        clip_tokenizer(tmp_path, ())
    (tmp_path / "merges.txt").write_text("x")
    with pytest.raises(FileError):
        clip_tokenizer(tmp_path, ())


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"#\na b\n", mtime=0), gzip.compress(b"#\na b c\n", mtime=0)],
)
def test_broken_merges(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "merges.gz"
    path.write_bytes(content)
    with pytest.raises(FileError):
        read_merges(path)


@pytest.mark.parametrize("text", ["a <|endoftext|> b", "<|StartOfText|>", "half \ud83d"])
def test_control_tokens_are_not_text(text: str) -> None:
    with pytest.raises(InputError):
        PACKAGE.token_ids(text)


def test_a_sentencepiece_model_is_found_in_the_encoders_file_or_in_a_folder(tmp_path: Path) -> None:
    import sentencepiece

    model = mini_chat.pieces(pad_id=0, eos_id=1, bos_id=2, unk_id=3)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.numpy().tobytes())
    save_file({"text_encoders.spiece_model": model}, tmp_path / "encoder.safetensors")
    holder = Checkpoint.open(tmp_path / "encoder.safetensors")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "spiece.model").write_bytes(model.numpy().tobytes())
    for tokenizer in (piece_tokenizer(None, [holder]), piece_tokenizer(tmp_path, [])):
        for text in ("a user, 1984!", "d'Artagnan's  dog (x:1.3)", "é ½ 葛飾"):
            assert tokenizer.token_ids(text) == reference.encode(text)
        assert (tokenizer.start, tokenizer.end) == ((2,), (1,))
        assert tokenizer.size == reference.get_piece_size()
    with pytest.raises(InputError):
        tokenizer.token_ids("a <end_of_turn> b")


def test_a_sentencepiece_model_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError) as missing:
        piece_tokenizer(tmp_path, [])
    assert missing.value.data["advice"] == "tokenizer"
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(FileError, match=r"tokenizer\.model"):
        piece_tokenizer(tmp_path, [])
