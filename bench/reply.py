"""One measured answer and the rates that follow from it. Pure; knows neither who answered nor how.

All times are seconds of one monotonic clock. The first token belongs to the prompt phase, so an answer of n
tokens has n - 1 decode steps.
"""

from collections.abc import Sequence

from msgspec import Struct


class Draft(Struct, frozen=True, kw_only=True):
    """Speculation counters of one answer: drafts proposed, drafts kept, verify rounds.

    `draft_accepted_per_position[i]` counts rounds that kept draft i. The times in milliseconds add up to the
    rounds: drafting, verifying, everything else; a server that does not tell them leaves zeros. Rounds that
    verified tokens copied from the text itself count under `copy_*` alone.
    """

    draft_n: int
    draft_n_accepted: int
    draft_rounds: int
    draft_accepted_per_position: tuple[int, ...] = ()
    draft_ms: float = 0.0
    draft_verify_ms: float = 0.0
    draft_overhead_ms: float = 0.0
    copy_n: int = 0
    copy_n_accepted: int = 0
    copy_rounds: int = 0
    copy_ms: float = 0.0

    @property
    def rounds(self) -> int:
        """Rounds of either kind."""
        return self.draft_rounds + self.copy_rounds

    @property
    def emitted(self) -> int:
        """Tokens of all rounds: what was kept, and the target's own token of each."""
        return self.rounds + self.draft_n_accepted + self.copy_n_accepted

    @property
    def round_ms(self) -> float:
        """Mean wall time of a round of either kind; 0 where the server does not tell."""
        spent = self.draft_ms + self.draft_verify_ms + self.draft_overhead_ms + self.copy_ms
        return spent / self.rounds if self.rounds else 0.0


class Reply(Struct, frozen=True, kw_only=True):
    """An answer with the times its request was sent, its first text arrived and its end was announced.

    `piece_chars` holds the length in characters of each piece a stream delivered. `predicted_ms` is the
    server's own time from the first token to the end, in milliseconds, where it tells.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    sent_s: float
    first_s: float
    end_s: float
    cached_tokens: int = 0
    piece_chars: tuple[int, ...] = ()
    draft: Draft | None = None
    predicted_ms: float | None = None

    @property
    def decode_s(self) -> float:
        """From the first text to the end."""
        return self.end_s - self.first_s

    @property
    def decode_tps(self) -> float:
        """Decode steps per second; 0 for an answer of less than two tokens."""
        steps = self.completion_tokens - 1
        return steps / self.decode_s if steps > 0 and self.decode_s > 0 else 0.0

    @property
    def request_tps(self) -> float:
        """Tokens per second of the whole request, its prompt phase included."""
        return self.completion_tokens / (self.end_s - self.sent_s)

    @property
    def ttft_ms(self) -> float:
        """Time to first token in milliseconds."""
        return (self.first_s - self.sent_s) * 1e3


def decode_tps(replies: Sequence[Reply]) -> float:
    """Decode tokens per second of answers generated together: the sum over the streams."""
    return sum(reply.decode_tps for reply in replies)


def throughput_tps(replies: Sequence[Reply]) -> float:
    """Tokens per second from the first request sent to the last answer's end, prompt phases included."""
    span = max(reply.end_s for reply in replies) - min(reply.sent_s for reply in replies)
    return sum(reply.completion_tokens for reply in replies) / span


def same_answer(one: Reply, other: Reply) -> bool:
    """Whether two answers agree in text, finish reason and both token counts.

    mlx-lm's streaming detokenizer drops a single space at the very start, so that much may differ.
    """
    return _compared(one) == _compared(other)


def _compared(reply: Reply) -> tuple[str, str, int, int]:
    return (
        reply.text.removeprefix(" "),
        reply.finish_reason,
        reply.prompt_tokens,
        reply.completion_tokens,
    )
