"""The model as the lanes call it: logits, and features where a drafter needs them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from speculative.target import Target


class Forwarded(NamedTuple):
    """Logits [B, L, V] and, with a tapped target, features [B, L, F]; both unevaluated."""

    logits: mx.array
    features: mx.array | None


class Forwarder(Protocol):
    """One forward of the served model."""

    model: nn.Module

    def __call__(self, tokens: mx.array, caches: Sequence[Any]) -> Forwarded:
        """Run int tokens [B, L], advancing the caches."""
        ...

    def make_cache(self) -> list[Any]:
        """Empty caches for one sequence."""
        ...


class PlainForwarder:
    """Any mlx-lm model, as it comes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, tokens: mx.array, caches: Sequence[Any]) -> Forwarded:
        """Run the model."""
        return Forwarded(self.model(tokens, cache=list(caches)), None)

    def make_cache(self) -> list[Any]:
        """Empty caches for one sequence."""
        return make_prompt_cache(self.model)


class TappedForwarder:
    """A target whose features feed a drafter."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.model = target.model

    def __call__(self, tokens: mx.array, caches: Sequence[Any]) -> Forwarded:
        """Run the target."""
        out = self.target.forward(tokens, caches)
        return Forwarded(out.logits, out.features)

    def make_cache(self) -> list[Any]:
        """Empty caches for one sequence."""
        return self.target.make_cache()


class RecordingModel:
    """A forwarder in the shape BatchGenerator calls, remembering the features of each call."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self.calls: list[mx.array | None] = []

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        """Logits [B, L, V]."""
        out = self._forwarder(inputs, cache)
        self.calls.append(out.features)
        return out.logits

    def make_cache(self) -> list[Any]:
        """Empty caches for one sequence."""
        return self._forwarder.make_cache()

    @property
    def layers(self) -> Any:
        """The decoder layers, which mlx-lm counts."""
        return self._forwarder.model.layers
