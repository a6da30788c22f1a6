"""ComfyUI-SPEED: closed-form concept erasure for text-to-image models.

ComfyUI imports this folder by path; pip and the tests import it as `speed_erase`. Nothing of torch
or ComfyUI is imported here, so that the engine (`speed_erase.speed_ops`) stays usable without a
ComfyUI.
"""

import logging

__version__ = "0.1.0"

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Called by ComfyUI; returns the extension with all nodes."""
    try:
        from .nodes import SpeedExtension
    except Exception:
        # ComfyUI reports an exception raised here as one line; the traceback is what a bug report
        # needs.
        logging.getLogger("speed_erase").exception("ComfyUI-SPEED could not load its nodes")
        raise
    return SpeedExtension()
