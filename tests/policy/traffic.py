"""Simulated traffic of a pairing whose true speed-up is known: geometric acceptance, noisy wall times."""

import numpy as np
from msgspec import Struct

from messages.policy import Sample, Slice
from messages.scheduling import ModelName

PLAIN_MS = 40.0


class Traffic(Struct, frozen=True, kw_only=True):
    """K, the chance that a draft is accepted, the true speed-up, and the relative noise of every timing."""

    speedup: float
    block_size: int = 4
    acceptance: float = 0.6
    noise: float = 0.10
    slice_rounds: int = 8
    slice_plain_tokens: int = 8

    @property
    def round_ms(self) -> float:
        """The round cost at which the speed-up is exactly `speedup`."""
        emitted = sum(self.acceptance**i for i in range(self.block_size))
        return emitted * PLAIN_MS / self.speedup


def accepted_drafts(traffic: Traffic, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """Accepted drafts of each round, int array of shape (rounds,)."""
    kept = rng.random((rounds, traffic.block_size - 1)) < traffic.acceptance
    return kept.cumprod(axis=1).sum(axis=1)


def sample(traffic: Traffic, rng: np.random.Generator, rounds: int, at_s: float = 0.0) -> Sample:
    """One measured request of `rounds` rounds in slices, with two probe steps for the original estimator."""
    accepted = accepted_drafts(traffic, rng, rounds)
    round_ms = traffic.round_ms * (1 + traffic.noise * rng.standard_normal(rounds))
    starts = range(0, rounds, traffic.slice_rounds)
    plain = PLAIN_MS * (1 + traffic.noise * rng.standard_normal((len(starts), traffic.slice_plain_tokens)))
    slices = []
    for row, start in enumerate(starts):
        part = slice(start, start + traffic.slice_rounds)
        taken = accepted[part]
        slices.append(
            Slice(
                rounds=len(taken),
                emitted=int(taken.sum()) + len(taken),
                mtp_ms=float(round_ms[part].sum()),
                plain_tokens=traffic.slice_plain_tokens,
                plain_ms=float(plain[row].sum()),
            )
        )
    total_ms = float(round_ms.sum())
    probe_ms = float((PLAIN_MS * (1 + traffic.noise * rng.standard_normal(2))).sum())
    positions = [int((accepted > i).sum()) for i in range(traffic.block_size - 1)]
    return Sample(
        model=ModelName("m"),
        incarnation="1",
        rounds=rounds,
        proposed=rounds * (traffic.block_size - 1),
        accepted=int(accepted.sum()),
        emitted=int(accepted.sum()) + rounds,
        accepted_per_position=tuple(positions),
        slices=tuple(slices),
        draft_ms=0.2 * total_ms,
        verify_ms=0.75 * total_ms,
        overhead_ms=0.05 * total_ms,
        probe_rounds=2,
        probe_ms=probe_ms,
        at_s=at_s,
    )
