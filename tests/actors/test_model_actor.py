"""The model actor on a plain event loop with the tiny model: events, cancels, lost listeners, bad loads."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import mlx.core as mx
import pytest

from actors.model_actor import ModelActor
from engine.config import EngineConfig
from messages.events import Cancelled, Event, Finished
from messages.model import EventBatch, ModelMessage, ModelStatus
from messages.policy import Attach, Detach, ExactnessFound, Gate, NotAttached, Renew, Sample
from messages.requests import GenerateRequest, RequestId, SamplingParams
from messages.scheduling import LoadReport, Released
from speculative.rollback import OpenBlock
from speculative.target import Forward, Target
from tests import tiny


class RecordingScheduler:
    """A scheduler that only remembers."""

    def __init__(self) -> None:
        self.reports: list[LoadReport] = []
        self.releases: list[Released] = []

    async def report(self, message: LoadReport) -> None:
        """Remember a report."""
        self.reports.append(message)

    async def released(self, message: Released) -> None:
        """Remember a release."""
        self.releases.append(message)


class ForgetfulPolicy:
    """A policy that forgets every attachment once, as a restarted one would."""

    def __init__(self) -> None:
        self.attached: list[Attach] = []

    async def attach(self, message: Attach) -> Gate:
        """Remember the attachment."""
        self.attached.append(message)
        return Gate(version=len(self.attached))

    async def renew(self, message: Renew) -> Gate | NotAttached:
        """Forget the first attachment."""
        if len(self.attached) == 1:
            return NotAttached(model=message.model, incarnation=message.incarnation)
        return Gate(version=len(self.attached))

    async def record(self, message: Sample) -> Gate:
        """Not reached without speculation."""
        raise NotImplementedError

    async def exactness_found(self, message: ExactnessFound) -> Gate:
        """Not reached without speculation."""
        raise NotImplementedError

    async def detach(self, message: Detach) -> Gate:
        """Nothing to forget."""
        return Gate()


@pytest.fixture
def scheduler() -> RecordingScheduler:
    """A scheduler double."""
    return RecordingScheduler()


@pytest.fixture
def policy() -> ForgetfulPolicy:
    """A policy double."""
    return ForgetfulPolicy()


@pytest.fixture
async def actor(
    tiny_checkpoint: Path, scheduler: RecordingScheduler, policy: ForgetfulPolicy
) -> AsyncIterator[ModelActor]:
    """A model actor that is loading the tiny checkpoint."""
    model = ModelActor("m", EngineConfig(model=str(tiny_checkpoint), num_slots=2), scheduler, policy)
    yield model
    model.close()


def request(name: str, max_tokens: int = 5) -> GenerateRequest:
    """A greedy request of client `c`."""
    return GenerateRequest(
        request_id=RequestId(name),
        client="c",
        prompt=(5, 6, 7),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0.0),
        ignore_eos=True,
    )


async def until_ready(stream: AsyncIterator[ModelMessage]) -> None:
    """Read the stream up to the ready status."""
    async for message in stream:
        if isinstance(message, ModelStatus) and message.state == "ready":
            return


async def closing(stream: AsyncIterator[ModelMessage], count: int) -> dict[str, Event]:
    """The closing events of `count` requests."""
    ends: dict[str, Event] = {}
    async for message in stream:
        if isinstance(message, EventBatch):
            ends |= {e.request_id: e for e in message.events if isinstance(e, Finished | Cancelled)}
        if len(ends) == count:
            return ends
    return ends


async def test_requests_are_answered_and_their_slots_released(
    actor: ModelActor, scheduler: RecordingScheduler
) -> None:
    """Two requests finish on the client's stream and both slots are released."""
    stream = actor.events("c")
    await until_ready(stream)
    assert [await actor.submit(request(n)) for n in ("a", "b")] == [True, True]
    ends = await closing(stream, 2)
    assert all(isinstance(e, Finished) for e in ends.values())
    await asyncio.sleep(0.01)
    assert {r.request_id for r in scheduler.releases} == {"a", "b"}
    assert scheduler.reports[-1].active == ()


async def test_a_model_that_is_loading_takes_nothing(actor: ModelActor) -> None:
    """Before `ready`, submit says no and no slots are reported."""
    stream = actor.events("c")
    first = await anext(stream)
    assert isinstance(first, ModelStatus)
    assert first.state == "loading"
    assert await actor.submit(request("a")) is False


