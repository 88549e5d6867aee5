"""The live audit in the engine: invisible while rounds are exact, and the end of speculation when not."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from engine.audit import LiveAudit
from engine.config import EngineConfig
from engine.engine import Engine
from engine.identity import Identity
from engine.loading import LoadedModel
from engine.speculator import Speculator
from messages.policy import FellBack, Gate
from messages.scheduling import ModelName
from speculative.target import Forward, Target
from tests.engine.conftest import finish_of, request, run
from tests.engine.drafters import following
from tests.engine.test_speculation import MEASURE, OPEN, REQUESTS, all_right, outcome, varying, whole

Build = Callable[..., Engine]


class CorruptTarget(Target):
    """A target whose verify blocks differ by rounding in their second row."""

    def verify(self, tokens: mx.array, block: Any) -> Forward:
        """As the target does, with one row changed."""
        out = super().verify(tokens, block)
        noise = mx.zeros_like(out.logits)
        noise[:, 1] = 1e-3
        return out._replace(logits=out.logits + noise)


@pytest.fixture
def auditing(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds engines that audit every round."""
    monkeypatch.setattr("engine.engine.prefill_chunk", lambda *_: 16)

    def build(
        texts: list[list[int]],
        gate: Gate = OPEN,
        right: Callable[[int, int], int] = varying,
        target: type[Target] = Target,
        share: float = 1.0,
        allow_inexact: bool = False,
    ) -> Engine:
        identity = Identity(ModelName("m"), "1")
        drafter = following(texts, right)
        speculator = Speculator(drafter, 4, identity, LiveAudit(share), allow_inexact)
        speculator.is_exact = True
        speculator.gate = gate
        engine = Engine(loaded, EngineConfig(model="tiny"), target(loaded.model), speculator)
        engine.warmup(lambda text: None)
        return engine

    return build


@pytest.mark.parametrize("name", ["length", "penalties", "logprobs", "sampled", "two tokens"])
def test_auditing_every_round_changes_nothing(engine: Engine, auditing: Build, name: str) -> None:
    """Text, ids, reason and usage are those of plain decode, sampled and penalised requests included."""
    item = request(**REQUESTS[name])
    plain = run(engine, item)["r"]
    fast = auditing([whole(item, plain)])
    got = run(fast, item)["r"]
    assert outcome(got)[:4] == outcome(plain)[:4]
    draft, counts = finish_of(got).timings.draft, fast._speculator.counts
    assert counts.audited == (draft.draft_rounds if draft else 0)
    assert (counts.mismatches, counts.fallbacks) == (0, ())


def test_a_mismatch_stops_speculation_and_not_the_answer(engine: Engine, auditing: Build) -> None:
    """The request goes on in plain decode, later ones do not speculate even when they ask to."""
    items = [request("a", max_tokens=30), request("b", max_tokens=30, speculative=True)]
    texts = {item.request_id: run(engine, item)[item.request_id] for item in items}
    fast = auditing(
        [whole(item, texts[item.request_id]) for item in items], right=all_right, target=CorruptTarget
    )
    for item, rounds in zip(items, (1, None), strict=True):
        got = run(fast, item)[item.request_id]
        assert outcome(got)[:4] == outcome(texts[item.request_id])[:4]
        draft = finish_of(got).timings.draft
        assert (draft.draft_rounds if draft else None) == rounds
    counts = fast._speculator.counts
    assert (counts.audited, counts.mismatches) == (1, 1)
    assert counts.fallbacks == (FellBack("audit", 1),)
    found = fast._speculator.audit.take()
    assert "verify block position 1 differs from the single-token chain in " in found.reason
    assert not found.changes_token


def test_a_request_waiting_in_the_batch_does_not_resume(engine: Engine, auditing: Build) -> None:
    """After a mismatch a request that comes back from the batch decodes plainly to its end."""
    first, second = request("a", max_tokens=60), request("b", prompt="another one", max_tokens=8)
    plain = run(engine, first)["a"], run(engine, second)["b"]
    texts = [whole(first, plain[0]), whole(second, plain[1])]
    fast = auditing(texts, target=CorruptTarget)
    got = run(fast, first, second)
    assert outcome(got["a"])[:3] == outcome(plain[0])[:3]
    assert finish_of(got["a"]).timings.draft.draft_rounds == 1


def test_allowed_inexactness_is_counted_and_goes_on(engine: Engine, auditing: Build) -> None:
    """With MLXCEL_MTP_ALLOW_INEXACT every mismatch counts and none stops anything."""
    item = request(max_tokens=30)
    plain = run(engine, item)["r"]
    fast = auditing([whole(item, plain)], right=all_right, target=CorruptTarget, allow_inexact=True)
    draft = finish_of(run(fast, item)["r"]).timings.draft
    counts = fast._speculator.counts
    assert counts.mismatches == counts.audited == draft.draft_rounds > 1
    assert counts.fallbacks == ()


def test_an_audited_round_is_nobodys_measurement(engine: Engine, auditing: Build) -> None:
    """The sample holds the other rounds only, and no slice with an audited round in it."""
    item = request(max_tokens=60)
    text = whole(item, run(engine, item)["r"])
    fast = auditing([text], MEASURE, share=0.25)
    finish = finish_of(run(fast, item)["r"])
    (sample,) = fast.samples
    assert sample.rounds == finish.timings.draft.draft_rounds - sample.counts.audited
    assert sample.counts.audited >= 3
    assert sample.accepted == sum(sample.accepted_per_position)
    # Two rounds make a slice, so every fourth round audited spoils every second slice.
    clean = auditing([text], MEASURE, share=0.0)
    run(clean, item)
    assert 0 < len(sample.slices) <= len(clean.samples[0].slices) / 2 + 1


def due(share: float, rounds: int) -> list[int]:
    """Which of the rounds are audited."""
    audit = LiveAudit(share)
    return [number for number in range(rounds) if audit.is_due()]


def test_the_share_is_counted_out() -> None:
    """The first round is audited, then one in every 1 / share; the same ones in every run."""
    assert due(0.0, 50) == []
    assert due(1.0, 5) == [0, 1, 2, 3, 4]
    assert due(0.25, 17) == [0, 4, 8, 12, 16]
    found = due(0.002, 2000)
    assert found[0] == 0
    assert len(found) == 4
    assert due(0.002, 2000) == found
