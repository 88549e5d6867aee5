"""The engine's thread: what it says of the BLAS it is given."""

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from actors.engine_thread import EngineThread, Listener
from engine.blas import Blas
from engine.config import EngineConfig
from engine.identity import Identity
from messages.scheduling import ModelName

FULL = Blas(source="scipy-openblas32", version="0.3", threads=2, row_kernels=True)


def warnings_of(blas: Blas, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[EventDict]:
    """What a thread warns of that finds this BLAS, and then no model."""
    monkeypatch.setattr("actors.engine_thread.preload", lambda *_: blas)
    ended = threading.Event()

    def ignore(_: object) -> None:
        pass

    def failed(_: str) -> None:
        ended.set()

    listener = Listener(
        progress=ignore, ready=ignore, failed=failed, events=ignore, measured=ignore, counted=ignore
    )
    config = EngineConfig(model=str(folder / "missing"), cache_root=str(folder))
    with capture_logs() as logs:
        thread = EngineThread(config, Identity(ModelName("m"), "1"), listener)
        assert ended.wait(60)
        thread.close(10)
    return [entry for entry in logs if entry["log_level"] == "warning"]


@pytest.mark.parametrize(
    ("blas", "event", "remedy"),
    [
        (Blas(source="vendored", version="netlib", threads=1), "slow_blas", "scipy-openblas32"),
        (Blas(source="scipy-openblas32", version="0.3", threads=2), "no_row_kernels", "gcc"),
        (Blas(source="system", version="0.3", threads=2), "no_row_kernels", "gcc"),
    ],
)
def test_a_slow_blas_is_named_with_its_remedy(
    blas: Blas, event: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The vendored BLAS, and an OpenBLAS without row kernels: one warning that says what to install."""
    (warning,) = warnings_of(blas, monkeypatch, tmp_path)
    assert warning["event"] == event
    assert remedy in warning["hint"]


@pytest.mark.parametrize("blas", [FULL, Blas(source="none", version="", threads=0)])
def test_nothing_is_warned_of_where_nothing_is_missing(
    blas: Blas, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Row kernels in force, or a platform whose matrix products are done elsewhere."""
    assert warnings_of(blas, monkeypatch, tmp_path) == []
