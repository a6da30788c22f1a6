"""The one family of exceptions: every message says what happened, where, and what to do."""


class SpeedError(Exception):
    """Base of everything this package raises on purpose."""


class SettingsError(SpeedError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""


class InputError(SpeedError, ValueError):
    """Embeddings, weights or names cannot be used as they are."""


class FileError(SpeedError):
    """A file cannot be read, is not what it claims to be, or cannot be written."""


class UnsupportedModelError(SpeedError):
    """The model has no layer that this package knows how to edit."""
