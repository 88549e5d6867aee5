"""The drafter over a Gemma 4 assistant: no KV of its own, it reads the target's.

Owns which of the target's rows the assistant sees. Keeps no reference into a KV buffer between calls: one
that outlives the draft would make the target's next update copy the whole buffer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from speculative.draft_noise import DraftNoise
from speculative.gemma_assistant import Assistant, AssistantConfig, load_assistant
from speculative.head_weights import quantise_head
from speculative.target import Target


class AssistantState:
    """The newest pair of one request, and how many there were; see `DrafterState`."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.length = 0
        self.waiting: mx.array | None = None
        self.token = 0
        self.feature: mx.array | None = None


def visible_rows(cache: Any) -> tuple[mx.array, mx.array]:
    """The keys and values [B, heads, T, D] that a token after the cached ones may attend to, oldest first.

    A window is cut to its size: after several rows were written at once the buffer holds more. Raises
    ValueError for other caches than plain and rotating ones.
    """
    match cache:
        case RotatingKVCache():
            keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
            return keys[..., -cache.max_size :, :], values[..., -cache.max_size :, :]
        case KVCache():
            return cast("tuple[mx.array, mx.array]", cache.keys_and_values())
        case _:
            raise ValueError(f"the Gemma assistant cannot read a cache of type {type(cache).__name__}")


def _last_of_each_type(target: Target) -> dict[str, int]:
    """Index of the last layer of every type that has a cache; layers without one share these."""
    cached = target.layers[: len(target.make_cache())]
    return {getattr(layer, "layer_type", ""): index for index, layer in enumerate(cached)}


class GemmaDrafter:
    """A `Drafter` for one assistant, sharing the target's embedding and reading its last KV of each type."""

    kind: Literal["mtp"] = "mtp"

    def __init__(self, assistant: Assistant, config: AssistantConfig) -> None:
        self._assistant = assistant
        self._config = config
        self._target: Target | None = None
        self._sources: dict[str, int] = {}

    @property
    def block_size(self) -> int:
        """Rows per verify forward the assistant was made for."""
        return self._config.block_size

    def why_incompatible(self, target: Target) -> str | None:
        """The reason why this assistant cannot serve `target`, or None."""
        width, vocab = self._config.backbone_hidden_size, self._config.args.vocab_size
        if width != target.hidden_size:
            return f"the Gemma assistant has hidden size {width}, the target {target.hidden_size}"
        if vocab != target.vocab_size:
            return f"the Gemma assistant has {vocab} tokens, the target {target.vocab_size}"
        return self._why_unreadable(target)

    def _why_unreadable(self, target: Target) -> str | None:
        sources = _last_of_each_type(target)
        for layer in self._assistant.model.layers:
            kind, size = layer.layer_type, layer.self_attn.head_dim
            if kind not in sources:
                return f"the Gemma assistant reads {kind} layers, the target has {sorted(sources)}"
            source: Any = target.layers[sources[kind]]
            if source.self_attn.head_dim != size:
                theirs = source.self_attn.head_dim
                return f"the Gemma assistant has {kind} heads of size {size}, the target {theirs}"
        return None

    def bind(self, target: Target) -> None:
        """Shares the embedding and finds the KV to read; raises ValueError when incompatible."""
        if reason := self.why_incompatible(target):
            raise ValueError(reason)
        target.tap(())
        self._target = target
        self._sources = _last_of_each_type(target)

    def make_state(self) -> AssistantState:
        """An empty history."""
        return AssistantState()

    def prime(self, state: AssistantState, tokens: Sequence[int], features: mx.array) -> None:
        """Notes a chunk of the prompt, see `Drafter.prime`; the target's KV is all the history there is."""
        state.length += len(tokens) - (state.waiting is None)
        state.waiting = features[:, -1:]

    def extend(self, state: AssistantState, tokens: Sequence[int], features: mx.array) -> None:
        """Notes computed pairs, see `Drafter.extend`; only the newest is drafted from."""
        state.waiting = None
        state.length += len(tokens)
        state.token, state.feature = tokens[-1], features[:, -1:]

    def draft(
        self, state: AssistantState, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """Proposes int32 [depth] ids, each from the assistant's own previous one, over the same KV."""
        target = self._target
        if target is None or state.feature is None or state.waiting is not None:
            raise ValueError("the Gemma assistant has no generated token to draft from")
        kinds = dict.fromkeys(self._assistant.layer_types)
        shared = {kind: visible_rows(target_caches[self._sources[kind]]) for kind in kinds}
        position = target_caches[0].offset - (self._config.query_position == "last")
        token, hidden = mx.array([[state.token]], dtype=mx.int32), state.feature
        ids: list[mx.array] = []
        for index in range(depth):
            embedding = target.embed(token) * target.embed_scale
            out = self._assistant(embedding, hidden, shared, position)
            token, hidden = self._assistant.best_ids(out, noise, index), self._assistant.chained(out)
            ids.append(token)
        return mx.concatenate(ids, axis=1)[0]


def load_gemma_drafter(folder: Path, dtype: mx.Dtype, bits: int | None = None) -> GemmaDrafter:
    """Loads an assistant computing in `dtype`, the target's; quantises its layers to `bits` when given.

    Raises ValueError when configuration and tensors disagree.
    """
    assistant, config = load_assistant(folder)
    assistant.set_dtype(dtype)
    if bits is not None:
        quantise_head(assistant, bits)
    return GemmaDrafter(assistant, config)
