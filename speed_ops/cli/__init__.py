"""The command line `speed-erase`: one file a subcommand, no mathematics here."""

from .main import main

__all__ = ["main"]
