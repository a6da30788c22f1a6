"""Our forms of the rivals give the edits of the released functions, on the same matrices.

Where the released files are (`SPEED_RELEASED`, see `RELEASED`), each function itself is run, in
double precision. Elsewhere our edits are compared with recorded fingerprints of theirs.
`SPEED_RELEASED=... python tests/benchmarks/test_rivals.py` records them again.
"""

from __future__ import annotations

import ast
import copy
import gc
import json
import os
import time
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speed_erase.benchmarks import rivals

RELEASED = {
    "uce_2023": "train-scripts/train_erase.py of unified-concept-editing before 4502388",
    "uce_2025": "trainscripts/uce_sd_erase.py of unified-concept-editing",
    "rece_edit": "erase_methods/uce.py of RECE",
    "rece_rows": "utils/embedding_calculation/close_form_emb.py of RECE",
    "oce": "oce.py of OCE",
    "dp_flux": "the Flux script of Double Projections",
}
"""What each file NAME.py in the folder is."""
RECORDED = Path(__file__).with_name("rivals.json")
WIDTH, LENGTH = 24, 12
TOLERANCE = 1e-8
PAIRS = [("vincent van gogh", "art"), ("claude monet", "a plain picture")]
KEPT = ["pablo picasso", "a house", "edgar degas", "francisco de goya"]


class Words(dict):
    """A tokenizer's output, by key and by attribute."""

    __getattr__ = dict.__getitem__

    def to(self, device: Any) -> Words:
        return self


class Tokenizer:
    """A token per word, after a start token (if any) and before an end token, which is padding."""

    model_max_length = LENGTH

    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, texts: str | list[str], **_: Any) -> Words:
        ids, mask = [], []
        for text in [texts] if isinstance(texts, str) else texts:
            words = [1] * self.start + [zlib.crc32(w.encode()) % 997 for w in text.split()] + [2]
            ids.append(words + [2] * (LENGTH - len(words)))
            mask.append([1] * len(words) + [0] * (LENGTH - len(words)))
        return Words(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))


def normal(shape: tuple[int, int], seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source, dtype=torch.float64)


def encode(ids: Tensor) -> tuple[Tensor]:
    """Every row depends on its token and on all before it."""
    table = normal((1000, WIDTH), 3)
    rows = table[ids] + 0.1 * torch.arange(LENGTH, dtype=torch.float64)[:, None]
    return (rows + 0.7 * rows.cumsum(dim=1) / 3,)


def reader(start: int) -> rivals.Reader:
    tokenizer = Tokenizer(start)
    return rivals.Reader(
        lambda text: encode(tokenizer(text).input_ids)[0][0],
        lambda text: int(tokenizer(text).attention_mask.sum()) - 2,
        start,
    )


