"""A target's output head restricted to some of its rows. Knows modules with a weight, no family."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn

from speculative.draft_noise import DraftNoise, choose_draft


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
    """The tokens to propose, int32 [...], and the logits [..., V] of all that competed."""

    ids: mx.array
    logits: mx.array


# (hiddens [..., H], the round's noise or None, index of the draft)
Propose = Callable[[mx.array, DraftNoise | None, int], Best]


def best(head: nn.Module, draft_vocab: mx.array | None) -> Propose:
    """A function from hiddens to the tokens of their largest logits, or to those drawn with the noise given.

    With `draft_vocab` (int32 [D] target ids) only those rows compete; they are gathered here, once. A
    soft-cap is left out: it keeps the order, and beside noise it would hardly change it.
    """
    rows: Any = head if draft_vocab is None else _gathered(head, draft_vocab)
    names = None if draft_vocab is None else draft_vocab.astype(mx.int32)

    def propose(hidden: mx.array, noise: DraftNoise | None = None, index: int = 0) -> Best:
        logits = _apply(rows, hidden)
        places = choose_draft(logits, noise, index, names)
        return Best(places.astype(mx.int32) if names is None else names[places], logits)

    return propose
