"""Faults of the command line itself, as opposed to those of files and models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InputError, SettingsError, SpeedError


class UsageError(SpeedError):
    """The arguments make no sense: exit code 2."""


@contextmanager
def of_arguments() -> Iterator[None]:
    """Around what is read from arguments alone: a bad value there is bad usage."""
    try:
        yield
    except (SettingsError, InputError) as fault:
        raise UsageError(str(fault)) from fault
