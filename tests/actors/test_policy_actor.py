"""The policy actor without Ray: it folds, stores before it answers, publishes, and survives being killed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from actors.policy_actor import PolicyActor
from messages.policy import (
    Detach,
    Exactness,
    ExactnessFound,
    Gate,
    NotAttached,
    PolicySnapshot,
    Renew,
)
from messages.scheduling import ModelName
from policy import replay
from policy.cluster import key_of
from policy.config import PolicyConfig
from policy.switches import Switches
from tests.policy.builders import attach, dispatch, sample

M = ModelName("m")
KEY = str(key_of(dispatch()))


class Clock:
    """Time that moves when a test says so."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def actor(
    root: Path | None, clock: Clock, switches: Switches | None = None, heartbeat_s: float = 0.01
) -> PolicyActor:
    """A policy actor over `root`."""
    return PolicyActor(PolicyConfig(), switches or Switches(), root, clock=clock, heartbeat_s=heartbeat_s)


async def settle(policy: PolicyActor, speedup: float = 1.8) -> None:
    """Attach one replica and finish its profile."""
    await policy.attach(attach())
    for _ in range(4):
        await policy.record(sample(speedup))


async def newest(stream: AsyncIterator[PolicySnapshot]) -> PolicySnapshot:
    """The next item of a stream."""
    return await asyncio.wait_for(anext(stream), 5)


async def test_attaching_is_answered_with_the_gate(tmp_path: Path) -> None:
    """A fresh pairing is measured from the first request on."""
    reply = await actor(tmp_path, Clock()).attach(attach())
    assert isinstance(reply, Gate)
    assert (reply.enabled, reply.measure_every) == (True, 1)


async def test_a_verdict_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    """Whoever has seen the settled gate can rely on the file."""
    policy = actor(tmp_path, Clock())
    await settle(policy)
    assert (await policy.snapshot()).top.state == "settled"
    assert [found.hint.verdict for found in await policy.hints()] == ["enable"]


@pytest.mark.parametrize("speedup", [1.8, 0.7])
async def test_a_killed_policy_comes_back_with_its_verdict(tmp_path: Path, speedup: float) -> None:
    """Nothing but files is left of the first; the second needs no sample, only the attachment."""
    clock = Clock()
    first = actor(tmp_path, clock)
    await settle(first, speedup)
    told = (await first.snapshot()).top
    clock.now += 1
    second = actor(tmp_path, clock)
    assert isinstance(await second.renew(Renew(model=M, incarnation="1")), NotAttached)
    assert (await second.snapshot()).top.reason == "worker_not_ready"
    gate = await second.attach(attach())
    assert isinstance(gate, Gate)
    assert gate.enabled is (speedup > 1)
    restored = (await second.snapshot()).top
    assert restored == msgspec.structs.replace(told, source="restored")


async def test_a_killed_policy_resumes_its_profile(tmp_path: Path) -> None:
    """Two samples before, one after: three of four."""
    first, second = actor(tmp_path, Clock()), actor(tmp_path, Clock())
    await first.attach(attach())
    for _ in range(2):
        await first.record(sample())
    await second.attach(attach())
    assert (await second.snapshot()).top.samples == 2
    await second.record(sample())
    assert (await second.snapshot()).top.samples == 3


async def test_versions_rise_across_a_restart(tmp_path: Path) -> None:
    """A reader that keeps the newer of two snapshots, or gates, never stays with the dead actor's."""
    clock = Clock()
    first = actor(tmp_path, clock)
    await settle(first)
    for _ in range(200):
        await first.renew(Renew(model=M, incarnation="1"))
    old_gate = await first.renew(Renew(model=M, incarnation="1"))
    old = await first.snapshot()
    clock.now += 1
    second = actor(tmp_path, clock)
    new_gate = await second.attach(attach())
    assert isinstance(old_gate, Gate)
    assert isinstance(new_gate, Gate)
    assert new_gate.version > old_gate.version
    assert (await second.snapshot()).version > old.version


@pytest.mark.parametrize("switches", [Switches(pin=True), Switches(adaptive=False)])
async def test_under_a_pin_no_file_is_read_or_written(tmp_path: Path, switches: Switches) -> None:
    """Not even a stored verdict of before shows through."""
    await settle(actor(tmp_path, Clock()), 0.7)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    policy = actor(tmp_path, Clock(), switches)
    await settle(policy, 1.8)
    assert (await policy.snapshot()).top.verdict is None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


async def test_without_a_directory_the_policy_works_in_memory() -> None:
    """A root that cannot be written costs persistence and one warning, not the verdict."""
    policy = actor(Path(__file__), Clock())
    with capture_logs() as logs:
        await settle(policy)
    assert (await policy.snapshot()).top.state == "settled"
    assert {line["log_level"] for line in logs if line["event"].startswith("not stored")} == {"warning"}


async def test_the_clock_of_the_actor_stamps_every_message(tmp_path: Path) -> None:
    """Senders' clocks play no part: neither in leases nor in the time of a verdict."""
    clock = Clock()
    policy = actor(tmp_path, clock)
    await policy.attach(attach(at_s=5.0))
    for _ in range(4):
        await policy.record(sample(at_s=9e9))
    assert (await policy.snapshot()).top.settled_at == clock.now


