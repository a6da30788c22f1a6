"""Lists phrases in user-facing texts that the style guide in CONTRIBUTING.md advises against.

    python tools/style_check.py

A reading aid, not a censor: a finding may be fine. The exit code is 1 above ALLOWANCE.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWANCE = 20
MAX_WORDS = 30
TEXTS = (
    *("*.md", "docs/**/*.md", "web/docs/**/*.md", "speed_ops/demo/demo_model/*.md"),
    *("web/*.js", "nodes/**/*.py", "speed_ops/**/*.py", "speed_ops/**/*.html", "locales/*/*.json"),
)

# One rule per line: a pattern in any case, and what to write instead.
STYLE = r"""
\bsays? so\b|\btells? of\b => state the fact
\b(?:report|page|node|header|tool|certificate|note)s? (?:says?|tells?)\b => name the actor
\b(?:stands?|stood) (?:in|beside)\b|\bbeside (?:it|them|every)\b => is, replaces, next to
\bof which\b|\bof (?:it|them)\b|\bfor that\b|\bin the place of\b => repeat the noun
\bstraight way\b|\bstill to go\b|\bastray\b => remaining
, too(?=[.,;:!?]|$) => also, as well
\bof (?:its|your|their) own\b => its own
\b(?:one|\d+|seconds|images|rows) a (?:line|concept|picture|image|prompt|kind|side)\b => per
(?<![-/])\bpictures?\b(?![:"]) => image
(?<!ever )\b(?:draws?|drawn|drew|drawing)\b(?! random) => generate
\bnext to nothing\b|\bin silence\b|\bto be had\b|\banew\b|\bat hand\b|\bdo no more\b => plain verb
\bnobody\b|\bwhoever\b|\bso many\b|(?<!there )\bis no\b(?! longer) => state it directly
\btold apart\b => still distinct
\b\d+(?:\.\d+)? % => no space before %
neighbour|colour|licence\b|\bgrey\b|\bcentre|catalogue\b|(?:n|m|t)is(?:ed|ation)\b => US spelling
\bthe screen\b|\bthe house\b|\broom by room\b => the UI, the code
"""
VOCABULARY = r"""
\bkept names?\b|\bnames to keep\b => protected names
\bheld-out names?\b => test names
\bunseen prompts?\b|\bprompts (?:that were )?not used to make\b => new prompts
\banchors?\b => replacement
\bcertif(?:icate|ied|icates)\b => report, measured
\bbudgets?\b|\bothers may change\b => priority, limit
\bmodel in the box\b|\bliving model\b|\bsmall model that draws\b|\bthe demo's model\b => demo model
\b(?:crowded|tidy) world\b => 40-painter or 12-painter test set
\bSPEED (?:Leak Probe|Forecast|Apply \w+|Compare|Inspect|Report|Evaluate)\b => new display name
"""
DE = r"""
Startwert => Seed
gelöschte[nsm]? Modell => bereinigtes Modell
\bleck(?:en|ende) => rufen es noch hervor
\bzeichne[tn] => generieren
"""
ZH = "[\u4e00-\u9fff][,:;?!()]|[,:;?!()][\u4e00-\u9fff] => full-width punctuation"
RULES = {"/de/": DE, "/de.md": DE, "/zh/": ZH, "/zh.md": ZH, "research": STYLE, "CONTRIB": STYLE}
"""By a part of the path; all other texts have style and vocabulary."""


def in_text(text: str, rules: str = STYLE + VOCABULARY) -> Iterator[tuple[int, tuple[str, str]]]:
    """(line, (phrase, suggestion)) of every match, without code, and of every long sentence."""
    blank = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->", lambda code: "\n" * code[0].count("\n"), text)
    plain = re.sub(r"`[^`\n]*`|\]\([^)]*\)|^    \S.*$", "", blank, flags=re.MULTILINE)
    for rule in filter(None, rules.splitlines()):
        pattern, suggestion = rule.split(" => ")
        for match in re.finditer(pattern, plain, re.IGNORECASE | re.MULTILINE):
            yield plain.count("\n", 0, match.start()) + 1, (match[0].strip(), suggestion)
    for match in re.finditer(r"[A-Z][^.!?:;|\n]*(?:\n(?![\n|#>-])[^.!?:;|\n]*)*", plain):
        if len(words := match[0].split()) > MAX_WORDS:
            line = plain.count("\n", 0, match.start()) + 1
            yield line, (" ".join(words[:6]) + " ...", f"split: {len(words)} words")


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a file, each with the line it starts in."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = [node for node in nodes if isinstance(node, ast.Constant)]
        for node in constants:
            if isinstance(node.value, str) and " " in node.value and id(node) not in documentation:
                yield node.lineno, node.value
    elif path.suffix == ".js":
        for match in re.finditer(r'"([^"\n]* [^"\n]*)"', text):
            yield text.count("\n", 0, match.start()) + 1, match[1]
    elif path.suffix == ".html":
        code = r"(?s)<style.*?</style>|<script.*?</script>|\{[{%#].*?[}%#]\}|<[^>]*>"
        yield 1, re.sub(code, lambda part: "\n" * part[0].count("\n"), text)
    else:
        yield 1, text


def findings() -> list[str]:
    """All findings in texts that users read, as file:line: phrase -> suggestion."""
    out = []
    for path in sorted({path for glob in TEXTS for path in ROOT.glob(glob)}):
        name = path.relative_to(ROOT).as_posix()
        rules = next((rules for part, rules in RULES.items() if part in name), STYLE + VOCABULARY)
        for start, text in _strings(path):
            for line, (phrase, suggestion) in in_text(text, rules):
                out.append(f"{name}:{start + line - 1}: {phrase} -> {suggestion}")
    return out


def main() -> int:
    """Prints the findings."""
    found = findings()
    print("\n".join(found))
    print(f"{len(found)} findings; {ALLOWANCE} are allowed.")
    return int(len(found) > ALLOWANCE)


if __name__ == "__main__":
    sys.exit(main())
