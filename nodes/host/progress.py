"""Progress in the graph, and the interrupt button."""

from __future__ import annotations

import time

import comfy.utils

from .stopping import check_stop

# In the order they run; a bar that goes back to the start at each of them would tell nothing.
_STAGES = (
    "fingerprint",
    "empty prompt",
    "concepts",
    "probes",
    "retain names",
    "retain contexts",
    "prepare",
    "layers",
    "certificate",
    "leaks",
    "write",
)
_COMPUTES = ("prepare", "layers", "adversarial", "certificate")
"""Stages that read weights and compute, and change nothing of ComfyUI's."""
_STEPS = 100
_SECONDS_BETWEEN = 0.05


class HostProgress:
    """Called as `progress(stage, done, total)`; raises ComfyUI's own exception when the user pressed stop."""

    def __init__(self) -> None:
        self._bar = comfy.utils.ProgressBar(len(_STAGES) * _STEPS)
        self._value = 0
        self._sent = 0.0
        self._stage = ""

    @property
    def computes(self) -> bool:
        """Whether the stage it is in may be left to end by itself."""
        return self._stage in _COMPUTES

    def __call__(self, stage: str, done: int, total: int) -> None:
        check_stop()
        self._stage = stage
        if stage not in _STAGES:
            return
        share = done / total if total else 1.0
        self._value = max(self._value, round((_STAGES.index(stage) + share) * _STEPS))
        now = time.monotonic()
        if now - self._sent >= _SECONDS_BETWEEN:
            self._sent = now
            self._bar.update_absolute(self._value)
