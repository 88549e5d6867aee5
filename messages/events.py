"""What happened to a request: events in past tense, produced by the engine, consumed by the ingress.

Terms, fixed here once: *accepted* counts drafts kept in a round and excludes the token the target itself
adds; *emitted* = accepted + 1; *depth* = drafts per round = block size - 1.
"""

from typing import Literal

from msgspec import Struct

from messages.requests import RequestId

FinishReason = Literal["stop", "length"]
FailureKind = Literal["internal", "worker_lost", "worker_not_ready", "shutting_down", "timeout"]
DraftKind = Literal["mtp", "model"]


class TopLogprob(Struct, frozen=True, gc=False):
    """One alternative at a position: token text, its UTF-8 bytes and natural-log probability."""

    token_id: int
    text: str
    raw: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """The chosen token of a position with its log-probability and the best alternatives."""

    token_id: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


class DraftTimings(Struct, frozen=True, kw_only=True):
    """Speculation counters of one request; present only when at least one verify round ran.

    `draft_accepted_per_position[i]` counts rounds that kept draft i (0-based). The times in milliseconds add
    up to the drafter's rounds: proposing, verify forwards, and everything else. Rounds whose drafts were
    copied from the text itself count under `copy_*` alone; `copy_ms` is their wall time.
    """

    draft_n: int
    draft_n_accepted: int
    draft_rounds: int
    draft_kind: DraftKind
    draft_accepted_per_position: tuple[int, ...] = ()
    draft_ms: float = 0.0
    draft_verify_ms: float = 0.0
    draft_overhead_ms: float = 0.0
    copy_n: int = 0
    copy_n_accepted: int = 0
    copy_rounds: int = 0
    copy_ms: float = 0.0


class Timings(Struct, frozen=True, kw_only=True):
    """Wall times of one request in milliseconds: prompt processing and prediction, with token counts."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft: DraftTimings | None = None


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of one request; `cached_tokens` of the prompt came from the prompt cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class TokensEmitted(Struct, frozen=True, tag=True, kw_only=True):
    """Text that became final: one or more tokens of one step or one speculative round.

    `text` may be empty while a multi-byte character or a possible stop string is still open.
    """

    request_id: RequestId
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class Finished(Struct, frozen=True, tag=True, kw_only=True):
    """The request ended normally; nothing follows."""

    request_id: RequestId
    reason: FinishReason
    usage: Usage
    timings: Timings


class Failed(Struct, frozen=True, tag=True, kw_only=True):
    """The request ended by a fault of ours; nothing follows."""

    request_id: RequestId
    kind: FailureKind
    message: str


class Cancelled(Struct, frozen=True, tag=True, kw_only=True):
    """The request was aborted on demand; nothing follows and nobody may be listening any more."""

    request_id: RequestId


Event = TokensEmitted | Finished | Failed | Cancelled
TERMINAL = (Finished, Failed, Cancelled)
