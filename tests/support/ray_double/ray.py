"""As much of Ray as a fleet uses, in one process and one thread: for tests that kill a fleet often,
where a cluster would take half a minute to start.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


class _Reference:
    """Something put, or a call that runs when somebody waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.done, self.value = work, False, None

    def result(self) -> Any:
        if not self.done:
            self.value, self.done = self.work(), True
        return self.value


class _Task:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def options(self, **resources: Any) -> _Task:
        return self

    def remote(self, *given: Any) -> _Reference:
        return _Reference(lambda: self.function(*map(get, given)))


class _Fault(Exception):
    pass


exceptions = types.SimpleNamespace(
    NodeDiedError=type("NodeDiedError", (_Fault,), {}),
    LocalRayletDiedError=type("LocalRayletDiedError", (_Fault,), {}),
    ObjectLostError=type("ObjectLostError", (_Fault,), {}),
    OutOfMemoryError=type("OutOfMemoryError", (_Fault,), {}),
)


def init(**options: Any) -> None: ...


def shutdown() -> None: ...


def cancel(reference: _Reference, force: bool) -> None:
    reference.done = True


def nodes() -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": {"CPU": 1.0, "memory": 1e12}}]


def remote(**options: Any) -> Callable[[Callable[..., Any]], _Task]:
    return _Task


def put(value: Any) -> _Reference:
    return _Reference(lambda: value)


def get(value: Any) -> Any:
    return value.result() if isinstance(value, _Reference) else value


def wait(
    references: list[_Reference], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[_Reference], list[_Reference]]:
    references[0].result()
    return references[:1], references[1:]
