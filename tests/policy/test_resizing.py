"""Changing the block size: when it is recommended, on whose evidence, and where it comes to rest."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.policy import Attach, Exactness, ExactnessFound, Gate, MtpDispatch, VerifyCost
from messages.scheduling import ModelName
from policy.cluster import Cluster, gate_of
from policy.config import PolicyConfig
from policy.fold import observe
from policy.report import snapshot
from policy.states import Settled, State
from policy.switches import Switches
from policy.wire import body
from tests.policy.builders import attach, dispatch, sample

M = ModelName("m")
CURVE = tuple(VerifyCost(rows, 40.0 + rows) for rows in range(1, 9))
SIZES = tuple(range(2, 9))


def resizable(block_size: int = 4, sizes: tuple[int, ...] = SIZES) -> MtpDispatch:
    """A pairing on a flat curve whose replica changes its block size among `sizes`."""
    return msgspec.structs.replace(
        dispatch(block_size=block_size),
        verify_cost=CURVE,
        plain_step_ms=9.0,
        draft_step_ms=1.0,
        block_sizes=sizes,
    )


def served(*attached: Attach, config: PolicyConfig | None = None) -> Cluster:
    """The cluster after these attachments."""
    value = Cluster(config=config or PolicyConfig(), switches=Switches())
    for message in attached:
        value = observe(value, message)
    return value


def settle(value: Cluster, block_size: int, speedup: float, accepted: int | None = None) -> Cluster:
    """Serve this size and finish its profile."""
    value = observe(value, attach(of=resizable(block_size)))
    kept = block_size - 1 if accepted is None else accepted
    for _ in range(16):
        if not isinstance(state_of(value, block_size), Settled):
            value = observe(value, sample(speedup, block_size=block_size, accepted=kept))
    return value


def state_of(value: Cluster, block_size: int) -> State:
    """The state of the pairing in this size."""
    entries = value.entries.values()
    return next(e.state for e in entries if e.dispatch.pairing.block_size == block_size)


def test_without_a_verdict_no_change_is_recommended_to_a_replica() -> None:
    """While profiling the body may already show where things are heading; the gate does not act on it."""
    value = served(attach(of=resizable()))
    for _ in range(3):
        value = observe(value, sample(1.8, accepted=3))
    assert gate_of(value, M).recommended_block_size is None
    assert body(snapshot(value))["recommended_block_size"] == 8


def test_a_verdict_recommends_what_the_curve_favours() -> None:
    """With every draft accepted on a flat curve the widest block; the gate says for which size it is."""
    gate = gate_of(settle(served(), 4, 1.8), M)
    assert (gate.block_size, gate.recommended_block_size, gate.enabled) == (4, 8, True)


def test_another_size_starts_its_own_profile_and_keeps_the_old_verdict() -> None:
    """The key stays honest: a verdict at 4 says nothing about 8, and is there again on return."""
    value = settle(served(), 4, 1.8)
    value = observe(value, attach(of=resizable(8)))
    report = snapshot(value).top
    assert (report.state, report.block_size, report.samples) == ("profiling", 8, 0)
    assert gate_of(value, M).recommended_block_size is None
    back = snapshot(observe(value, attach(of=resizable(4)))).top
    assert (back.state, back.block_size, back.verdict) == ("settled", 4, "enable")


def test_a_size_that_measured_worse_is_left_and_not_tried_again() -> None:
    """Predictions send the replica to 8; measured slower, it goes back and other sizes have to beat 4."""
    value = settle(settle(served(), 4, 1.8), 8, 1.2)
    assert gate_of(value, M).recommended_block_size == 4
    value = observe(value, attach(of=resizable(4)))
    assert gate_of(value, M).recommended_block_size == 7


def test_a_declined_size_may_lead_to_one_that_pays() -> None:
    """No draft beyond the first is ever accepted: the narrow block is what there is to gain."""
    gate = gate_of(settle(served(), 8, 0.9, accepted=1), M)
    assert (gate.enabled, gate.recommended_block_size) == (False, 2)


def test_only_sizes_that_passed_the_probe_are_recommended() -> None:
    """8 would be best but was not found exact."""
    value = served(attach(of=resizable(4, (2, 3, 4, 5))))
    for _ in range(4):
        value = observe(value, sample(1.8, accepted=3))
    assert gate_of(value, M).recommended_block_size == 5


def test_evidence_of_other_weights_or_kernels_does_not_count() -> None:
    """The same names under another fingerprint are another pairing, whatever its size measured."""
    value = settle(served(), 4, 1.8)
    other = msgspec.structs.replace(resizable(8), fingerprint="weights-2")
    value = observe(value, attach("n", of=other))
    for _ in range(4):
        value = observe(value, sample(1.0, model="n", block_size=8, accepted=0))
    assert gate_of(value, M).recommended_block_size == 8


def test_a_veto_recommends_nothing() -> None:
    """A replica whose kernels are not exact gets the closed gate and nothing else."""
    value = settle(served(), 4, 1.8)
    found = ExactnessFound(model=M, incarnation="1", exactness=Exactness(exact=False))
    gate = gate_of(observe(value, found), M)
    assert gate == Gate(version=gate.version)


def test_the_body_shows_what_the_recommendation_rests_on() -> None:
    """Costs of verify, ordinary step and drafted token, and drafting's share; without them null."""
    shown = body(snapshot(settle(served(), 4, 1.8)))
    assert shown["verify_cost"] == [{"rows": point.rows, "ms": point.ms} for point in CURVE]
    assert shown["plain_step_ms"] == 9.0
    assert (shown["draft_step_ms"], shown["drafter_share"]) == (1.0, pytest.approx(0.2))
    bare = body(snapshot(served(attach())))
    assert (bare["verify_cost"], bare["draft_step_ms"], bare["drafter_share"]) == ([], None, None)
    assert bare["recommended_block_size"] is None


@settings(deadline=None, max_examples=40)
@given(
    truth=st.lists(st.floats(0.4, 3.0), min_size=7, max_size=7),
    accepted=st.integers(0, 3),
    start=st.sampled_from(SIZES),
)
def test_a_replica_that_follows_comes_to_rest_at_a_measured_best(
    truth: list[float], accepted: int, start: int
) -> None:
    """Whatever each size really brings: at most one profile per size, no flapping, and it ends at no
    size that measured more than the margin below another one."""
    speedups = dict(zip(SIZES, truth, strict=True))
    value, size, profiled = served(), start, list[int]()
    for _ in range(20):
        value = observe(value, attach(of=resizable(size)))
        if not isinstance(state_of(value, size), Settled):
            profiled.append(size)
            value = settle(value, size, speedups[size], accepted=min(accepted, size - 1))
        following = gate_of(value, M).recommended_block_size
        if following in (None, size):
            break
        size = following
    else:
        raise AssertionError(f"never came to rest: {profiled}")
    assert len(profiled) == len(set(profiled))
    assert all(speedups[size] * 1.021 >= speedups[other] for other in profiled)
