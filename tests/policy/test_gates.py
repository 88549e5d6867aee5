"""What consulting the gate costs, and what it must not do."""

import builtins
import os
import timeit

import pytest

from messages.policy import Gate
from policy.gates import gate
from policy.machine import observe
from policy.states import Profiling, State
from tests.policy.builders import rules, sample


def settled_gate() -> Gate:
    """The gate of an enabled pairing."""
    fixed = rules()
    state: State = Profiling()
    for _ in range(4):
        state = observe(fixed, state, sample())
    return gate(fixed, state, version=7)


def test_consulting_the_gate_costs_under_a_microsecond() -> None:
    """It is a field of a frozen value."""
    value = settled_gate()
    best = min(timeit.repeat(lambda: value.enabled, number=100_000, repeat=5)) / 100_000
    assert value.enabled
    assert best < 1e-6


def test_deciding_reads_no_environment_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first sample to the verdict and beyond nothing outside the values is touched."""

    def forbidden(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("touched the outside")

    monkeypatch.setattr(builtins, "open", forbidden)
    monkeypatch.setattr(os, "open", forbidden)
    monkeypatch.setattr(os.environ.__class__, "__getitem__", forbidden)
    fixed = rules()
    state: State = Profiling()
    for _ in range(30):
        state = observe(fixed, state, sample())
        decided = gate(fixed, state)
    monkeypatch.undo()
    assert decided.enabled


def test_the_default_gate_is_closed() -> None:
    """A model that has not heard from the policy decodes plainly and measures nothing."""
    assert Gate() == Gate(enabled=False, version=0, measure_every=0)
