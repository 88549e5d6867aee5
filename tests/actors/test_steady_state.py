"""Once a verdict is settled a request costs the model nothing on the policy's account: no message, no
environment, no file."""

import asyncio
import os
import sys
import timeit
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.model_actor import ModelActor
from engine.config import EngineConfig
from engine.course import PLAIN, Course
from engine.identity import Identity
from engine.speculator import Speculator
from messages.events import Finished
from messages.model import EventBatch
from messages.policy import Attach, Detach, ExactnessFound, Gate, Renew, Sample
from messages.requests import GenerateRequest, RequestId, SamplingParams
from messages.scheduling import ModelName
from policy.cluster import Cluster, gate_of
from policy.config import PolicyConfig
from policy.fold import observe
from policy.switches import Switches
from tests import tiny
from tests.actors.test_model_actor import RecordingScheduler, until_ready
from tests.engine.drafters import ScriptedDrafter
from tests.policy.builders import attach, sample

M = ModelName("m")
REQUESTS = 12


def settled_gate(speedup: float) -> Gate:
    """What the policy answers once four samples have settled a pairing."""
    value = observe(Cluster(config=PolicyConfig(), switches=Switches()), attach())
    for _ in range(4):
        value = observe(value, sample(speedup))
    gate = gate_of(value, M)
    assert gate.enabled is (speedup > 1)
    return msgspec.structs.replace(gate, block_size=None)


class SettledPolicy:
    """A policy whose verdict is settled; it counts what it is told, by kind."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.told: Counter[str] = Counter()
        self.is_exact = asyncio.Event()

    async def attach(self, message: Attach) -> Gate:
        """Once per load."""
        self.told["attach"] += 1
        if message.exactness.exact:
            self.is_exact.set()
        return self.gate

    async def renew(self, message: Renew) -> Gate:
        """By the clock."""
        self.told["renew"] += 1
        return self.gate

    async def record(self, message: Sample) -> Gate:
        """Per measured request."""
        self.told["record"] += 1
        return self.gate

    async def exactness_found(self, message: ExactnessFound) -> Gate:
        """Not in these tests."""
        self.told["exactness_found"] += 1
        return self.gate

    async def detach(self, message: Detach) -> Gate:
        """Not in these tests."""
        self.told["detach"] += 1
        return self.gate


class Opens:
    """Counts files opened anywhere in this process while it watches; an audit hook cannot be taken out."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.watching = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: Any) -> None:
        if self.watching and event == "open":
            self.paths.append(str(arguments[0]))


@pytest.fixture(scope="module")
def opens() -> Opens:
    """The one hook of this module."""
    return Opens()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names looked up in the environment, from whatever thread."""
    seen: list[str] = []
    honest = type(os.environ).__getitem__

    def looked_up(environment: Any, name: str) -> str:
        seen.append(name)
        return honest(environment, name)

    monkeypatch.setattr(type(os.environ), "__getitem__", looked_up)
    yield seen
    monkeypatch.undo()


def request(name: str) -> GenerateRequest:
    """A greedy request of 16 tokens of client `c`."""
    return GenerateRequest(
        request_id=RequestId(name),
        client="c",
        prompt=(5, 6, 7),
        max_tokens=16,
        sampling=SamplingParams(temperature=0.0),
        ignore_eos=True,
    )


async def generate(actor: ModelActor, stream: AsyncIterator[Any], name: str) -> Finished:
    """One request from submission to its end."""
    assert await actor.submit(request(name))
    async for message in stream:
        if isinstance(message, EventBatch):
            for event in message.events:
                if isinstance(event, Finished):
                    return event
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("speedup", [1.8, 0.7], ids=["enabled", "declined"])
async def test_a_settled_request_sends_reads_and_opens_nothing(
    tiny_checkpoint: Path,
    tmp_path: Path,
    opens: Opens,
    reads: list[str],
    speedup: float,
) -> None:
    """Over a dozen requests between two looks at a settled verdict: no message but the clock's renewals,
    no lookup in the environment, no file opened."""
    head = tiny.write_head(tmp_path / "head")
    policy = SettledPolicy(settled_gate(speedup))
    assert policy.gate.measure_every > REQUESTS + 1
    config = EngineConfig(
        model=str(tiny_checkpoint), draft_model=str(head), cache_root=str(tmp_path), num_slots=2
    )
    actor = ModelActor("m", config, RecordingScheduler(), policy)
    try:
        stream = actor.events("c")
        await until_ready(stream)
        # The probe finishes in idle time; the gate then takes a moment, and the first request compiles.
        await asyncio.wait_for(policy.is_exact.wait(), 120)
        await asyncio.sleep(0.2)
        await generate(actor, stream, "warm")
        policy.told.clear()
        reads.clear()
        opens.paths.clear()
        opens.watching = True
        finished = [await generate(actor, stream, f"r{i}") for i in range(REQUESTS)]
        opens.watching = False
    finally:
        opens.watching = False
        actor.close()
    assert all((end.timings.draft is not None) is (speedup > 1) for end in finished)
    assert set(policy.told) <= {"renew"}
    assert reads == []
    assert opens.paths == []


def test_the_counters_above_can_count(opens: Opens, reads: list[str]) -> None:
    """A lookup and an opened file are noticed."""
    opens.paths.clear()
    opens.watching = True
    os.environ.get("HOME")
    Path("/proc/self/stat").read_bytes()
    opens.watching = False
    assert reads == ["HOME"]
    assert opens.paths == ["/proc/self/stat"]


def consult_cost(speculator: Speculator, item: GenerateRequest) -> float:
    """Seconds per consult, the best of many short runs: other processes can only add to it."""
    return min(timeit.repeat(lambda: speculator.plan(item), number=2000, repeat=60)) / 2000


@pytest.mark.parametrize("speedup", [1.8, 0.7], ids=["enabled", "declined"])
def test_the_consult_costs_under_a_microsecond(speedup: float) -> None:
    """Planning a request under a settled gate, against planning nothing because nothing speculates."""
    speculator = Speculator(ScriptedDrafter(lambda told, depth: [0] * depth), 4, Identity(M, "1"))
    item = request("r")
    assert speculator.plan(item) is PLAIN
    plain = consult_cost(speculator, item)
    speculator.is_exact = True
    speculator.gate = settled_gate(speedup)
    planned = {speculator.plan(item) for _ in range(100)}
    assert (
        Course(depth=3, is_measured=False)
        in {msgspec.structs.replace(course, limits=None) for course in planned}
        or speedup < 1
    )
    assert consult_cost(speculator, item) - plain < 1e-6
