"""SPEED in closed form: embeddings and weights in, an exact low-rank edit and its certificate out. No ComfyUI here.

Names are loaded when they are first used, so that reading a list or a command line does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Bound at once: later the module of the same name would stand in the function's place.
from .forecast import Forecast, forecast

if TYPE_CHECKING:
    from .again import erase_further, erase_jointly, original_weights
    from .certificate import Certificate
    from .erase import solve
    from .erasure import Erasure, LayerEdit, apply_edits, merge
    from .errors import FileError, InputError, SettingsError, SpeedError, UnsupportedModelError
    from .rows import Rows, join
    from .settings import PRESETS, EraseSettings

_HOMES = {
    "again": ("erase_further", "erase_jointly", "original_weights"),
    "certificate": ("Certificate",),
    "erase": ("solve",),
    "erasure": ("Erasure", "LayerEdit", "apply_edits", "merge"),
    "errors": ("FileError", "InputError", "SettingsError", "SpeedError", "UnsupportedModelError"),
    "rows": ("Rows", "join"),
    "settings": ("PRESETS", "EraseSettings"),
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
