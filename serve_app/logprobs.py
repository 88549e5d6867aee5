"""Log-probabilities in OpenAI's two shapes: a list of objects for chat, parallel lists for completions."""

from collections.abc import Sequence
from typing import Any

from messages.events import TokenLogprob, TopLogprob

# JSON has no infinity; OpenAI shows this value for what is next to impossible.
FLOOR = -9999.0


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice or chunk."""
    content = [{**_entry(token), "top_logprobs": [_entry(top) for top in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], num_top: int, offset: int) -> dict[str, Any]:
    """The `logprobs` object of a completion choice or chunk.

    `text_offset` counts characters from the start of the returned text, where this piece begins at `offset`.
    With `num_top` alternatives a token's table also holds the token itself; with none it is null.
    """
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, FLOOR) for token in tokens],
        "top_logprobs": [_table(token) for token in tokens] if num_top else None,
        "text_offset": offsets,
    }


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": max(token.logprob, FLOOR), "bytes": list(token.raw)}


def _table(token: TokenLogprob) -> dict[str, float]:
    table: dict[str, float] = {}
    # Different tokens may decode to the same text; the likelier one comes first and stays.
    for top in (*token.top, token):
        table.setdefault(top.text, max(top.logprob, FLOOR))
    return table
