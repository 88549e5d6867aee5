"""Faults the engine names itself; everything else that escapes is a bug and stays loud."""


class ModelLoadError(Exception):
    """The model cannot be served; the message says what is wrong and what would help."""
