"""The HTML report: well-formed, self-contained, and safe with any name."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from speed_erase.speed_ops.report.html import render

EVIL = "<script>alert('x')</script>&\"'"
VOID = {"meta", "br", "line", "rect"}


def facts(concepts: int = 2, drift: bool = True, **changes: Any) -> dict[str, Any]:
    verdicts = ("erased", "weakened", "stands", "unproven")
    results = [
        {
            "name": f"Concept {i}",
            "verdict": verdicts[i % 4],
            "solved_median": 0.1,
            "solved_worst": 0.2,
            "probe_median": None if verdicts[i % 4] == "unproven" else 0.2 * (i % 4 + 1),
            "probe_worst": None,
            "energy_lost": 0.0,
            "kind": "",
            "probe_to_go": None,
        }
        for i in range(concepts)
    ]
    group = {
        "group": "kept",
        "where": "bare",
        "names": 3,
        "median": 0.01,
        "p95": 0.02,
        "maximum": 0.4,
    }
    certificate = {
        "concepts": results,
        "drift": (
            [
                group | {"worst": (("Kept name", 0.4),)},
                group | {"group": "held_out", "where": "context", "worst": ()},
            ]
            if drift
            else []
        ),
        "sot_drift": 1e-16,
        "null_text_drift": (1e-16,),
        "layers": [
            {"key": f"diffusion_model.l{i}.weight", "room": 700, "rank": 4, "change": 0.01 * i}
            for i in range(16)
        ],
        "seconds": {"solve": 1.0},
        "warnings": ["Something to know."],
        "other_inputs": {},
        "settings": {"method": "speed"},
    }
    base = {
        "model": "model.safetensors",
        "family": "Stable Diffusion 1.x",
        "size": 2_000_000_000,
        "base_hash": "ab" * 32,
        "encoder_hash": "cd" * 32,
        "package_version": "0.1.0",
        "strength": 1.0,
        "clip_skip": None,
        "concepts": [
            {"target": result["name"], "anchor": "art", "kind": "style", "aliases": ()}
            for result in results
        ],
        "retain": [{"label": "artists", "names": None}],
        "retain_count": 100,
        "in_context": 10,
        "dropped": [],
        "unusable": [],
        "files": {"report": "report.html"},
        "certificate": certificate,
    }
    return base | changes


class Strict(HTMLParser):
    """Every element that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in VOID or (
            tag in ("rect", "line") and not self.get_starttag_text().endswith("/>")
        ):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


def check(page: str) -> set[str]:
    parser = Strict()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


@pytest.mark.parametrize("count", [1, 2, 4, 100])
@pytest.mark.parametrize("drift", [True, False])
def test_page_is_whole_and_needs_no_other_file(count: int, drift: bool) -> None:
    page = render(facts(count, drift))
    seen = check(page)
    assert {"svg", "table", "style"} <= seen and not seen & {"script", "link", "img", "iframe"}
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert "prefers-color-scheme:dark" in page
    assert f"of {count} concept" in page


def test_names_are_text() -> None:
    values = facts(
        1, model=EVIL, dropped=[EVIL], unusable=[EVIL], retain=[{"label": EVIL, "names": 3}]
    )
    values["certificate"]["concepts"][0]["name"] = EVIL
    values["certificate"]["warnings"] = [EVIL]
    values["certificate"]["drift"][0]["worst"] = ((EVIL, 0.3),)
    values["concepts"][0]["anchor"] = EVIL
    page = render(values)
    assert "script" not in check(page) and "<script" not in page


def test_verdicts_are_shown_as_they_are() -> None:
    page = render(facts(4))
    assert "1 of 4 concepts erased" in page
    for verdict in ("erased", "weakened", "stands", "unproven"):
        assert f"badge v-{verdict}" in page


def test_the_way_to_go_is_drawn_inside_what_is_left() -> None:
    values = facts(1)
    values["certificate"]["concepts"][0] |= {
        "verdict": "erased",
        "probe_median": 0.8,
        "probe_to_go": 0.2,
    }
    page = render(values)
    pale, strong = (
        float(re.findall(rf'<rect class="{style}"[^>]* width="([\d.]+)"', page)[0])
        for style in ("v-erased astray", "v-erased")
    )
    assert strong == pytest.approx(pale / 4, rel=0.01) and "20.0%</td>" in page and "Pale:" in page
    assert "Pale:" not in render(facts(1)), "nothing was measured"


def test_the_words_of_the_marks_do_not_overlap() -> None:
    """Estimated with six units a letter, more than the font takes."""
    drawn = re.findall(
        r'<text class="small" x="([\d.]+)" y="13" text-anchor="(\w+)">([^<]+)</text>',
        render(facts()),
    )
    assert [words for _, _, words in drawn] == ["erased below", "still there above"]
    spans = []
    for x, anchor, words in drawn:
        size = 6 * len(words)
        left = float(x) - {"start": 0, "middle": size / 2, "end": size}[anchor]
        spans.append((left, left + size))
    assert spans[0][1] < spans[1][0] and spans[0][0] > 0 and spans[1][1] < 720
