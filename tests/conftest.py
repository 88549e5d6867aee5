"""Shared fixtures: one tiny checkpoint per session."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests import tiny

# A busy machine is no reason to fail: hypothesis measures single examples against 200 ms by default.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random llama checkpoint."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))
