"""What a speculative round costs beside a plain step, and the bound that follows. Pure.

A round drafts, verifies and emits the accepted drafts plus one token. Times are means in milliseconds.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from bench.reply import Draft

LimitBasis = Literal["rounds", "verify_cost", "flat_verify"]


class RoundTimes(Struct, frozen=True, kw_only=True):
    """A plain decode step, and the parts of a round: drafting, verifying, everything else."""

    plain_ms: float
    draft_ms: float
    verify_ms: float
    overhead_ms: float

    @property
    def round_ms(self) -> float:
        """The whole round."""
        return self.draft_ms + self.verify_ms + self.overhead_ms

    @property
    def drafter_share(self) -> float:
        """Share of a round spent on drafting, 0 to 1."""
        return self.draft_ms / self.round_ms


class Limit(Struct, frozen=True):
    """The speed-up of the same rounds with a free drafter and no overhead, and where the times are from."""

    speedup: float
    basis: LimitBasis


def emitted_per_round(draft: Draft) -> float | None:
    """Mean tokens per round, accepted ones and the target's own; None without rounds."""
    return draft.emitted / draft.rounds if draft.rounds else None


def round_times(plain_ms: float, draft: Draft) -> RoundTimes | None:
    """The drafter's mean round beside a plain step of `plain_ms`; None where the server tells no times."""
    if not (draft.draft_rounds and draft.draft_verify_ms):
        return None
    return RoundTimes(
        plain_ms=plain_ms,
        draft_ms=draft.draft_ms / draft.draft_rounds,
        verify_ms=draft.draft_verify_ms / draft.draft_rounds,
        overhead_ms=draft.draft_overhead_ms / draft.draft_rounds,
    )


def limit(emitted: float | None, times: RoundTimes | None, policy: Mapping[str, Any]) -> Limit | None:
    """`emitted` x plain step / verify step, the bound that no drafter of this acceptance can pass.

    The steps are those of this run where the server told them, else those of its probe's cost curve where
    the policy body covers one row and the block size; otherwise verifying is taken to cost what a plain step
    costs, which can only make the bound too high. None without rounds.
    """
    if emitted is None:
        return None
    if times is not None:
        return Limit(emitted * times.plain_ms / times.verify_ms, "rounds")
    curve = cost_curve(policy)
    plain_ms, verify_ms = curve.get(1), curve.get(policy.get("block_size") or 0)
    if plain_ms and verify_ms:
        return Limit(emitted * plain_ms / verify_ms, "verify_cost")
    return Limit(emitted, "flat_verify")


def cost_curve(policy: Mapping[str, Any]) -> dict[int, float]:
    """Milliseconds of a verify forward by number of rows, as the server's probe measured; may be empty."""
    return {point["rows"]: point["ms"] for point in policy.get("verify_cost") or ()}


def plain_scale(policy: Mapping[str, Any]) -> float | None:
    """Time of an ordinary decode step over that of a plain step under the kernels in force, at most 1.

    A server that can speculate may decode plainly under kernels that cost more than those of a server
    without a drafter, unless its selection is the default one. None where the policy body does not tell both
    times.
    """
    if policy.get("selection") == "default":
        return 1.0
    ordinary_ms, selected_ms = policy.get("plain_step_ms"), cost_curve(policy).get(1)
    return min(1.0, ordinary_ms / selected_ms) if ordinary_ms and selected_ms else None
