"""One page about how a model responds to a name, to share."""

from __future__ import annotations

import base64
import io
from html import escape

from ..name_probe import NameReport
from .chart import name_chart

LIMITS = (
    "This page is about how a model responds to a name in text. It does not show what the model was"
    " trained on. A model can respond to a name because the words mean something else, and it can"
    " copy a style without a name. Only the text layers were measured; no image was generated."
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 920px; margin: 2rem auto; color: #20242c;
  background: #fff; padding: 0 1rem }}
img {{ max-width: 100% }}
small {{ color: #5a6270 }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{lines}</p>
<img alt="The measurements as bars" src="data:image/png;base64,{chart}">
<p><small>{limits}</small></p>
<p><small>Model: {model}. Type: {kind}. Replacement: {anchor}. {prompts} prompts. Made with SPEED
Concept Erasure.</small></p>
</body>
</html>
"""


def name_page(report: NameReport, model: str) -> str:
    """A page without scripts or links.

    Args:
        report: What was measured.
        model: The model's name.
    """
    from PIL import Image

    chart = io.BytesIO()
    Image.fromarray(name_chart(report)).save(chart, format="PNG", optimize=True)
    first, *others = report.text().splitlines()
    return _PAGE.format(
        title=escape(first),
        lines="<br>".join(escape(line) for line in others),
        chart=base64.b64encode(chart.getvalue()).decode("ascii"),
        limits=LIMITS,
        model=escape(model),
        kind=escape(report.kind),
        anchor=escape(report.anchor or "the same prompt without the name"),
        prompts=report.prompts,
    )
