"""Which release this is."""

from __future__ import annotations

from importlib import metadata


def package_version() -> str:
    """The installed version; empty where the package runs from a plain folder."""
    try:
        return metadata.version("speed-erase")
    except metadata.PackageNotFoundError:
        return ""
