"""SPEED in closed form: embeddings and weights in, an exact low-rank edit and its certificate out. No ComfyUI here."""

from .again import erase_further, erase_jointly, original_weights
from .certificate import Certificate
from .erase import solve
from .erasure import Erasure, LayerEdit, apply_edits, merge
from .errors import FileError, InputError, SettingsError, SpeedError, UnsupportedModelError
from .forecast import Forecast, forecast
from .rows import Rows, join
from .settings import PRESETS, EraseSettings

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
