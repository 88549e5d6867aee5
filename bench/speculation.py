"""What plain and speculative answers to the same prompts say: speed-ups, identity, acceptance, limit. Pure.

The speed-up is plain over speculative decode time per token, prompt by prompt.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from bench.pace import decode_ms, ms_per_token
from bench.prompts import KINDS, ChatPrompt
from bench.reply import Draft, Reply, same_answer
from bench.rounds import (
    Limit,
    RoundTimes,
    cost_curve,
    emitted_per_round,
    limit,
    plain_scale,
    round_times,
)

_POLICY_FIELDS = (
    *("state", "verdict", "target", "drafter", "hardware", "block_size", "selection", "exact"),
    *("speedup", "speedup_low", "speedup_high"),
)


_POSITIONS = "draft_accepted_per_position"


class Pair(Struct, frozen=True):
    """One prompt answered both ways, at temperature 0."""

    prompt: ChatPrompt
    plain: Reply
    mtp: Reply

    @property
    def plain_tps(self) -> float:
        """Decode tokens per second without speculation."""
        return 1e3 / ms_per_token(self.plain, self.plain)

    @property
    def mtp_tps(self) -> float:
        """Decode tokens per second with speculation."""
        return 1e3 / ms_per_token(self.plain, self.mtp)

    @property
    def speedup(self) -> float:
        """Speculative over plain decode rate."""
        return self.mtp_tps / self.plain_tps

    @property
    def identical(self) -> bool:
        """Whether both answers agree in text, finish reason and token counts."""
        return self.plain.text == self.mtp.text and same_answer(self.plain, self.mtp)


class KindRow(Struct, frozen=True, kw_only=True):
    """The prompts of one kind: medians, and the worst speed-up. Rates are decode tokens per second."""

    kind: str
    prompts: int
    plain_tps: float
    mtp_tps: float
    speedup: float
    speedup_min: float
    emitted_per_round: float | None
    identical: bool


class Findings(Struct, frozen=True, kw_only=True):
    """What holds over all prompts.

    `acceptance` holds shares of the drafter's rounds that kept draft i, as counted in this run or, where the
    server does not count them per answer, as its policy has them. `plain_scale` as in `bench.rounds`.
    """

    speedup: float
    draft: Draft
    emitted_per_round: float | None
    acceptance: tuple[float, ...] | None
    times: RoundTimes | None
    limit: Limit | None
    plain_scale: float | None


def rows(pairs: Sequence[Pair]) -> list[KindRow]:
    """One row per kind that has prompts."""
    groups = {kind: [pair for pair in pairs if pair.prompt.kind == kind] for kind in KINDS}
    return [_row(kind, group) for kind, group in groups.items() if group]


def drafted(pairs: Sequence[Pair]) -> Draft:
    """Speculation counters and times over all prompts."""
    total = Draft(draft_n=0, draft_n_accepted=0, draft_rounds=0)
    for draft in (pair.mtp.draft for pair in pairs):
        if draft is not None:
            total = _sum(total, draft)
    return total


def findings(pairs: Sequence[Pair], policy: Mapping[str, Any]) -> Findings:
    """`policy` is the policy endpoint's body after the run."""
    draft = drafted(pairs)
    emitted = emitted_per_round(draft)
    steps = sum(pair.plain.completion_tokens - 1 for pair in pairs)
    times = round_times(sum(decode_ms(pair.plain) for pair in pairs) / steps, draft)
    return Findings(
        speedup=median(pair.speedup for pair in pairs),
        draft=draft,
        emitted_per_round=emitted,
        acceptance=_acceptance(draft, policy),
        times=times,
        limit=limit(emitted, times, policy),
        plain_scale=plain_scale(policy),
    )


def conditional(acceptance: Sequence[float]) -> list[float | None]:
    """Acceptance of each draft given that all before it were accepted; None where none ever was."""
    before = (1.0, *acceptance)
    return [kept / reached if reached else None for reached, kept in zip(before, acceptance, strict=False)]


