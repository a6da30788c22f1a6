"""ComfyUI-SPEED: closed-form concept erasure for text-to-image models.

    from speed_erase import EraseSettings, apply_edits, solve

ComfyUI imports this folder by path; pip and the tests import it as `speed_erase`. Torch and ComfyUI
are not imported here: the names of the API are loaded when they are first used.
"""

import logging
from typing import Any

from . import speed_ops
from .speed_ops import __all__ as __all__
from .speed_ops.errors import PACKAGE_VERSION

__version__ = PACKAGE_VERSION

WEB_DIRECTORY = "./web"


def __getattr__(name: str) -> Any:
    # ComfyUI also looks here for names that do not exist, such as NODE_CLASS_MAPPINGS.
    if name in __all__:
        return getattr(speed_ops, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


async def comfy_entrypoint() -> Any:
    """Called by ComfyUI; returns the extension with all nodes."""
    try:
        from .nodes import SpeedExtension
    except Exception:
        # ComfyUI reports an exception raised here as one line; a bug report needs the traceback.
        logging.getLogger("speed_erase").exception("ComfyUI-SPEED could not load its nodes")
        raise
    return SpeedExtension()
