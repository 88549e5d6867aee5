"""MTP heads that ship with the project, one folder each, named after their target in lower case."""

from pathlib import Path


def shipped(model_id: str) -> Path | None:
    """Folder of the head shipped for a model, or None."""
    folder = Path(__file__).parent / model_id.lower()
    return folder if (folder / "config.json").exists() else None
