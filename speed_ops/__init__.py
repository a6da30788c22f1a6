"""SPEED in closed form: embeddings and weights in, an exact low-rank edit and its certificate out.
No ComfyUI here.

Names are loaded when they are first used, so that reading a list or a command line does not wait
for torch.
"""

from pkgutil import resolve_name
from typing import Any

_HOMES = {
    "Certificate": "certificate.certificate",
    "EraseSettings": "engine.settings",
    "Erasure": "erasure",
    "FileError": "errors",
    "Forecast": "certificate.forecast",
    "InputError": "errors",
    "LayerEdit": "engine.edits",
    "PRESETS": "engine.settings",
    "RowSet": "engine.rows",
    "Rows": "engine.rows",
    "SettingsError": "errors",
    "SpeedError": "errors",
    "UnsupportedModelError": "errors",
    "apply_edits": "engine.edits",
    "forecast": "certificate.forecast",
    "join": "engine.rows",
    "merge": "engine.edits",
    "original_weights": "engine.edits",
    "solve": "solver",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(f"{__name__}.{_HOMES[name]}:{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
