"""The persisted form of a verdict and of an unfinished profile; no prompt text, no token ids."""

import math
from typing import Literal

import msgspec
from msgspec import Struct

from messages.policy import MtpDispatch, Pairing, Sample, Verdict
from policy.estimator_paired import Estimate
from policy.evidence import Evidence
from policy.rules import Rules, measurement_rule
from policy.states import Figures, Settled

HINT_VERSION: Literal[1] = 1


class Hint(Struct, frozen=True, kw_only=True):
    """Body of `<stem>.json`. The first eight fields are the original's, the rest says how it was measured."""

    version: int
    target: str
    drafter: str
    hardware: str
    block_size: int
    verdict: Verdict
    acceptance_rate: float
    samples: int
    fingerprint: str
    rule: str
    settled_at: float
    figures: Figures = Figures()


class StoredProfile(Struct, frozen=True, kw_only=True):
    """Body of `<stem>.profile.json`: the measurements so far, so that a restart resumes."""

    version: int
    target: str
    drafter: str
    hardware: str
    block_size: int
    fingerprint: str
    samples: tuple[Sample, ...]
    probe_means: tuple[float, ...] = ()


def hint_of(rules: Rules, state: Settled) -> Hint:
    """What to persist of a verdict."""
    pairing = rules.dispatch.pairing
    return Hint(
        version=HINT_VERSION,
        target=pairing.target,
        drafter=pairing.drafter,
        hardware=pairing.hardware,
        block_size=pairing.block_size,
        verdict=state.verdict,
        acceptance_rate=state.acceptance_rate,
        samples=state.samples,
        fingerprint=rules.dispatch.fingerprint,
        rule=measurement_rule(rules.config),
        settled_at=state.settled_at,
        figures=state.figures,
    )


def settled_of(hint: Hint) -> Settled:
    """The state a persisted verdict restores."""
    return Settled(
        verdict=hint.verdict,
        acceptance_rate=hint.acceptance_rate,
        samples=hint.samples,
        source="restored",
        settled_at=hint.settled_at,
        figures=hint.figures,
    )


def profile_of(dispatch: MtpDispatch, evidence: Evidence) -> StoredProfile:
    """What to persist of an unfinished profile."""
    pairing = dispatch.pairing
    return StoredProfile(
        version=HINT_VERSION,
        target=pairing.target,
        drafter=pairing.drafter,
        hardware=pairing.hardware,
        block_size=pairing.block_size,
        fingerprint=dispatch.fingerprint,
        samples=evidence.samples,
        probe_means=evidence.probe_means,
    )


def is_usable(stored: Hint | StoredProfile, dispatch: MtpDispatch) -> bool:
    """Whether a stored body is of this version, belongs to this very pairing, and holds possible numbers."""
    pairing = Pairing(
        target=stored.target,
        drafter=stored.drafter,
        hardware=stored.hardware,
        block_size=stored.block_size,
    )
    if stored.version != HINT_VERSION or pairing != dispatch.pairing:
        return False
    if stored.fingerprint != dispatch.fingerprint:
        return False
    return not isinstance(stored, Hint) or _in_range(stored)


def _in_range(hint: Hint) -> bool:
    return (
        0 <= hint.acceptance_rate <= 1
        and hint.samples >= 1
        and math.isfinite(hint.settled_at)
        and all(0 <= rate <= 1 for rate in hint.figures.positions)
        and (hint.figures.paired is None or _is_possible(hint.figures.paired))
    )


def _is_possible(found: Estimate) -> bool:
    values = msgspec.structs.astuple(found)
    return all(math.isfinite(value) and value > 0 for value in values) and (
        found.low <= found.speedup <= found.high
    )
