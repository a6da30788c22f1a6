"""What a user of the nodes can do about a fault, in terms of their inputs."""

from __future__ import annotations

from ..speed_ops.errors import SpeedError

ADVICE = {
    "allow-overwriting": "Or turn overwrite on.",
    "give-text-encoder": "Wire in a CLIP that has it.",
}
"""Key of an advice in `data["advice"]` -> the sentence that is added."""


def advised(fault: SpeedError) -> SpeedError:
    """The fault with the advice that goes with it."""
    advice = ADVICE.get(str(fault.data.get("advice", "")))
    return type(fault)(f"{fault} {advice}") if advice else fault
