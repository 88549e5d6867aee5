"""Replaying a recorded trace."""

import msgspec
import numpy as np
import pytest

from messages.policy import Message
from policy import replay
from policy.config import PolicyConfig
from policy.switches import Switches
from tests.policy.builders import CPU, attach, sample
from tests.policy.traffic import Traffic
from tests.policy.traffic import sample as simulated


def trace(speedup: float = 1.8, requests: int = 6) -> list[Message]:
    """One replica and its requests, an hour apart."""
    return [attach(), *[sample(speedup, at_s=3600.0 * i) for i in range(1, requests + 1)]]


def test_a_trace_survives_as_json_lines() -> None:
    """One message a line, decoded to equal values."""
    lines = replay.encode(trace())
    assert lines.count(b"\n") == len(trace())
    assert replay.decode(lines) == trace()


def test_what_is_no_message_is_refused() -> None:
    """A trace is not silently shortened."""
    with pytest.raises(msgspec.ValidationError):
        replay.decode(b'{"type": "Nonsense"}\n')


def test_replaying_reaches_the_verdict_of_the_recording() -> None:
    """Each step shows what would have been published; the leases of that time play no part."""
    states = [step.snapshot.top.state for step in replay.steps(trace())]
    assert states == ["profiling"] * 4 + ["settled"] * 3
    (change,) = replay.verdict_changes(trace())
    assert (change.at_s, change.verdict, change.speedup) == (4 * 3600.0, "enable", pytest.approx(1.8))


def test_other_numbers_may_lead_elsewhere() -> None:
    """A gain of 20 % settles at a margin of 5 %, is measured on at 20 %, and is refused by the original."""
    recorded: list[Message] = [attach(hardware=CPU), *[sample(1.2, 64)] * 6]
    assert [change.verdict for change in replay.verdict_changes(recorded)] == ["enable"]
    assert replay.verdict_changes(recorded, PolicyConfig(margin=0.2)) == []
    original = replay.verdict_changes(recorded, PolicyConfig(estimator="measured"))
    assert [change.verdict for change in original] == ["decline"]
    assert replay.verdict_changes(recorded, switches=Switches(pin=True)) == []


def test_replay_is_deterministic() -> None:
    """The same trace gives the same values, step by step."""
    rng = np.random.default_rng(5)
    noisy: list[Message] = [attach(), *[simulated(Traffic(speedup=1.1), rng, 40) for _ in range(20)]]
    assert list(replay.steps(noisy)) == list(replay.steps(noisy))


def test_a_reversal_is_a_second_change() -> None:
    """Good traffic, then bad: both verdicts appear in order."""
    good, bad = trace(1.8, 5), [sample(0.7, at_s=1e5 + i) for i in range(20)]
    assert [change.verdict for change in replay.verdict_changes([*good, *bad])] == ["enable", "decline"]
