"""SPEED in closed form: embeddings and weights in, an exact low-rank edit and its certificate out.
No ComfyUI here.

Names are loaded when they are first used, so that reading a list or a command line does not wait
for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .certificate.certificate import Certificate
    from .certificate.forecast import Forecast, forecast
    from .engine.edits import LayerEdit, apply_edits, merge, original_weights
    from .engine.rows import Rows, join
    from .engine.settings import PRESETS, EraseSettings
    from .errors import FileError, InputError, SettingsError, SpeedError, UnsupportedModelError
    from .solver import Erasure, erase_further, erase_jointly, solve

_HOMES = {
    "certificate.certificate": ("Certificate",),
    "certificate.forecast": ("Forecast", "forecast"),
    "engine.edits": ("LayerEdit", "apply_edits", "merge", "original_weights"),
    "engine.rows": ("Rows", "join"),
    "engine.settings": ("PRESETS", "EraseSettings"),
    "solver": ("Erasure", "erase_further", "erase_jointly", "solve"),
    "errors": ("FileError", "InputError", "SettingsError", "SpeedError", "UnsupportedModelError"),
}

__all__ = [
    "PRESETS",
    "Certificate",
    "EraseSettings",
    "Erasure",
    "FileError",
    "Forecast",
    "InputError",
    "LayerEdit",
    "Rows",
    "SettingsError",
    "SpeedError",
    "UnsupportedModelError",
    "apply_edits",
    "erase_further",
    "erase_jointly",
    "forecast",
    "join",
    "merge",
    "original_weights",
    "solve",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