class Attention(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        for name in ("to_k", "to_v"):
            layer = nn.Linear(WIDTH, out, bias=False).double()
            weight = normal((out, WIDTH), out + ord(name[-1])) / WIDTH**0.5
            layer.weight = nn.Parameter(weight, requires_grad=False)
            setattr(self, name, layer)


class CrossBlock(nn.Module):
    """A block of a U-Net, down to its cross-attention."""

    def __init__(self, out: int) -> None:
        super().__init__()
        inner = nn.Module()
        inner.attn2 = Attention(out)
        outer = nn.Module()
        outer.transformer_blocks = nn.ModuleList([inner])
        self.attentions = nn.ModuleList([outer])


class Pipe:
    """What the released functions take from a pipeline of diffusers."""

    device = "cpu"

    def __init__(self, start: int = 1) -> None:
        self.unet = nn.Module()
        self.unet.down_blocks = nn.ModuleList([CrossBlock(16)])
        self.unet.mid_block = CrossBlock(22)
        self.transformer = nn.Module()
        self.transformer.context_embedder = (
            self.unet.mid_block.attentions[0].transformer_blocks[0].attn2.to_v
        )
        self.tokenizer = self.tokenizer_2 = Tokenizer(start)
        self.text_encoder = encode

    def to(self, device: Any) -> Pipe:
        return self

    def encode_prompt(self, prompt: str, **_: Any) -> tuple[Tensor, Tensor]:
        rows = encode(self.tokenizer(prompt).input_ids)[0]
        return rows, rows[:, 0]

    def weights(self, *names: str) -> dict[str, Tensor]:
        state = {f"{key}.weight": m for key, m in self.unet.named_modules()}
        return {k: m.weight.data for k, m in state.items() if k.split(".")[-2] in names}


def function(file: str, name: str, **given: Any) -> Callable[..., Any]:
    """A function of a released file, in double precision, without what the file imports."""
    text = (Path(os.environ["SPEED_RELEASED"]) / f"{file}.py").read_text(encoding="utf-8")
    tree = ast.parse(
        text.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    )
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    space: dict[str, Any] = {
        "torch": torch,
        "copy": copy,
        "time": time,
        "os": os,
        "gc": gc,
        "ast": ast,
    }
    space |= {
        "tqdm": lambda items, **_: items,
        "print": lambda *_: None,
        "device": "cpu",
        "torch_dtype": torch.float64,
    }
    exec(compile(tree, file, "exec"), space | given, scope := space | given)
    scope[name].__globals__.update(scope)
    return scope[name]


def saved(run: Callable[..., Any], *given: Any, **more: Any) -> dict[str, Tensor]:
    """What a released function writes."""
    kept: dict[str, Tensor] = {}
    run.__globals__["save_file"] = lambda tensors, path: kept.update(tensors)
    run(*given, **more)
    return kept


def released_uce_2023() -> dict[str, Tensor]:
    pipe = Pipe()
    old, new = zip(*PAIRS, strict=True)
    names = ["", *KEPT]
    weights = {"lamb": 0.5, "erase_scale": 1, "preserve_scale": max(0.1, 1 / len(names))}
    function("uce_2023", "edit_model")(pipe, old, new, names, technique="replace", **weights)
    return pipe.weights("to_k", "to_v")


def released_rece() -> dict[str, Tensor]:
    pipe, untouched = Pipe(), Pipe()
    old, new = zip(*PAIRS, strict=True)
    names = ["", *KEPT]
    weights = {"lamb": 0.5, "erase_scale": 1, "preserve_scale": max(0.1, 1 / len(names))}
    function("uce_2023", "edit_model")(pipe, old, new, names, technique="replace", **weights)
    find = function("rece_rows", "close_form_emb_regzero", setup_seed=None, embedding2img=None)
    edit = function("rece_edit", "edit_model_adversarial")
    for _ in range(2):
        found = [find(pipe, untouched, text, regeular_scale=1e-3)[1][0] for text in old]
        goals = [encode(pipe.tokenizer(text).input_ids)[0][0] for text in new]
        edit(pipe, found, goals, names, lamb=0.1, erase_scale=1, preserve_scale=0.1,
             technique="replace")  # fmt: skip
    return pipe.weights("to_k", "to_v")


def released_uce_2025() -> dict[str, Tensor]:
    old, new = map(list, zip(*PAIRS, strict=True))
    return saved(function("uce_2025", "UCE"), Pipe(), old, new, KEPT, 1, 1, 0.5, ".", "name")


OCE = {"erase": 500.0, "keep": 1.0, "broad": 10.0, "ridge": 10.0}
CAPTIONS = ["two dogs in the snow", "a plate of fruit", "men ride a train"]


def released_oce() -> dict[str, Tensor]:
    old, new = map(list, zip(*PAIRS, strict=True))
    rows = [reader(1).rows(text)[: len(text.split()) + 2] for text in CAPTIONS]
    moment = torch.cat(rows).T @ torch.cat(rows) / len(torch.cat(rows))
    space = types.SimpleNamespace(**vars(torch))
    space.load = lambda *_, **__: {"C": moment}
    run = function("oce", "Orthogonal_Erase", torch=space)
    scales = (OCE["erase"], OCE["broad"], OCE["keep"], OCE["ridge"])
    return saved(run, Pipe(), old, new, KEPT, *scales, ".", "name")


def released_dp() -> dict[str, Tensor]:
    old, new = map(list, zip(*PAIRS, strict=True))
    run = function("dp_flux", "UCE_double_proxy")
    hub = types.SimpleNamespace(from_pretrained=lambda *_, **__: Pipe(0))
    run.__globals__["DiffusionPipeline"] = hub
    return saved(run, "", old, new, KEPT, ".", "name", torch.float64, "cpu", LENGTH)


def ours_oce() -> dict[str, Tensor]:
    captions = rivals.second_moment(reader(1), CAPTIONS)
    return rivals.oce(Pipe().weights("to_v"), reader(1), PAIRS, KEPT, captions, **OCE)


def ours_dp() -> dict[str, Tensor]:
    layer = {"context_embedder.weight": Pipe(0).transformer.context_embedder.weight.data}
    return rivals.double_projections(layer, reader(0), PAIRS, KEPT)


BOTH = ("to_k", "to_v")
CASES: dict[str, tuple[Callable[[], dict[str, Tensor]], Callable[[], dict[str, Tensor]]]] = {
    "uce_2023": (
        released_uce_2023,
        lambda: rivals.uce_2023(Pipe().weights(*BOTH), reader(1), PAIRS, KEPT),
    ),
    "uce_2025": (
        released_uce_2025,
        lambda: rivals.uce_2025(Pipe().weights(*BOTH), reader(1), PAIRS, KEPT),
    ),
    "rece": (
        released_rece,
        lambda: rivals.rece(Pipe().weights(*BOTH), reader(1), PAIRS, KEPT, rounds=2),
    ),
    "oce": (released_oce, ours_oce),
    "double_projections": (released_dp, ours_dp),
}


def fingerprint(weights: dict[str, Tensor]) -> dict[str, list[float]]:
    """A few numbers per layer that change with every entry."""
    found = {}
    for key, weight in sorted(weights.items()):
        left, right = normal((3, len(weight)), 1), normal((WIDTH, 2), 2)
        weight = weight.detach()
        found[key] = [float(weight.norm()), *(left @ weight @ right).flatten().tolist()]
    return found


@pytest.mark.parametrize("name", CASES)
def test_our_form_of_a_rival_gives_the_released_edit(name: str) -> None:
    released, ours = CASES[name]
    edited = ours()
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[name]
    for key, values in fingerprint(edited).items():
        assert values == pytest.approx(recorded[key], rel=TOLERANCE, abs=TOLERANCE)
    if "SPEED_RELEASED" not in os.environ:
        return
    theirs = run_released(released)
    assert theirs.keys() == edited.keys()
    for key, weight in theirs.items():
        assert (weight - edited[key]).norm() < TOLERANCE * weight.norm(), key


@pytest.mark.parametrize("name", CASES)
def test_the_edit_is_not_nearly_none(name: str) -> None:
    """Negative control: the tolerance is far below what each edit changes."""
    entry = {"context_embedder.weight": Pipe().transformer.context_embedder.weight.data}
    before = Pipe().weights(*BOTH) | entry
    for key, weight in CASES[name][1]().items():
        assert (weight - before[key]).norm() > 0.01 * before[key].norm()


def test_a_prompt_s_added_prompts_come_in_pairs() -> None:
    pairs = rivals.expanded([("monet", "art")], "style")
    assert len(pairs) == 6 and pairs[0] == ("monet", "art")
    assert all(a.replace("monet", "art") == b for a, b in pairs)


def run_released(released: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """With double precision as torch's default, which the released functions leave open."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            return released()
    finally:
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    prints = {name: fingerprint(run_released(theirs)) for name, (theirs, _) in CASES.items()}
    RECORDED.write_text(json.dumps(prints, indent=1) + "\n", encoding="utf-8")
