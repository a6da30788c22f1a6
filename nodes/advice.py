"""What a user of the nodes can do about a fault, in terms of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ..speed_ops.errors import SpeedError

Returned = TypeVar("Returned")

ADVICE = {
    "allow-overwriting": "Or turn overwrite on.",
    "give-text-encoder": "Wire in a CLIP that has it.",
}
"""Key of an advice in `data["advice"]` -> the sentence that is added."""


def with_advice(function: Callable[..., Returned]) -> Callable[..., Returned]:
    """Adds advice to the errors of a function."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Returned:
        try:
            return function(*args, **kwargs)
        except SpeedError as error:
            advice = ADVICE.get(str(error.data.get("advice", "")))
            if advice is None:
                raise
            raise type(error)(f"{error} {advice}") from error

    return wrapped
