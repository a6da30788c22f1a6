"""SPEED in closed form: embeddings and weights in, an exact low-rank edit and its certificate out.
No ComfyUI here.

Names are loaded when they are first used, so that reading a list or a command line does not wait
for torch.
"""

from typing import Any

_LIGHT = (
    *("EraseSettings", "FileError", "InputError", "PRESETS", "SettingsError", "SpeedError"),
    "UnsupportedModelError",
)
_WITH_TORCH = (
    *("Certificate", "Erasure", "Forecast", "LayerEdit", "RowSet", "Rows", "apply_edits"),
    *("forecast", "join", "merge", "original_weights", "solve"),
)
__all__ = [*_LIGHT, *_WITH_TORCH]


def __getattr__(name: str) -> Any:
    modules: tuple[Any, ...] = ()
    if name in _LIGHT:
        from . import errors
        from .engine import settings

        modules = (errors, settings)
    elif name in _WITH_TORCH:
        from . import erasure, solver
        from .certificate import certificate, forecast
        from .engine import edits, rows

        modules = (certificate, forecast, edits, rows, erasure, solver)
    for module in modules:
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
