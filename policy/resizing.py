"""Chooses among the block sizes of one pairing, which the cluster holds as pairings of their own.

The block size is part of what a verdict belongs to, so a replica that changes it starts another profile or
finds another verdict; the ones it left stay, to be compared with.
"""

from typing import TYPE_CHECKING

import msgspec

from policy.block_size import RoundCosts, recommend
from policy.states import Figures, Settled, uncovered

if TYPE_CHECKING:
    from policy.cluster import Cluster, Entry


def recommended(cluster: "Cluster", entry: "Entry", figures: Figures) -> int | None:
    """The block size the evidence of `entry` and of its other sizes favours; None where nothing is known."""
    dispatch = entry.dispatch
    per_round = figures.per_round
    costs = RoundCosts(
        verify=dispatch.verify_cost,
        draft_step_ms=dispatch.draft_step_ms,
        overhead_ms=per_round.overhead_ms if per_round else 0.0,
    )
    return recommend(
        dispatch.pairing.block_size,
        figures.positions,
        costs,
        _measured_speedups(cluster, entry),
        dispatch.block_sizes,
    )


def wanted(cluster: "Cluster", entry: "Entry") -> int | None:
    """The size a replica that may change should serve; None without a verdict on the present one."""
    if not isinstance(entry.state, Settled):
        return None
    return recommended(cluster, entry, entry.state.figures)


def _measured_speedups(cluster: "Cluster", entry: "Entry") -> dict[int, float | None]:
    """By block size, what was measured where there is a verdict."""
    found: dict[int, float | None] = {}
    for other in cluster.entries.values():
        state = uncovered(other.state)
        if isinstance(state, Settled) and _without_size(other) == _without_size(entry):
            paired = state.figures.paired
            found[other.dispatch.pairing.block_size] = (
                state.figures.original_speedup if paired is None else paired.speedup
            )
    return found


def _without_size(entry: "Entry") -> tuple[object, str]:
    pairing = msgspec.structs.replace(entry.dispatch.pairing, block_size=0)
    return pairing, entry.dispatch.fingerprint
