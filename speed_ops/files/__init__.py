"""Model files without a host: read them lazily and suspiciously, write them whole or not at all.

Import the modules one by one (`from .files.checkpoint import Checkpoint`); nothing is loaded from here, so that the
parts that need no torch stay light.
"""
