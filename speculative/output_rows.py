"""A target's output head restricted to some of its rows. Knows modules with a weight, no family."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn


def _apply(head: Any, hidden: mx.array) -> mx.array:
    return head.as_linear(hidden) if hasattr(head, "as_linear") else head(hidden)


def _gathered(head: Any, ids: mx.array) -> nn.Module:
    """A linear layer of the head's rows `ids`; rows of a quantised head stay quantised."""
    rows: Any
    if hasattr(head, "scales"):
        rows = nn.QuantizedLinear(head.group_size, 1, False, head.group_size, head.bits, head.mode)
        rows.scales = head.scales[ids]
        rows.biases = None if head.biases is None else head.biases[ids]
    else:
        rows = nn.Linear(1, 1, bias=False)
    rows.weight = head.weight[ids]
    if "bias" in head:
        rows.bias = head.bias[ids]
    mx.eval(rows.parameters())
    return rows


class Best(NamedTuple):
    """The likeliest tokens int32 [...], and the logits [..., V] of all that competed."""

    ids: mx.array
    logits: mx.array


def best(head: nn.Module, draft_vocab: mx.array | None) -> Callable[[mx.array], Best]:
    """A function from hiddens [..., H] to the tokens of their largest logits.

    With `draft_vocab` (int32 [D] target ids) only those rows compete; they are gathered here, once. A
    soft-cap is left out because it keeps the order.
    """
    rows: Any = head if draft_vocab is None else _gathered(head, draft_vocab)
    names = None if draft_vocab is None else draft_vocab.astype(mx.int32)

    def likeliest(hidden: mx.array) -> Best:
        logits = _apply(rows, hidden)
        places = mx.argmax(logits, axis=-1)
        return Best(places.astype(mx.int32) if names is None else names[places], logits)

    return likeliest
