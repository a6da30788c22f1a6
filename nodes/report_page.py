"""The report of SPEED Erase as a page, rendered when the screen asks for it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from uuid import uuid4

from ..speed_ops.erasure import Erasure
from ..speed_ops.errors import NotFoundError
from ..speed_ops.files.atomic import write_bytes
from ..speed_ops.report.html import report_page
from .host.paths import temporary_file

_OFFERED = 8
_offered: OrderedDict[str, tuple[Erasure, int]] = OrderedDict()
"""File name of a page -> erasure and bytes of the model, for the last runs."""


def offer_page(erasure: Erasure, model_bytes: int) -> dict[str, str]:
    """Where ComfyUI's `/view` will find the page, once `write_page` has written it."""
    name = f"speed_report_{uuid4().hex[:16]}.html"
    _offered[name] = erasure, model_bytes
    while len(_offered) > _OFFERED:
        _offered.popitem(last=False)
    return temporary_file(name)[1]


def write_page(question: dict[str, Any]) -> dict[str, Any]:
    """Renders the page with that file name into ComfyUI's temporary folder."""
    name = str(question.get("filename"))
    if name not in _offered:
        raise NotFoundError("There is no report for this run any more: run the graph again.")
    erasure, model_bytes = _offered[name]
    path, view = temporary_file(name)
    page = report_page(erasure, "the model in the graph", model_bytes)
    write_bytes(path, page.encode("utf-8"), force=True)
    return view