async def test_a_silent_replica_is_dropped_and_asked_to_attach(tmp_path: Path) -> None:
    """Its lease runs out by the clock alone; the snapshot says so without any message."""
    clock = Clock()
    policy = actor(tmp_path, clock)
    await settle(policy)
    clock.now += 11
    assert (await policy.snapshot()).top.reason == "worker_not_ready"
    assert isinstance(await policy.record(sample()), NotAttached)
    assert isinstance(await policy.attach(attach()), Gate)
    assert (await policy.snapshot()).top.state == "settled"


async def test_an_audit_mismatch_closes_the_gate(tmp_path: Path) -> None:
    """At once, and the verdict on disk is left alone."""
    policy = actor(tmp_path, Clock())
    await settle(policy)
    found = Exactness(exact=False, selection="default", detail="row 2 differs")
    gate = await policy.exactness_found(ExactnessFound(model=M, incarnation="1", exactness=found))
    assert isinstance(gate, Gate)
    assert (gate.enabled, gate.measure_every) == (False, 0)
    assert (await policy.snapshot()).top.decline_detail == "row 2 differs"
    assert len(await policy.hints()) == 1


async def test_a_leaving_replica_is_gone_at_once(tmp_path: Path) -> None:
    """A clean shutdown does not wait for the lease."""
    policy = actor(tmp_path, Clock())
    await policy.attach(attach())
    await policy.detach(Detach(model=M, incarnation="1"))
    assert (await policy.snapshot()).top.reason == "worker_not_ready"


async def test_watching_yields_a_snapshot_at_once_and_on_change(tmp_path: Path) -> None:
    """A change made while nobody waits is not missed, and the newest value is the one that arrives."""
    policy = actor(tmp_path, Clock(), heartbeat_s=60)
    stream = policy.watch()
    assert (await newest(stream)).top.reason == "worker_not_ready"
    await settle(policy)
    assert (await newest(stream)).top.state == "settled"
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await policy.detach(Detach(model=M, incarnation="1"))
    assert (await asyncio.wait_for(waiting, 5)).top.reason == "worker_not_ready"


async def test_watching_beats_while_nothing_changes(tmp_path: Path) -> None:
    """The same snapshot again, so a reader can tell a quiet policy from a dead one."""
    stream = actor(tmp_path, Clock(), heartbeat_s=0.001).watch()
    first = await newest(stream)
    assert await newest(stream) is first
    assert await newest(stream) is first


async def test_several_watchers_see_the_same(tmp_path: Path) -> None:
    """Each has its own place in the stream."""
    policy = actor(tmp_path, Clock(), heartbeat_s=60)
    streams = [policy.watch() for _ in range(3)]
    for stream in streams:
        await newest(stream)
    await settle(policy)
    assert len({(await newest(stream)).version for stream in streams}) == 1


async def test_a_watcher_notices_an_expired_lease_by_itself(tmp_path: Path) -> None:
    """The heartbeat looks at the clock."""
    clock = Clock()
    policy = actor(tmp_path, clock, heartbeat_s=0.001)
    await policy.attach(attach())
    stream = policy.watch()
    assert (await newest(stream)).top.state == "profiling"
    clock.now += 11
    assert (await newest(stream)).top.reason == "worker_not_ready"


async def test_the_trace_replays_to_the_same_verdict(tmp_path: Path) -> None:
    """What was exported reaches the verdict that was published; renewals are left out."""
    policy = actor(tmp_path, Clock())
    await settle(policy)
    await policy.renew(Renew(model=M, incarnation="1"))
    trace = await policy.trace()
    assert len(trace) == 5
    (change,) = replay.verdict_changes(replay.decode(replay.encode(trace)))
    assert (change.key, change.verdict) == (KEY, "enable")


async def test_forgetting_removes_the_file_and_measures_anew(tmp_path: Path) -> None:
    """The replica gets the measuring gate with its next renewal."""
    policy = actor(tmp_path, Clock())
    await settle(policy)
    assert await policy.forget(KEY) is True
    assert await policy.hints() == ()
    assert (await policy.snapshot()).top.state == "profiling"
    gate = await policy.renew(Renew(model=M, incarnation="1"))
    assert isinstance(gate, Gate)
    assert gate.measure_every == 1
    assert await policy.forget("0" * 16) is False


async def test_settling_and_restoring_are_logged_with_their_numbers(tmp_path: Path) -> None:
    """One line each, with the pairing; the settling one holds everything needed to check it."""
    with capture_logs() as logs:
        await settle(actor(tmp_path, Clock()))
        await actor(tmp_path, Clock()).attach(attach())
    settled, restored = logs
    assert (settled["event"], restored["event"]) == ("verdict settled", "verdict restored")
    assert settled["verdict"] == restored["verdict"] == "enable"
    assert settled["speedup"] == pytest.approx(1.8)
    assert {"accepted_len", "drafter_ms", "verify_ms", "overhead_ms", "classic_step_ms"} <= set(settled)
    assert {"low", "high", "rounds", "samples", "original_speedup", "rule"} <= set(settled)


async def test_a_reopened_verdict_is_logged_and_stays_stored(tmp_path: Path) -> None:
    """Killed in the middle of its second thoughts, the policy comes back with its former verdict."""
    policy = actor(tmp_path, Clock())
    await settle(policy)
    with capture_logs() as logs:
        for _ in range(4):
            await policy.record(sample(0.7))
    assert [line["event"] for line in logs] == ["verdict reopened"]
    assert (await policy.snapshot()).top.state == "profiling"
    assert [found.hint.verdict for found in await policy.hints()] == ["enable"]
    await policy.record(sample(0.7))
    assert [found.hint.verdict for found in await policy.hints()] == ["decline"]
