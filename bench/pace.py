"""How long an answer's decoding took per token, by the server's clock where it tells. Pure.

The first token belongs to the prompt phase. A speculative answer begins with a whole round's tokens at once,
so those are found and left out, lest they count as decoded in no time.
"""

from math import ceil

from bench.errors import BenchError
from bench.reply import Reply

# A benchmark's prompt is short beside its answer; less than this share means that the pieces came together.
_MIN_DECODE_SHARE = 0.05


def decode_ms(reply: Reply) -> float:
    """Milliseconds from the first token to the end.

    Raises BenchError when only arrival times are known and the pieces of the stream arrived all at once.
    """
    if reply.predicted_ms is not None:
        return reply.predicted_ms
    if reply.decode_s < _MIN_DECODE_SHARE * (reply.end_s - reply.sent_s):
        raise BenchError(
            f"the {reply.completion_tokens} tokens of an answer arrived all at once, and the server tells no "
            "times of its own, so its rate cannot be known"
        )
    return reply.decode_s * 1e3


def tokens_in_first_piece(plain: Reply, reply: Reply) -> int:
    """How many tokens the first piece of `reply` holds, at most those of a round.

    Plain decoding streams token by token, so the pieces of the same text tell where its tokens end.
    """
    if reply.draft is None or not reply.piece_chars:
        return 1
    most = 1 + ceil((reply.draft.draft_n + reply.draft.copy_n) / reply.draft.rounds)
    covered = 0
    for count, length in enumerate(plain.piece_chars, 1):
        covered += length
        if covered >= reply.piece_chars[0] or count == most:
            return count
    return 1


def ms_per_token(plain: Reply, reply: Reply) -> float:
    """Decode milliseconds per token of `reply`, an answer to what `plain` answered without speculation.

    Infinite for an answer that has no token after its first piece.
    """
    tokens = reply.completion_tokens - tokens_in_first_piece(plain, reply)
    return decode_ms(reply) / tokens if tokens > 0 else float("inf")
