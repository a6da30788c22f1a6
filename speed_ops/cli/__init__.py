# PYTHON_ARGCOMPLETE_OK
"""The command line `speed-erase`: flags and printing, nothing else."""

from .main import main

__all__ = ["main"]
