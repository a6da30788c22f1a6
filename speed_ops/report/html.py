"""The report as one HTML file: no script, no other file, readable in a light and in a dark browser and on paper."""

from __future__ import annotations

from html import escape
from typing import Any

from . import sections

_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1a1d24;--soft:#5b6372;--line:#e2e5ea;--track:#eef0f4;
--good:#1f9d6b;--fair:#d08a17;--bad:#d04444;--none:#8a93a3;--blue:#3566d6;--blue2:#7fa1ea;--blue3:#c9d8f8}
@media (prefers-color-scheme:dark){:root{--page:#14161b;--card:#1c1f26;--ink:#e8eaf0;--soft:#9aa3b2;--line:#2d323c;
--track:#262b34;--good:#3ec48d;--fair:#e5a93c;--bad:#ef6b6b;--none:#7b8494;--blue:#7da2ff;--blue2:#4c6cb8;--blue3:#2e3f6b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:820px;margin:0 auto;padding:40px 20px 60px}
h1{font-size:34px;line-height:1.15;margin:.1em 0;letter-spacing:-.02em}
h2{font-size:18px;margin:0 0 6px}
.eyebrow{margin:0;color:var(--blue);font-weight:600;letter-spacing:.04em;font-size:13px;text-transform:uppercase}
.lead{color:var(--soft);font-size:17px;margin:.2em 0 0}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 24px;margin:16px 0}
section p{color:var(--soft);margin:0 0 14px;max-width:68ch}
.warn{border-left:4px solid var(--fair)}
ul{margin:0;padding-left:20px}li{margin:4px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:22px 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
.tiles b{display:block;font-size:26px;letter-spacing:-.02em}
.tiles span{color:var(--soft);font-size:13px;line-height:1.35;display:block}
svg{width:100%;height:auto;display:block;margin:6px 0 12px;font:13px system-ui,-apple-system,"Segoe UI",sans-serif}
svg text{fill:var(--ink)}svg .small{fill:var(--soft);font-size:11px}svg .value{font-variant-numeric:tabular-nums}
.track{fill:var(--track)}.mark{stroke:var(--soft);stroke-dasharray:3 3}.grid{stroke:var(--line)}.layer{fill:var(--blue)}
rect.v-erased{fill:var(--good)}
rect.v-weakened{fill:var(--fair)}rect.v-stands{fill:var(--bad)}rect.v-unproven{fill:var(--none)}
.d1{fill:var(--blue);background:var(--blue)}.d2{fill:var(--blue2);background:var(--blue2)}
.d3{fill:var(--blue3);background:var(--blue3)}
.badge{color:var(--card);border-radius:99px;padding:1px 10px;font-size:12px;font-weight:600}
span.v-erased{background:var(--good)}span.v-weakened{background:var(--fair)}span.v-stands{background:var(--bad)}
span.v-unproven{background:var(--none)}
.legend{font-size:13px}.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin:0 4px 0 12px}
.legend i:first-child{margin-left:0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:500;font-size:12px}
td:first-child{white-space:nowrap}td,th{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}
.n,th:nth-last-child(-n+2):not(:nth-child(-n+3)){text-align:right;font-variant-numeric:tabular-nums}
.code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px;
word-break:break-all}
details{margin:6px 0}summary{cursor:pointer;color:var(--blue)}
footer{color:var(--soft);font-size:13px;margin-top:24px}
@media print{body{background:#fff}section,.tiles div{break-inside:avoid}}
"""


def render(facts: dict[str, Any]) -> str:
    """The page; `facts` as made by `outputs.report_facts`."""
    parts = (
        sections.headline(facts),
        sections.tiles(facts),
        sections.concepts(facts),
        sections.preservation(facts),
        sections.warnings(facts),
        sections.layers(facts),
        sections.limits(),
        sections.facts_table(facts),
    )
    version = f" {facts['package_version']}" if facts["package_version"] else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Erasure certificate: {escape(facts['model'])}</title><style>{_STYLE}</style></head><body><main>"
        + "".join(parts)
        + f"<footer>Written by speed-erase{escape(version)}. </footer>"
        "</main></body></html>\n"
    )
