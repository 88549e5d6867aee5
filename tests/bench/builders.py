"""Replies with the figures a test needs and plausible ones for the rest."""

from typing import Any

from bench.reply import Draft, Reply


def reply(tps: float = 10.0, tokens: int = 11, **changes: Any) -> Reply:
    """An answer that decodes at `tps` after a first token 0.5 s after it was sent at 100 s."""
    first = 100.5
    fields: dict[str, Any] = {
        "text": "so it goes",
        "finish_reason": "length",
        "prompt_tokens": 7,
        "completion_tokens": tokens,
        "sent_s": 100.0,
        "first_s": first,
        "end_s": first + (tokens - 1) / tps,
        "piece_chars": (1,) * 10,
    }
    return Reply(**(fields | changes))


def draft(rounds: int, accepted: int, depth: int = 3) -> Draft:
    """Counters of `rounds` rounds of `depth` drafts each."""
    return Draft(draft_n=rounds * depth, draft_n_accepted=accepted, draft_rounds=rounds)