def summary(pairs: Sequence[Pair], policy: Mapping[str, Any], tokens: int) -> dict[str, object]:
    """The object printed last; `policy` is the policy endpoint's body after the run."""
    found = findings(pairs, policy)
    speedups = [pair.speedup for pair in pairs]
    differing = [index for index, pair in enumerate(pairs) if not pair.identical]
    scale = found.plain_scale
    return {
        "speedup_median": _rounded(found.speedup),
        "speedup_min": _rounded(min(speedups)),
        "speedup_by_kind": {row.kind: _rounded(row.speedup) for row in rows(pairs)},
        "speedup_vs_ordinary_median": None if scale is None else _rounded(found.speedup * scale),
        "plain_scale": _rounded(scale),
        "request_speedup_median": _rounded(median(p.mtp.request_tps / p.plain.request_tps for p in pairs)),
        "identical": not differing,
        "differing_prompts": differing,
        "tokens_compared": sum(pair.plain.completion_tokens for pair in pairs),
        "plain_tokens_per_second": _rounded(median(pair.plain_tps for pair in pairs)),
        "mtp_tokens_per_second": _rounded(median(pair.mtp_tps for pair in pairs)),
        **_acceptance_figures(found),
        **_cost_figures(found, policy),
        "not_speculated": [index for index, pair in enumerate(pairs) if pair.mtp.draft is None],
        "prompts": len(pairs),
        "tokens": tokens,
        "speedups": [_rounded(value) for value in speedups],
        "policy": {name: policy.get(name) for name in _POLICY_FIELDS},
    }


def _acceptance_figures(found: Findings) -> dict[str, object]:
    draft, acceptance = found.draft, found.acceptance
    return {
        "acceptance_per_position": None if acceptance is None else [_rounded(rate) for rate in acceptance],
        "acceptance_conditional": (
            None if acceptance is None else [_rounded(rate) for rate in conditional(acceptance)]
        ),
        "acceptance_rate": _rounded(draft.draft_n_accepted / draft.draft_n) if draft.draft_n else None,
        "emitted_per_round": _rounded(found.emitted_per_round),
        "draft_n": draft.draft_n,
        "draft_n_accepted": draft.draft_n_accepted,
        "draft_rounds": draft.draft_rounds,
        "copy_n": draft.copy_n,
        "copy_n_accepted": draft.copy_n_accepted,
        "copy_rounds": draft.copy_rounds,
    }


def _cost_figures(found: Findings, policy: Mapping[str, Any]) -> dict[str, object]:
    times, bound = found.times, found.limit
    return {
        "limit": None if bound is None else _rounded(bound.speedup),
        "limit_basis": None if bound is None else bound.basis,
        "limit_share": None if bound is None else _rounded(found.speedup / bound.speedup),
        "drafter_share": None if times is None else _rounded(times.drafter_share),
        "round_ms": None
        if times is None
        else {k: _rounded(v) for k, v in msgspec.structs.asdict(times).items()},
        "verify_cost": [{"rows": count, "ms": ms} for count, ms in sorted(cost_curve(policy).items())]
        or None,
        "plain_step_ms": policy.get("plain_step_ms"),
    }


def _row(kind: str, pairs: Sequence[Pair]) -> KindRow:
    speedups = [pair.speedup for pair in pairs]
    return KindRow(
        kind=kind,
        prompts=len(pairs),
        plain_tps=median(pair.plain_tps for pair in pairs),
        mtp_tps=median(pair.mtp_tps for pair in pairs),
        speedup=median(speedups),
        speedup_min=min(speedups),
        emitted_per_round=emitted_per_round(drafted(pairs)),
        identical=all(pair.identical for pair in pairs),
    )


def _acceptance(draft: Draft, policy: Mapping[str, Any]) -> tuple[float, ...] | None:
    if draft.draft_rounds and draft.draft_accepted_per_position:
        return tuple(kept / draft.draft_rounds for kept in draft.draft_accepted_per_position)
    rates = policy.get("accepted_per_position")
    return None if rates is None else tuple(rates)


def _sum(one: Draft, other: Draft) -> Draft:
    positions = zip_longest(one.draft_accepted_per_position, other.draft_accepted_per_position, fillvalue=0)
    counted = [name for name in Draft.__struct_fields__ if name != _POSITIONS]
    sums = {name: getattr(one, name) + getattr(other, name) for name in counted}
    return Draft(**sums, draft_accepted_per_position=tuple(a + b for a, b in positions))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
