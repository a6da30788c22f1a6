"""A header's certificate against what was measured. Headers are untrusted: every value is checked for what it is."""

from __future__ import annotations

import math
from typing import Any

from ..certificate import Certificate, Drift

LEFT_TOLERANCE = 0.05
"""How much more of a concept may be left than was certified: what half precision costs an edit."""
DRIFT_TOLERANCE = 0.02
"""How much further retain names may move than was certified."""


def broken_claims(claimed: dict[str, Any], measured: Certificate) -> list[str]:
    """Where the measurement is worse than the claim, one sentence each.

    Concepts go by their order, as names may be hashes.
    """
    faults = _concept_faults(_list(claimed, "concepts"), measured)
    faults += _drift_faults(_list(claimed, "drift"), measured.drift)
    empty = [_number(claimed.get("sot_drift")), _number(claimed.get("null_text_drift"))]
    found = max([measured.sot_drift or 0.0, *measured.null_text_drift])
    if found > max(empty) + DRIFT_TOLERANCE:
        faults.append(f"The empty prompt moves by {found:.1%}, {max(empty):.1%} was certified.")
    return faults


def _concept_faults(claims: list[dict[str, Any]], measured: Certificate) -> list[str]:
    if len(claims) != len(measured.concepts):
        return [f"The certificate speaks of {len(claims)} concepts, the recipe of {len(measured.concepts)}."]
    faults = []
    for claim, found in zip(claims, measured.concepts, strict=True):
        for name, where in (("probe_median", "in unseen contexts"), ("solved_median", "on the rows solved for")):
            left = getattr(found, name)
            said = _number(claim.get(name), default=math.inf if claim.get(name) is None else -math.inf)
            if left is not None and left > said + LEFT_TOLERANCE:
                faults.append(f"{found.name!r}: {left:.0%} is left {where}, {said:.0%} was certified.")
        if claim.get("verdict") == "erased" and found.verdict in ("stands", "unproven"):
            faults.append(f"{found.name!r} is certified as erased, but {found.verdict}.")
    return faults


def _drift_faults(claims: list[dict[str, Any]], measured: tuple[Drift, ...]) -> list[str]:
    """Kept and filtered names are one group here: which was which is known to the solve alone."""
    faults = []
    for part in measured:
        groups = ("held_out",) if part.group == "held_out" else ("kept", "filtered")
        said = [one for one in claims if one.get("group") in groups and one.get("where") == part.where]
        if not said:
            faults.append(f"Nothing was certified about the {part.group} names ({part.where}).")
            continue
        for name, share in (("p95", "95 %"), ("maximum", "100 %")):
            bound = max(_number(one.get(name)) for one in said)
            found = getattr(part, name)
            if found > bound + DRIFT_TOLERANCE:
                who = f"{share} of the {part.group} names ({part.where})"
                faults.append(f"{who} move by up to {found:.1%}, {bound:.1%} was certified.")
    return faults


def _list(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = values.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _number(value: Any, default: float = 0.0) -> float:
    """A finite number, or the default for anything else."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else default
