"""What plain and speculative answers to the same prompts say: speed-ups, identity, acceptance, limit. Pure.

Terms: a round drafts, verifies and emits the accepted drafts plus one token; the speed-up is the speculative
decode rate over the plain one, prompt by prompt.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from msgspec import Struct

from bench.prompts import KINDS, ChatPrompt
from bench.reply import Draft, Reply, same_answer

LimitBasis = Literal["verify_cost", "flat_verify"]


class Pair(Struct, frozen=True):
    """One prompt answered both ways, at temperature 0."""

    prompt: ChatPrompt
    plain: Reply
    mtp: Reply

    @property
    def mtp_tps(self) -> float:
        """Decode tokens per second with speculation; the first piece may hold a whole round's tokens."""
        return (self.mtp.completion_tokens - tokens_in_first_piece(self.plain, self.mtp)) / self.mtp.decode_s

    @property
    def speedup(self) -> float:
        """Speculative over plain decode rate."""
        return self.mtp_tps / self.plain.decode_tps

    @property
    def identical(self) -> bool:
        """Whether both answers agree in text, finish reason and token counts."""
        return self.plain.text == self.mtp.text and same_answer(self.plain, self.mtp)


class Limit(Struct, frozen=True):
    """The speed-up of the same rounds with a free drafter, and where the verify cost is from."""

    speedup: float
    basis: LimitBasis


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


def tokens_in_first_piece(plain: Reply, mtp: Reply) -> int:
    """How many tokens the speculative stream's first piece holds.

    Plain decoding streams token by token, so its pieces tell where the tokens of the same text end.
    """
    wanted = mtp.piece_chars[0] if mtp.piece_chars else 0
    covered = 0
    for count, length in enumerate(plain.piece_chars, 1):
        covered += length
        if covered >= wanted:
            return count
    return 1


def rows(pairs: Sequence[Pair]) -> list[KindRow]:
    """One row per kind that has prompts."""
    groups = {kind: [pair for pair in pairs if pair.prompt.kind == kind] for kind in KINDS}
    return [_row(kind, group) for kind, group in groups.items() if group]


def drafted(pairs: Sequence[Pair]) -> Draft:
    """Speculation counters over all prompts."""
    counters = [pair.mtp.draft for pair in pairs if pair.mtp.draft is not None]
    return Draft(
        draft_n=sum(counter.draft_n for counter in counters),
        draft_n_accepted=sum(counter.draft_n_accepted for counter in counters),
        draft_rounds=sum(counter.draft_rounds for counter in counters),
    )


def emitted_per_round(draft: Draft) -> float | None:
    """Mean tokens per round: the accepted drafts and the target's own token; None without rounds."""
    return 1 + draft.draft_n_accepted / draft.draft_rounds if draft.draft_rounds else None


def median_speedup(pairs: Sequence[Pair]) -> float:
    """Median over the prompts."""
    return median(pair.speedup for pair in pairs)


def limit(emitted: float | None, policy: Mapping[str, Any]) -> Limit | None:
    """`emitted` x plain step / verify step, the bound that no drafter of this acceptance can pass.

    The steps come from the server's cost curve (`verify_cost`: rows, ms) where its policy body has one that
    covers one row and the block size; otherwise verifying is taken to cost what a plain step costs, which
    can only make the bound too high. None without rounds.
    """
    if emitted is None:
        return None
    curve = {point["rows"]: point["ms"] for point in policy.get("verify_cost") or ()}
    plain_ms, verify_ms = curve.get(1), curve.get(policy.get("block_size"))
    if plain_ms and verify_ms:
        return Limit(emitted * plain_ms / verify_ms, "verify_cost")
    return Limit(emitted, "flat_verify")


def summary(pairs: Sequence[Pair], policy: Mapping[str, Any], tokens: int) -> dict[str, object]:
    """The object printed last; `policy` is the policy endpoint's body after the run."""
    draft = drafted(pairs)
    emitted = emitted_per_round(draft)
    bound = limit(emitted, policy)
    speedups = [pair.speedup for pair in pairs]
    by_kind = rows(pairs)
    differing = [index for index, pair in enumerate(pairs) if not pair.identical]
    return {
        "speedup_median": round(median_speedup(pairs), 3),
        "speedup_min": round(min(speedups), 3),
        "speedup_by_kind": {row.kind: round(row.speedup, 3) for row in by_kind},
        "request_speedup_median": round(median(p.mtp.request_tps / p.plain.request_tps for p in pairs), 3),
        "identical": not differing,
        "differing_prompts": differing,
        "acceptance_per_position": policy.get("accepted_per_position"),
        "acceptance_rate": round(draft.draft_n_accepted / draft.draft_n, 3) if draft.draft_n else None,
        "emitted_per_round": None if emitted is None else round(emitted, 3),
        "limit": None if bound is None else round(bound.speedup, 3),
        "limit_basis": None if bound is None else bound.basis,
        "limit_share": None if bound is None else round(median_speedup(pairs) / bound.speedup, 3),
        "plain_tokens_per_second": round(median(pair.plain.decode_tps for pair in pairs), 2),
        "mtp_tokens_per_second": round(median(pair.mtp_tps for pair in pairs), 2),
        "draft_n": draft.draft_n,
        "draft_n_accepted": draft.draft_n_accepted,
        "draft_rounds": draft.draft_rounds,
        "not_speculated": [index for index, pair in enumerate(pairs) if pair.mtp.draft is None],
        "prompts": len(pairs),
        "tokens": tokens,
        "speedups": [round(value, 3) for value in speedups],
        "policy": {name: policy.get(name) for name in _POLICY_FIELDS},
    }


_POLICY_FIELDS = ("state", "verdict", "target", "drafter", "hardware", "block_size", "selection", "exact")


def _row(kind: str, pairs: Sequence[Pair]) -> KindRow:
    speedups = [pair.speedup for pair in pairs]
    return KindRow(
        kind=kind,
        prompts=len(pairs),
        plain_tps=median(pair.plain.decode_tps for pair in pairs),
        mtp_tps=median(pair.mtp_tps for pair in pairs),
        speedup=median(speedups),
        speedup_min=min(speedups),
        emitted_per_round=emitted_per_round(drafted(pairs)),
        identical=all(pair.identical for pair in pairs),
    )
