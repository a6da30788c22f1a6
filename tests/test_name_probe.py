"""How a model responds to a name: names that the demo model learned, against those it did not."""

from __future__ import annotations

import pytest
import torch
from text_pico import tiny_encoder

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.cli.main import main
from speed_erase.speed_ops.demo.packed_model import known_names, write_checkpoint
from speed_erase.speed_ops.encoders.cache import EmbeddingCache
from speed_erase.speed_ops.errors import InputError
from speed_erase.speed_ops.name_probe import probe_name
from speed_erase.speed_ops.report.name_page import name_page
from speed_erase.speed_ops.text.invented import invented_names
from speed_erase.speed_ops.text.names import words_of
from speed_erase.speed_ops.text.retain_set import builtin_retain, retain_from_names

ARTISTS = builtin_retain("artists").names


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo model, with a cache for all tests here."""
    folder = tmp_path_factory.mktemp("demo")
    source = ModelSource.open(write_checkpoint(folder / "demo.safetensors"))
    text = TextSetup(cache=EmbeddingCache(folder / "cache"))
    weights = dict(source.model("KV").weights)

    def probe(name: str):
        known = retain_from_names([*known_names()["painters"][:3], "the Copper Hand"], "painters")
        return probe_name(text.encoder(source), weights, name, known=known, prompts=1)

    return probe


def test_the_demo_model_responds_to_its_painters_and_not_to_others(demo):
    painter, stranger = demo("Orla Venn"), demo("Claude Monet")
    assert painter.responds and painter.invented.percentile == 1.0
    assert not stranger.responds and stranger.known.percentile < 0.2
    assert painter.size > 5 * stranger.size and painter.agreement > stranger.agreement
    # the alias means the same painter, so the name adds the same
    assert painter.closest[0][0] == "the Copper Hand" and painter.closest[0][1] > 0.99
    assert painter.known.names == 3  # itself is not among those it is compared with
    assert painter.invented.low <= painter.invented.percentile <= painter.invented.high


def test_a_name_needs_others_to_compare_with():
    encoder = tiny_encoder()
    weights = {"layer": torch.eye(encoder.width)}
    with pytest.raises(InputError):
        probe_name(encoder, weights, "Orla Venn", known=retain_from_names(["Orla Venn"], "one"))


@pytest.mark.parametrize("like", ["Orla Venn", "the Copper Hand", "Vincent van Gogh", "Beeple"])
def test_invented_names_have_the_shape_and_no_word_of_a_known_name(like):
    names = invented_names(like, 20, ARTISTS)
    assert names == invented_names(like, 20, ARTISTS) != invented_names(like, 20, ARTISTS, seed=1)
    assert len(set(names)) == 20
    taken = {word for name in ARTISTS for word in words_of(name)}
    for name in names:
        pairs = list(zip(name.split(), like.split(), strict=True))
        changed = [(word, old) for word, old in pairs if word != old]
        assert all(abs(len(word) - len(old)) <= 1 for word, old in pairs)
        assert all(word.lower() not in taken and word.istitle() for word, _ in changed)
        assert all(old.islower() for word, old in pairs if word == old)


def test_the_page_shows_names_as_text(demo):
    encoder = tiny_encoder()
    weights = {"layer": torch.eye(encoder.width)}
    known = retain_from_names(["Frida Kahlo", "Paul Klee"], "two")
    report = probe_name(encoder, weights, "<script>x</script>", known=known, prompts=1)
    page = name_page(report, "<b>model")
    assert "<script" not in page and "<b>" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    "flags",
    [[], ["--page", "x"], ["--name", " "], ["--name", "x", "--base", "y"]],
)
def test_probe_needs_a_base_or_a_name(flags, capsys):
    assert main(["probe", "model.safetensors", *flags]) == 2
