"""Warnings quote names as they are, so that redaction finds each of them again."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from problems import embeddings

from speed_erase.speed_ops import EraseSettings, Rows
from speed_erase.speed_ops.certificate.certificate import ConceptResult, Drift, LayerFacts
from speed_erase.speed_ops.certificate.warnings import cautions, concept_cautions, fixed_text
from speed_erase.speed_ops.engine.curve import Curve, CurvePoint
from speed_erase.speed_ops.engine.problem import prepare
from speed_erase.speed_ops.files.redaction import Redactor
from speed_erase.speed_ops.text.names import quoted

ROOT = Path(__file__).resolve().parents[2] / "speed_ops"
ODD = (
    "O'Brien",
    'Say "hi"',
    "both ' and \"",
    "back\\slash",
    "Zoë",
    "吉卜力",
    "C++",
    "a\u0301 <b>",
    "👩‍🚀",
)
SALT = "pepper"


SPEAKING = (
    *(
        path
        for room in ("certificate", "report", "text")
        for path in sorted((ROOT / room).glob("*.py"))
    ),
    *(ROOT / "checkpoints" / "verify.py", ROOT / "files" / "redaction.py"),
)


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: path.name)
def test_no_name_is_spelled_as_python_would(path: Path) -> None:
    """`repr` escapes quotes and backslashes; the one use of `!a` is about a character that is no
    text.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    escaped = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.FormattedValue) and node.conversion in (ord("r"), ord("a")))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("repr", "ascii")
        )
    ]
    assert escaped == (["{bad.group()!a}"] if path.name == "names.py" else [])


def all_warnings(target: str, kept: str) -> list[str]:
    """Every sentence there is, about these two names."""
    rows = embeddings(4, 32, torch.Generator().manual_seed(0))
    problem = prepare(
        Rows.single(rows[:1], [target]),
        Rows.single(rows[1:2], ["anchor"]),
        Rows.single(rows[:1] + 1e-6, [kept]),
        rows[2:],
        EraseSettings(),
    )
    point = CurvePoint(1.0, 0.8, 0.1, 0.0, 0.8)
    curve = Curve(
        (point, CurvePoint(0.1, 0.2, 0.19, 0.0, 0.2)), point, 0.1, 5, True, ((kept, 0.5),)
    )
    concepts = (ConceptResult(target, "stands", 0.9, 0.9, 0.9, 0.9, 0.5),)
    layers = (LayerFacts("layer", 1, 0, 0, 1, 0.1),)
    drift = (Drift("held_out", "context", 3, 0.5, 0.5, 0.5, ((kept, 0.5),), 0.5),)
    about = list(concept_cautions(concepts, [0.0], in_context=True))
    found = list(cautions(problem, layers, about, drift, curve, concepts))
    assert len(found) == 7
    return found


@pytest.mark.parametrize("name", ODD)
def test_every_warning_quotes_its_names_and_says_nothing_else_of_them(name: str) -> None:
    target, kept = f"{name} one", f"{name} two"
    before = all_warnings(target, kept)
    assert (
        sum(quoted(target) in text for text in before) == 5
        and sum(quoted(kept) in text for text in before) == 2
    )
    assert not any(
        name in text.replace(quoted(target), "").replace(quoted(kept), "") for text in before
    )
    redact = Redactor(SALT)
    hidden = redact.certificate({"warnings": before}, (target, kept), fixed_text())["warnings"]
    expected = [
        text.replace(quoted(target), quoted(redact(target))).replace(
            quoted(kept), quoted(redact(kept))
        )
        for text in before
    ]
    assert hidden == expected


def test_the_fixed_text_is_all_that_warnings_say_besides() -> None:
    ours = fixed_text().casefold()
    for text in all_warnings("\ue000", "\ue001"):
        words = [word.strip(".,:;()'%\ue000\ue001").casefold() for word in text.split()]
        unknown = [
            word for word in words if word not in ours and not word.replace(".", "").isdigit()
        ]
        assert not unknown
