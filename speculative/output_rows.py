"""A target's output head restricted to some of its rows. Knows modules with a weight, no family."""

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


class OutputRows:
    """The rows of a target's output head that compete, and the target ids they stand for."""

    def __init__(self, head: nn.Module, draft_vocab: mx.array | None) -> None:
        """With `draft_vocab` (int32 [D] target ids) only those rows compete; they are gathered here, once."""
        self._rows: Any = head if draft_vocab is None else _gathered(head, draft_vocab)
        self._names = None if draft_vocab is None else draft_vocab.astype(mx.int32)

    @property
    def own_weights(self) -> list[mx.array]:
        """The matrix that was gathered; nothing where the target's whole head competes."""
        return [] if self._names is None else [self._rows.weight]

    def best(self, hidden: mx.array, noise: DraftNoise | None = None, index: int = 0) -> Best:
        """The tokens of the largest logits of `hidden` [..., H], or draft `index` drawn with the noise given.

        A soft-cap is left out: it keeps the order, and beside noise it would hardly change it.
        """
        logits = _apply(self._rows, hidden)
        places = choose_draft(logits, noise, index, self._names)
        return Best(places.astype(mx.int32) if self._names is None else self._names[places], logits)
