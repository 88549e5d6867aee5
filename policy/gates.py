"""Turns a state into the gate the engine reads."""

from messages.policy import BailOut, Gate
from policy import monitor
from policy.config import PolicyConfig
from policy.rules import Rules
from policy.states import ExactnessDeclined, Forced, Profiling, Settled, State, Unavailable


def gate(rules: Rules, state: State, version: int = 0) -> Gate:
    """The gate in force in `state`."""
    match state:
        case ExactnessDeclined():
            return Gate(version=version)
        case Unavailable(reason="adaptive_disabled"):
            pin = rules.switches.pin
            return Gate(enabled=rules.static_default if pin is None else pin, version=version)
        case Unavailable():
            return Gate(version=version)
        case Forced(enabled):
            return Gate(enabled=enabled, version=version)
        case Profiling():
            return _measuring(rules.config, version)
        case Settled():
            return _settled(rules, state, version)


def _measuring(config: PolicyConfig, version: int) -> Gate:
    paired = config.estimator == "paired"
    return Gate(
        enabled=True,
        version=version,
        measure_every=1,
        slice_rounds=config.slice_rounds if paired else 0,
        slice_plain_tokens=config.slice_plain_tokens if paired else 0,
        probe_rounds=config.probe_rounds,
    )


def _settled(rules: Rules, state: Settled, version: int) -> Gate:
    config = rules.config
    every = monitor.measure_every(config, state)
    return Gate(
        enabled=state.verdict == "enable",
        version=version,
        measure_every=every,
        slice_rounds=config.slice_rounds if every else 0,
        slice_plain_tokens=config.slice_plain_tokens if every else 0,
        bail_out=_bail_out(config, state),
    )


def _bail_out(config: PolicyConfig, state: Settled) -> BailOut | None:
    paired = state.figures.paired
    if paired is None:
        return None
    return BailOut(
        break_even_emitted=paired.emitted_per_round / paired.speedup,
        loss_tokens=config.bail_loss_tokens,
        pause_tokens=config.bail_pause_tokens,
    )
