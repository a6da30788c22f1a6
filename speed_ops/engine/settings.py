"""Every choice of an erasure in one frozen object, with its default, range and help.

The command line's flags and the nodes' widgets are made from these fields, so they always agree.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from ..errors import SettingsError, suggestion
from ..inputs import POOLED, Prompting, RowMode

Method = Literal["speed", "uce", "rece", "null_space"]
Layers = Literal["V", "K", "KV"]
InvariantMode = Literal["paper", "span"]
Prior = Literal["null_space", "soft"]
Effort = Literal["fast", "normal", "thorough"]
PresetName = Literal["auto", "fixed", "few", "multi", "implicit"]


def _setting(
    default: Any, help: str, limits: tuple[float, float] | None = None, *, public: bool = False
) -> Any:
    """A field of `EraseSettings`; public ones have a flag or a widget, all can be assigned."""
    low, high = limits or (None, None)
    metadata = {"help": help, "low": low, "high": high, "public": public}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EraseSettings:
    """What to solve and how. The defaults are the paper's few-concept values (preset `few`)."""

    preset_name: PresetName = _setting(
        "few", "The preset these settings started from.", public=True
    )
    method: Method = _setting(
        "speed", "The closed form: speed, or one of the baselines uce, rece, null_space."
    )
    layers: Layers = _setting(
        "V",
        "Which cross-attention projections to edit: values (V), keys (K) or both (KV).",
        public=True,
    )
    threshold: float = _setting(
        0.1,
        "Directions that the protected names use less than this are free for the edit (eigenvalues"
        " of their correlation matrix).",
        (0.0, 1e6),
    )
    ipf: bool = _setting(
        True,
        "Influence-based prior filtering: protect only the names that the edit would move.",
    )
    dpa: bool = _setting(
        True,
        "Directed prior augmentation: also protect random neighbors of the protected names,"
        " along the layer's least-changing directions.",
    )
    rpa: bool = _setting(
        False, "Random prior augmentation instead of the directed one (the paper's ablation 4)."
    )
    iec: bool = _setting(
        True, "Invariant equality constraints: keep the blank prompt's outputs unchanged."
    )
    filter_scale: float = _setting(
        1.0, "IPF keeps names whose shift is above this multiple of the mean (alpha).", (0.0, 100.0)
    )
    augmentations: int = _setting(10, "Random neighbors per protected row (N_A).", (0, 1000))
    augment_rank: int = _setting(
        1, "How many of a layer's least-changing directions to sample along (r).", (1, 64)
    )
    lam: float = _setting(1.0, "Weight of the regularization |delta|^2.", (1e-9, 1e9))
    overshoot: float = _setting(
        1.0,
        "How far to move a concept: 1 is its replacement, 1.1 is 10% beyond it.",
        (0.1, 5.0),
        public=True,
    )
    mu: float = _setting(0.0, "Softens the equality constraints; 0 keeps them exact.", (0.0, 1e9))
    invariants: InvariantMode = _setting(
        "paper",
        "paper: the start token and 3 cluster centers of the blank prompt; span: every row of the"
        " blank prompt.",
    )
    adversarial_rounds: int = _setting(
        0,
        "Rounds of finding and erasing embeddings that still leak. A round that does not help"
        " enough is dropped (not by rece). They don't stop an attacker who has the weights.",
        (0, 20),
    )
    adversarial_reg: float = _setting(
        0.01, "Keeps the leaking embeddings small (a share of the mean energy).", (1e-9, 1e3)
    )
    erase_weight: float = _setting(
        1.0, "UCE and RECE: weight of the erased concepts (alpha).", (1e-9, 1e9)
    )
    preserve_weight: float = _setting(
        1.0, "UCE and RECE: weight of the protected names (beta).", (0.0, 1e9)
    )
    rows: RowMode = _setting(
        "bare", "bare: the name alone, as in the paper; context: the name inside prompts."
    )
    rows_per_concept: int = _setting(
        8, "Compresses a concept's rows to at most this many, by SVD.", (1, 1024)
    )
    context_names: int = _setting(
        10**6,
        "At most this many names are also protected inside prompts, the most affected first.",
        (0, 10**6),
    )
    held_out: float = _setting(
        0.0,
        "Share of your protected names to leave unprotected as test names.",
        (0.0, 0.5),
        public=True,
    )
    seed: int = _setting(0, "Seed for all random choices.", (0, 2**63 - 1), public=True)
    prior: Prior = _setting(
        "null_space",
        "How names are protected. null_space: the edit avoids the directions they use, as in the"
        " paper. soft: the more they use a direction, the less the edit changes it.",
    )
    softness: float = _setting(
        0.03,
        "Soft prior: how softly protected names restrict the edit (relative to the average use of a"
        " direction). auto also tries 1/30 of this and keeps the better result.",
        (1e-6, 1e6),
    )
    drift_budget: float = _setting(
        0.45,
        "auto: side-effect limit, the mean drift of other names that the edit may cause.",
        (0.001, 10.0),
        public=True,
    )
    effort: Effort = _setting(
        "normal",
        "How many prompts to encode. More prompts erase more cleanly, protect other names better"
        " and take longer.",
        public=True,
    )
    prompting: Prompting = _setting(
        "auto",
        "How people prompt the model: sentences, tags, at-tags (artists as @name) or mixed. auto:"
        " as is usual for the model's family.",
        public=True,
    )
    pooled: bool = _setting(
        True,
        "Also edit the layer that reads the prompt as one pooled embedding, where the model has one"
        " (SDXL, SD3, Flux).",
        public=True,
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check(item.name, getattr(self, item.name), item.metadata["low"], item.metadata["high"])
        if self.dpa and self.rpa:
            raise SettingsError("dpa and rpa are both on. Turn one off.")
        if self.prior != "null_space" and self.mu > 0:
            raise SettingsError(
                f"A soft prior keeps the blank prompt exactly as it is, but mu {self.mu:g} would"
                " not. Set mu to 0, or prior to null_space."
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> EraseSettings:
        """A preset, with some fields changed if asked."""
        if name not in PRESETS:
            raise SettingsError(
                f"There is no preset {name!r}{suggestion(name, PRESETS)}. Choose from"
                f" {', '.join(PRESETS)}."
            )
        return cls.from_dict({"preset_name": name, **PRESETS[name], **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EraseSettings:
        """Settings from plain values, such as a recipe's; for an unknown name it suggests one."""
        names = [item.name for item in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise SettingsError(f"There is no setting {name!r}{suggestion(name, names)}.")
        return cls(**values)

    def edits_input(self, text_input: str) -> bool:
        """Whether the layers of a text input are edited (see `inputs`)."""
        return text_input != POOLED or self.pooled

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a recipe or a report."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> EraseSettings:
        """The same settings with some fields changed."""
        return self.from_dict({**self.to_dict(), **changes})


PRIORITIES = {"protect-others": 0.1, "balanced": 0.3, "erase-fully": 0.45}
"""How much other names may change to erase more, in words: limits on the mean drift.

From images (docs/research/image-tests): at 0.1 one painter is erased, but three are not. At 0.3 ten
painters are erased, but ten subjects are not. At 0.45 those are as well, and protected names are
recognized in all but two or three of a hundred images. It is a limit and not a target: `auto` stops
where more drift buys little.
"""


def priority_of(text: str) -> float:
    """A side-effect limit from a priority or a number: erase-fully, "erase fully", 0.45, 45%."""
    word = text.strip()
    if (name := "-".join(word.lower().split())) in PRIORITIES:
        return PRIORITIES[name]
    share = word.removesuffix("%").strip()
    try:
        value = float(share) / (100 if share != word else 1)
    except ValueError:
        near = suggestion(word, PRIORITIES)
        raise SettingsError(
            f"There is no priority {word[:40]!r}{near}. Use {', '.join(PRIORITIES)}, or a number"
            " such as 0.1.",
            priority=word,
        ) from None
    if value > 1 and share == word:
        raise SettingsError(
            f"A limit of {word} is out of range. Write {value / 100:g} or {word}%.", priority=word
        )
    if not value > 0:
        raise SettingsError(
            f"A limit of {word} is out of range. Use {', '.join(PRIORITIES)}, or a number such as"
            " 0.1.",
            priority=word,
        )
    return value


def priority_name(limit: float) -> str:
    """The priority with this limit, or the number."""
    return next((name for name, value in PRIORITIES.items() if value == limit), f"{limit:g}")


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Settings typed as `name=value`, one per text; blank texts are skipped.

    Values are converted to the setting's type. `EraseSettings` checks ranges and choices. The
    preset cannot be assigned, because it decides the values of the others.
    """
    hints = {name: kind for name, kind in _hints().items() if name != "preset_name"}
    values: dict[str, Any] = {}
    for text in filter(None, map(str.strip, texts)):
        name, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals or not value:
            raise SettingsError(f"{text[:60]!r} is not a setting. Write it as name=value.")
        if name not in hints:
            near = suggestion(name, hints) or f". Use one of: {', '.join(hints)}"
            raise SettingsError(f"There is no setting {name[:60]!r}{near}.")
        if name in values:
            raise SettingsError(f"The setting {name} is given twice. Remove one.")
        values[name] = _parse_value(name, value, hints[name])
    return values


def _parse_value(name: str, text: str, kind: Any) -> Any:
    if name == "drift_budget":
        return priority_of(text)
    if get_args(kind):
        return text
    if kind is bool:
        # a word that is neither is refused by EraseSettings, with the words that it takes
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(EraseSettings)


def _check(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Refuses a value of the wrong type or out of range."""
    kind = _hints()[name]
    if choices := get_args(kind):
        if value not in choices:
            raise SettingsError(f"Invalid {name} {value!r}. Use one of: {', '.join(choices)}.")
        return
    if kind is bool:
        if not isinstance(value, bool):
            raise SettingsError(f"Invalid {name} {value!r}. Use true or false.")
        return
    number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < low or value > high:
        unit = "a whole number" if kind is int else "a number"
        raise SettingsError(f"Invalid {name} {value!r}. Use {unit} from {low:g} to {high:g}.")


# Without IPF and DPA: in images of the demo model the filter let kept prompts drift by a quarter
# more, and the draws changed nothing (docs/research/image-tests).
_FIXED: dict[str, Any] = {
    "rows": "context",
    "threshold": 1e-2,
    "lam": 0.05,
    "ipf": False,
    "dpa": False,
    "invariants": "span",
}
# A slope between what the kept names use and what is free, where `context` has a step: on real text
# encoders it erases more at every drift (docs/research/limits.md). `lam` is only where the search
# starts. It is the default of every family: where all text enters at one layer (SD3, Flux) it keeps
# its budget and, at the default one, also leaves less than the others (docs/research/models.md).
# Families differ in layers, not in settings.
_AUTO = _FIXED | {"prior": "soft", "lam": 0.1, "overshoot": 1.1, "rows_per_concept": 16}

# `few`, `multi` and `implicit` are the published experiments (the released code's values where it
# departs from the paper). `context` holds rows in context on both sides; `auto` starts from it and
# settles what depends on the problem.
PRESETS: dict[str, dict[str, Any]] = {
    "auto": _AUTO,
    "fixed": _FIXED,
    "few": {"threshold": 1e-1, "lam": 1.0},
    "multi": {"threshold": 1e-4, "lam": 0.05, "ipf": False},
    "implicit": {"threshold": 1e-1, "lam": 0.7, "mu": 0.5},
}
