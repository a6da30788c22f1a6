"""Socket types and the category, each written once."""

from __future__ import annotations

from comfy_api.latest import io

CATEGORY = "SPEED"
Concepts = io.Custom("SPEED_CONCEPTS")
"""A `ConceptList` of the engine."""
Retain = io.Custom("SPEED_RETAIN")
"""A `RetainSet` of the engine."""
Erasure = io.Custom("SPEED_ERASURE")
"""A `HostErasure`."""
Settings = io.Custom("SPEED_SETTINGS")
"""{setting: value}: what differs from a preset."""
