"""Reads hidden states out of a target while it runs; knows nothing of heads or training."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn


class _Recorder:
    """Stands in for a decoder layer, keeps its last output."""

    last: mx.array

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        # mlx-lm's models read attributes such as `use_sliding` off their layers.
        return getattr(self._layer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        self.last = self._layer(*args, **kwargs)
        return self.last


class Taps:
    """Runs the target's body and concatenates the tapped hidden states of that run."""

    def __init__(self, body: Any, layers: tuple[int, ...], recorders: dict[int, _Recorder]) -> None:
        self._body = body
        self._layers = layers
        self._recorders = recorders

    def run(self, tokens: mx.array, cache: list[Any] | None = None) -> tuple[mx.array, mx.array]:
        """One forward over tokens [B, L].

        Returns (hidden after the final norm [B, L, H], taps [B, L, taps * H]).
        """
        final = self._body(tokens, cache)
        parts = [self._recorders[i].last if i in self._recorders else final for i in self._layers]
        return final, mx.concatenate(parts, axis=-1)


@contextmanager
def tapped(model: Any, layers: tuple[int, ...]) -> Generator[Taps, None, None]:
    """Tap the target while the block runs; `layers` counts as `GenericHeadConfig.tap_layers` does.

    Raises ValueError when a layer index is above the target's layer count.
    """
    stack: list[nn.Module] = model.model.layers
    count = len(stack)
    if any(i < 0 or i > count for i in layers):
        raise ValueError(f"tap layers are {layers}; legal is 0 to {count}")
    recorders = {i: _Recorder(stack[i]) for i in layers if i < count}
    model.model.layers = [recorders.get(i, layer) for i, layer in enumerate(stack)]
    try:
        yield Taps(model.model, layers or (count,), recorders)
    finally:
        model.model.layers = stack


def output_head(model: Any) -> mx.array:
    """The matrix [V, H] that turns the final hidden into logits."""
    return model.model.embed_tokens.weight if model.args.tie_word_embeddings else model.lm_head.weight
