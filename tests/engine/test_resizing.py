"""A block size left to the measurements: probed sizes only, between requests, under a gate of its own."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine.config import EngineConfig
from engine.drafting import AUTO_SIZES
from engine.engine import Engine
from engine.identity import Identity
from engine.session import Session
from messages.policy import Gate, Sample
from messages.scheduling import ModelName
from tests import tiny
from tests.engine.conftest import NO_BLAS, finish_of, request, run, text_of

IDENTITY = Identity(ModelName("m"), "1")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny model."""
    return tiny.write_head(tmp_path_factory.mktemp("heads") / "head")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where probe results are kept between the tests."""
    return tmp_path_factory.mktemp("cache")


def start(checkpoint: Path, cache: Path, head: Path, block_size: int | str = "auto") -> Session:
    """A started session, probed to the end."""
    config = EngineConfig(
        model=str(checkpoint), draft_model=str(head), cache_root=str(cache), draft_block_size=block_size
    )
    started = Session(config, IDENTITY, NO_BLAS, lambda text: None)
    while started.has_idle_work:
        started.idle_step()
    return started


def size(session: Session) -> int:
    """The block size in use."""
    assert session.facts.drafter is not None
    return session.facts.drafter.block_size


def per_round(session: Session, name: str = "r") -> float:
    """Drafts per round of one long request."""
    draft = finish_of(run(session.engine, request(name, max_tokens=60))[name]).timings.draft
    assert draft is not None
    return draft.draft_n / draft.draft_rounds


def test_auto_starts_at_the_drafters_own_size_and_knows_the_exact_ones(
    tiny_checkpoint: Path, cache: Path, head: Path
) -> None:
    """The facts carry the sizes that passed the probe, the cost curve, and the time of a drafted token."""
    drafter = start(tiny_checkpoint, cache, head).facts.drafter
    assert drafter is not None
    assert drafter.probed is not None
    assert (drafter.block_size, drafter.may_resize) == (4, True)
    assert drafter.probed.exact_sizes == AUTO_SIZES
    assert len(drafter.probed.rows_ms) == 8
    assert drafter.probed.draft_step_ms is not None
    assert drafter.probed.draft_step_ms > 0


def test_a_recommendation_is_taken_up_by_the_next_request(
    tiny_checkpoint: Path, cache: Path, head: Path
) -> None:
    """The gate that recommends was about the old size; the new one waits, closed, for a gate of its own."""
    session = start(tiny_checkpoint, cache, head)
    with capture_logs() as logs:
        assert session.set_gate(Gate(enabled=True, version=5, block_size=4, recommended_block_size=6))
    assert [(e["before"], e["after"]) for e in logs if e["event"] == "block_size_changed"] == [(4, 6)]
    assert size(session) == 6
    assert finish_of(run(session.engine, request())["r"]).timings.draft is None
    assert not session.set_gate(Gate(enabled=True, version=6, block_size=6, recommended_block_size=6))
    assert per_round(session) > 4


def test_a_late_gate_of_another_size_changes_nothing(tiny_checkpoint: Path, cache: Path, head: Path) -> None:
    """An answer that was under way when the size changed neither opens the gate nor changes it back."""
    session = start(tiny_checkpoint, cache, head)
    session.set_gate(Gate(enabled=True, version=5, block_size=4, recommended_block_size=6))
    assert not session.set_gate(Gate(enabled=True, version=9, block_size=4, recommended_block_size=3))
    assert size(session) == 6
    assert finish_of(run(session.engine, request())["r"]).timings.draft is None


def test_only_other_sizes_that_passed_the_probe_are_taken_up(
    tiny_checkpoint: Path, cache: Path, head: Path
) -> None:
    """No recommendation, the present size, and sizes that were never found exact."""
    session = start(tiny_checkpoint, cache, head)
    for wanted in (None, 4, 9, 1, 0):
        gate = Gate(enabled=True, version=5, block_size=4, recommended_block_size=wanted)
        assert not session.set_gate(gate)
        assert size(session) == 4
    assert per_round(session) > 2


@pytest.mark.parametrize("fixed", [0, 3])
def test_a_fixed_size_stays(tiny_checkpoint: Path, cache: Path, head: Path, fixed: int) -> None:
    """The drafter's own size or a number follow no recommendation."""
    session = start(tiny_checkpoint, cache, head, fixed)
    before = size(session)
    assert before == (fixed or 4)
    assert not session.set_gate(Gate(enabled=True, version=5, recommended_block_size=6))
    assert size(session) == before


def test_a_running_request_keeps_its_size(tiny_checkpoint: Path, cache: Path, head: Path) -> None:
    """Its text is that of plain decode, its sample says the size it began with, and the next one changes."""
    measuring = Gate(enabled=True, version=5, block_size=4, measure_every=1, slice_rounds=2)
    session = start(tiny_checkpoint, cache, head)
    plain = text_of(run(session.engine, request(max_tokens=60, speculative=False))["r"])
    session.set_gate(measuring)
    engine: Engine = session.engine
    engine.submit(request(max_tokens=60))
    events = [event for _ in range(4) for event in engine.step()]
    session.set_gate(Gate(enabled=True, version=6, block_size=4, recommended_block_size=7))
    while engine.active:
        events += engine.step()
    session.set_gate(Gate(enabled=True, version=7, block_size=7, measure_every=1))
    events_after = run(engine, request("next", max_tokens=60))["next"]
    assert text_of(events) == text_of(events_after) == plain
    depths = [positions(sample) for sample in engine.samples]
    assert depths == [3, 6]


def positions(sample: Sample) -> int:
    """Draft positions a sample reports on."""
    return len(sample.accepted_per_position)


def test_a_restart_takes_the_stored_sizes(tiny_checkpoint: Path, cache: Path, head: Path) -> None:
    """The longer probe's answer is kept apart from that of a fixed size, and neither is measured twice."""
    first = start(tiny_checkpoint, cache, head).facts.drafter
    stored = {path.name: path.stat().st_mtime_ns for path in (cache / "mtp-probe").iterdir()}
    assert start(tiny_checkpoint, cache, head).facts.drafter == first
    start(tiny_checkpoint, cache, head, 0)
    after = {path.name: path.stat().st_mtime_ns for path in (cache / "mtp-probe").iterdir()}
    assert stored.items() <= after.items()
    fixed = start(tiny_checkpoint, cache, head, 0).facts.drafter
    assert fixed is not None
    assert first is not None
    assert fixed.fingerprint == first.fingerprint