async def test_a_request_without_a_listener_is_not_taken(actor: ModelActor) -> None:
    """A client whose event stream is not there would never see an answer."""
    stream = actor.events("other")
    await until_ready(stream)
    assert await actor.submit(request("a")) is False


async def test_an_abort_that_overtakes_its_request_still_counts(actor: ModelActor) -> None:
    """Abort first, submit later: the request is cancelled, not generated."""
    stream = actor.events("c")
    await until_ready(stream)
    await actor.abort(RequestId("a"))
    await actor.submit(request("a", max_tokens=400))
    assert isinstance((await closing(stream, 1))["a"], Cancelled)


async def test_a_vanished_client_takes_its_requests_along(
    actor: ModelActor, scheduler: RecordingScheduler
) -> None:
    """When an ingress dies, what it had asked for is stopped and released."""
    stream = actor.events("c")
    await until_ready(stream)
    await actor.submit(request("a", max_tokens=100_000))
    await stream.aclose()
    async with asyncio.timeout(5):
        while not scheduler.releases:
            await asyncio.sleep(0.01)
    assert scheduler.releases[0].request_id == "a"


async def test_a_forgotten_lease_is_taken_out_again(actor: ModelActor, policy: ForgetfulPolicy) -> None:
    """A restarted policy learns of the model again."""
    await until_ready(actor.events("c"))
    async with asyncio.timeout(10):
        while len(policy.attached) < 2:
            await asyncio.sleep(0.05)
    assert policy.attached[0] == policy.attached[1]


class OpenPolicy(ForgetfulPolicy):
    """A policy whose gate is open while what is attached is exact."""

    async def attach(self, message: Attach) -> Gate:
        """The gate follows exactness."""
        gate = await super().attach(message)
        return Gate(enabled=message.exactness.exact is True, version=gate.version)

    async def renew(self, message: Renew) -> Gate:
        """As attached."""
        return Gate(enabled=self.attached[-1].exactness.exact is True, version=len(self.attached))


async def test_an_audit_mismatch_reaches_the_policy_and_the_answer_is_whole(
    tiny_checkpoint: Path, tmp_path: Path, scheduler: RecordingScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verify block that no longer equals plain decode is attached as inexact while the request finishes."""
    honest, policy = Target.verify, OpenPolicy()
    spoiled = threading.Event()

    def verify(self: Target, tokens: mx.array, block: OpenBlock) -> Forward:
        out = honest(self, tokens, block)
        if not is_serving.is_set():
            return out
        spoiled.set()
        return out._replace(logits=out.logits + 1e-3 * mx.arange(out.logits.shape[-1]))

    is_serving = threading.Event()
    monkeypatch.setattr(Target, "verify", verify)
    config = EngineConfig(
        model=str(tiny_checkpoint),
        draft_model=str(tiny.write_head(tmp_path / "head")),
        cache_root=str(tmp_path),
        audit_share=1.0,
    )
    model = ModelActor("m", config, scheduler, policy)
    stream = model.events("c")
    await until_ready(stream)
    async with asyncio.timeout(200):
        while not policy.attached or policy.attached[-1].exactness.exact is None:
            await asyncio.sleep(0.01)
        assert policy.attached[-1].exactness.exact
        is_serving.set()
        # Until the gate has arrived requests decode plainly.
        for number in itertools.count():
            await model.submit(request(f"r{number}", max_tokens=20))
            ends = await closing(stream, 1)
            assert ends[f"r{number}"].usage.completion_tokens == 20
            if spoiled.is_set():
                break
        while policy.attached[-1].exactness.exact:
            await asyncio.sleep(0.01)
    assert (
        "verify block position 0 differs from the single-token chain in"
        in policy.attached[-1].exactness.detail
    )
    model.close()


async def test_a_model_that_cannot_load_says_why_and_stays_healthy(
    tmp_path: Path, scheduler: RecordingScheduler, policy: ForgetfulPolicy
) -> None:
    """A wrong path becomes the state `failed` with a sentence, not a crash loop."""
    (tmp_path / "config.json").write_text("{}")
    model = ModelActor("m", EngineConfig(model=str(tmp_path)), scheduler, policy)
    async for message in model.events("c"):
        if isinstance(message, ModelStatus) and message.state == "failed":
            assert str(tmp_path) in message.detail
            break
    model.check_health()
    model.close()
