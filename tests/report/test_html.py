"""The HTML report: well-formed, self-contained, safe with any name, true to its verdicts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import measured
import pytest

from speed_erase.speed_ops.certificate.certificate import Certificate
from speed_erase.speed_ops.errors import Notice
from speed_erase.speed_ops.report.html import SCORE_REACH, Drawn, report_page

EVIL = "<script>alert('x')</script>&\"'"
VOID = {"meta", "br", "line", "rect", "img"}
VERDICTS = ("erased", "weakened", "stands", "unproven")
IMAGES = [Drawn("erased", "a house", True, b"before", b"after")]


def proof(count: int = 2, groups: bool = True, **changes: Any) -> Certificate:
    concepts = [measured.with_verdict(f"Concept {i}", VERDICTS[i % 4]) for i in range(count)]
    return measured.certificate(concepts, None if groups else (), **changes)


def page_of(certificate: Certificate, drawn: Any = (), **changes: Any) -> str:
    return report_page(
        measured.erasure(certificate, **changes), "model.safetensors", 2_000_000_000, {}, drawn
    )


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
@pytest.mark.parametrize("groups", [True, False])
def test_page_is_whole_and_needs_no_other_file(count: int, groups: bool) -> None:
    page = page_of(proof(count, groups, curve=measured.curve()))
    seen = check(page)
    assert {"svg", "table", "style"} <= seen and not seen & {"script", "link", "img", "iframe"}
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert "prefers-color-scheme:dark" in page


def test_names_are_text() -> None:
    certificate = measured.certificate(
        [measured.concept(EVIL, 0.1)],
        [measured.drift(worst=((EVIL, 0.3),))],
        warnings=(Notice(EVIL, code="rival"),),
    )
    report = SimpleNamespace(lines=lambda: iter([EVIL]), style="tags")
    page = page_of(certificate, text_report=report, notes=(EVIL,))
    assert "script" not in check(page) and "<script" not in page and page.count("&lt;script") >= 5


def test_verdicts_are_shown_as_they_are() -> None:
    page = page_of(proof(4))
    for verdict in VERDICTS:
        assert page.count(f'class="badge v-{verdict}"') == 1
    assert re.search(r"<b>1 of 4</b>", page)


def bars(page: str) -> list[tuple[str, float, float]]:
    """(verdict, end of the bar, place of the mark) of the concepts' chart."""
    chart = next(svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "mark" in svg)
    mark = float(re.findall(r'class="mark" x1="([\d.]+)"', chart)[0])
    found = re.findall(r'<rect class="v-(\w+)" x="([\d.]+)"[^>]* width="([\d.]+)"', chart)
    return [(verdict, float(x) + float(width), mark) for verdict, x, width in found]


@pytest.mark.parametrize("to_go", [None, 0.0, 0.2, 0.36, 0.37, 0.9])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.48, 0.49, 0.6, 0.95, 1.4])
def test_the_bar_of_an_erased_concept_ends_left_of_the_mark_and_no_other_does(
    left: float, to_go: float | None
) -> None:
    """Whatever decided: the number that people see is the one that decides."""
    concept = measured.concept("a", left, to_go)
    for verdict, end, mark in bars(page_of(measured.certificate([concept]))):
        assert verdict == concept.verdict and (end <= mark + 0.1) == (verdict == "erased")
        expected = min(concept.score / SCORE_REACH, 1.0)
        assert expected == 0 or end > mark or concept.score <= 1.001


def test_only_a_report_without_images_mentions_that_there_are_none() -> None:
    with_images, without = page_of(proof(), IMAGES), page_of(proof())
    limits = [page[page.index("<h2>Limits") :] for page in (with_images, without)]
    assert "no images" not in limits[0] and "no images" in limits[1]
    assert check(with_images) >= {"img"} and with_images.count("<img") == 2


def test_the_order_is_images_concepts_other_names_advice_details_limits() -> None:
    page = page_of(proof(4, curve=measured.curve()), IMAGES)
    titles = re.findall(r"<h2>([^<]+)</h2>", page)
    assert [title.split()[0] for title in titles] == [
        *("Before", "Concepts", "Other", "What", "Details", "Limits", "How")
    ]
    assert page.index('class="tiles"') < page.index("<section>")


def test_the_limit_is_in_the_plot_or_below_it() -> None:
    near, far = (page_of(proof(curve=measured.curve(5, budget))) for budget in (0.1, 0.45))
    assert "limit</text>" in near and "(limit: 0.45)" in far and "limit</text>" not in far
