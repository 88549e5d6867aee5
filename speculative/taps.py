"""Reading hidden states out of a model while it runs: per decoder layer, and from a batched generator.

Knows that a model has layers and returns logits, no family.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import mlx.core as mx
from mlx import nn

from speculative.stand_in import StandIn

_sink: ContextVar[dict[int, mx.array] | None] = ContextVar("tap_sink", default=None)


class TappedLayer(StandIn):
    """A decoder layer whose output is shown to a running `collect`."""

    def __init__(self, inner: nn.Module, index: int) -> None:
        super().__init__(inner)
        self.layer_index = index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self.inner(*args, **kwargs)
        sink = _sink.get()
        if sink is not None:
            # Families with shared KV return (hidden, ...).
            sink[self.layer_index] = output[0] if isinstance(output, tuple) else output
        return output


def install_taps(layers: list[nn.Module], indices: Sequence[int]) -> None:
    """Taps the decoder layers with these indices in place; doing it twice changes nothing."""
    for index in indices:
        if not isinstance(layers[index], TappedLayer):
            layers[index] = TappedLayer(layers[index], index)


class Collected:
    """The outputs of tapped layers, by layer index, of the forwards run inside the `with` block."""

    def __init__(self) -> None:
        self.outputs: dict[int, mx.array] = {}

    def __enter__(self) -> "Collected":
        self._token = _sink.set(self.outputs)
        return self

    def __exit__(self, *_: object) -> None:
        _sink.reset(self._token)
