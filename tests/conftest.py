"""Shared fixtures: one tiny checkpoint per session."""

from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random llama checkpoint."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))
