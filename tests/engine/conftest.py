"""An engine on the tiny checkpoint, and a way to run requests to their end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.blas import Blas
from engine.config import EngineConfig
from engine.engine import Engine
from engine.forwarder import Forwarded, TappedForwarder
from engine.identity import Identity
from engine.loading import LoadedModel, load
from engine.speculator import Speculator
from messages.events import Event, Finished, TokensEmitted
from messages.policy import Gate
from messages.requests import GenerateRequest, RequestId, SamplingParams
from messages.scheduling import ModelName
from speculative.drafter import Drafter
from speculative.target import Target
from tests import tiny

NO_BLAS = Blas(source="vendored", version="", threads=1)
# The ids of a, b and c in the tiny vocabulary.
LETTERS = tuple(tiny.tokenizer().encode("abc").ids)

Build = Callable[..., Engine]


@pytest.fixture(scope="session")
def loaded(tiny_checkpoint: Path) -> LoadedModel:
    """The tiny checkpoint in memory."""
    return load(EngineConfig(model=str(tiny_checkpoint)), NO_BLAS, lambda text: None)


@pytest.fixture
def make_engine(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """A warmed-up engine with a prefill chunk of 16 tokens."""

    def make(**settings: object) -> Engine:
        engine = Engine(loaded, EngineConfig(model="tiny", **settings))  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr("engine.engine.prefill_chunk", lambda *_: 16)
        engine.warmup(lambda text: None)
        return engine

    return make


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine with four slots."""
    return make_engine()


@pytest.fixture(scope="module")
def target(loaded: LoadedModel) -> Target:
    """The tiny model, tapped."""
    return Target(loaded.model)


@pytest.fixture
def speculating(loaded: LoadedModel, target: Target, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds engines with a drafter and a gate, an open one unless told otherwise."""
    monkeypatch.setattr("engine.engine.prefill_chunk", lambda *_: 16)

    def build(
        drafter: Drafter,
        gate: Gate | None = None,
        block_size: int = 4,
        copies: bool = False,
        **settings: object,
    ) -> Engine:
        speculator = Speculator(drafter, block_size, Identity(ModelName("m"), "1"), copies=copies)
        speculator.is_exact = True
        speculator.gate = gate or Gate(enabled=True, version=1)
        config = EngineConfig(model="tiny", **settings)  # pyright: ignore[reportArgumentType]
        engine = Engine(loaded, config, target, speculator)
        engine.warmup(lambda text: None)
        return engine

    return build


def request(name: str = "r", prompt: str = "hello world", **changes: object) -> GenerateRequest:
    """A greedy request for 12 tokens; keyword arguments go to the request or to its sampling."""
    sampling = {k: changes.pop(k) for k in list(changes) if k in SamplingParams.__struct_fields__}
    fields = {"max_tokens": 12, "ignore_eos": True} | changes
    return GenerateRequest(
        request_id=RequestId(name),
        client="c",
        prompt=tuple(tiny.tokenizer().encode(prompt).ids),
        sampling=SamplingParams(**({"temperature": 0.0} | sampling)),  # pyright: ignore[reportArgumentType]
        **fields,  # pyright: ignore[reportArgumentType]
    )


def run(engine: Engine, *requests: GenerateRequest) -> dict[str, list[Event]]:
    """Submit all, step until idle; events by request id."""
    events: dict[str, list[Event]] = {r.request_id: [] for r in requests}
    for item in requests:
        engine.submit(item)
    while engine.active:
        for event in engine.step():
            events[event.request_id].append(event)
    return events


def run_joined(
    engine: Engine,
    first: GenerateRequest,
    second: GenerateRequest,
    tick: int,
    joining: Callable[[], None] = lambda: None,
) -> dict[str, list[Event]]:
    """Events by request id when `second` comes after `tick` steps, `joining` being called just before."""
    events: dict[str, list[Event]] = {first.request_id: [], second.request_id: []}
    engine.submit(first)
    for step in range(200):
        if step == tick:
            joining()
            engine.submit(second)
        for event in engine.step():
            events[event.request_id].append(event)
        if not engine.active:
            break
    return events


def text_of(events: list[Event]) -> str:
    """All text of a request."""
    return "".join(event.text for event in events if isinstance(event, TokensEmitted))


def finish_of(events: list[Event]) -> Finished:
    """The closing event."""
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def forwards_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward of a tapped target from now on, verify blocks left out."""
    seen: list[int] = []
    honest = TappedForwarder.__call__

    def call(self: TappedForwarder, tokens: mx.array, caches: Sequence[Any]) -> Forwarded:
        seen.append(tokens.shape[1])
        return honest(self, tokens, caches)

    monkeypatch.setattr(TappedForwarder, "__call__", call)
    return seen
