"""The drafter around any MTP head with KV of its own: pairs in, chained proposals out.

Owns priming, extending and chaining. What the head computes comes in as a network; target and request
are known only through their protocols.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache
from msgspec import Struct

from speculative.draft_noise import DraftNoise
from speculative.draft_stop import ends_chain
from speculative.head_state import HeadState, prompt_pairs
from speculative.output_rows import OutputRows
from speculative.target import Target

# The head's work on a long prompt is split so that its scores stay small.
PRIME_CHUNK = 512


class HeadNetwork(Protocol):
    """What a head computes. Slot i of its caches belongs to pair (feature i, token i + 1)."""

    def fuse(self, features: mx.array) -> mx.array:
        """Target features [1, L, F] as the hiddens [1, L, H] that `__call__` reads."""
        ...

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache]) -> mx.array:
        """Embeddings and hiddens [1, L, H] to [1, L, H]: input of the output head, and the chained hidden."""
        ...

    def make_cache(self) -> list[KVCache]:
        """Empty caches of the head's layers."""
        ...

    def parameters(self) -> dict[str, Any]:
        """Its weights, as `nn.Module.parameters` gives them."""
        ...


class HeadTraits(Struct, frozen=True, kw_only=True):
    """What a head says about itself; `tap_layers` as in `GenericHeadConfig`."""

    name: str
    hidden_size: int
    vocab_size: int
    block_size: int
    tap_layers: tuple[int, ...] = ()


class ChainedHeadDrafter:
    """A `Drafter` for one head network, sharing the target's embedding and output head."""

    kind: Literal["mtp"] = "mtp"

    def __init__(self, network: HeadNetwork, traits: HeadTraits, draft_vocab: mx.array | None = None) -> None:
        """`confidence_stop` (0 to 1) ends a chain after a draft less likely than that; 0 never does."""
        self.traits = traits
        self.confidence_stop = 0.0
        self._network = network
        self._draft_vocab = draft_vocab
        self._embed: Callable[[mx.array], mx.array] | None = None
        self._output: OutputRows | None = None

    @property
    def block_size(self) -> int:
        """Rows per verify forward the head was made for."""
        return self.traits.block_size

    def why_incompatible(self, target: Target) -> str | None:
        """The reason why this head cannot serve `target`, or None."""
        traits = self.traits
        if traits.hidden_size != target.hidden_size:
            return f"{traits.name} has hidden size {traits.hidden_size}, the target {target.hidden_size}"
        if traits.vocab_size != target.vocab_size:
            return f"{traits.name} has {traits.vocab_size} tokens, the target {target.vocab_size}"
        if any(layer > len(target.layers) for layer in traits.tap_layers):
            return f"{traits.name} reads layers {traits.tap_layers}, the target has {len(target.layers)}"
        return None

    def bind(self, target: Target) -> None:
        """Shares embedding and output head and taps the target; raises ValueError when incompatible."""
        if reason := self.why_incompatible(target):
            raise ValueError(reason)
        target.tap(self.traits.tap_layers)
        self._embed = target.embed
        self._output = OutputRows(target.output_head, self._draft_vocab)

    @property
    def own_weights(self) -> list[mx.array]:
        """What only drafting multiplies by: the network's weights and the rows it gathered."""
        named: dict[str, mx.array] = dict(tree_flatten(self._network.parameters()))
        # Not the scales of quantised layers, which are matrices too.
        own = [array for name, array in named.items() if name.endswith("weight")]
        return [*own, *(self._output.own_weights if self._output else [])]

    def make_state(self) -> HeadState:
        """An empty history."""
        return HeadState(self._network.make_cache())

    def prime(self, state: HeadState, tokens: Sequence[int], features: mx.array) -> None:
        """Appends a chunk of the prompt, see `Drafter.prime`."""
        pairs, state.waiting = prompt_pairs(state.waiting, tokens, features)
        if pairs is None:
            return
        ids, rows = pairs
        for start in range(0, ids.shape[1], PRIME_CHUNK):
            chunk = slice(start, start + PRIME_CHUNK)
            mx.async_eval(self._append(state, ids[:, chunk], rows[:, chunk]))

    def extend(self, state: HeadState, tokens: Sequence[int], features: mx.array) -> None:
        """Appends computed pairs, see `Drafter.extend`."""
        state.waiting = None
        # Computed while the round's tokens are on their way out.
        mx.async_eval(self._append(state, mx.array([list(tokens)]), features))

    def _append(self, state: HeadState, ids: mx.array, features: mx.array) -> mx.array:
        state.drop_chained()
        out = self._step(ids, self._network.fuse(features), state.caches)
        state.length += ids.shape[1]
        # The newest pair's row already is the next round's first proposal.
        state.last = out[:, -1:]
        return state.last

    def _step(self, ids: mx.array, hiddens: mx.array, caches: list[Any]) -> mx.array:
        if self._embed is None:
            raise ValueError(f"{self.traits.name} is not bound to a target")
        return self._network(self._embed(ids), hiddens, caches)

    def draft(
        self, state: HeadState, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """Proposes int32 ids, each from the previous row: `depth`, or those up to the first doubtful one."""
        if state.last is None or state.waiting is not None or self._output is None:
            raise ValueError(f"{self.traits.name} has no generated token to draft from")
        state.drop_chained()
        hidden, chain = state.last, [self._output.best(state.last, noise)]
        while len(chain) < depth:
            # Computed while the next step is being built.
            mx.async_eval(chain[-1].ids)
            if ends_chain(chain[-1].logits, self.confidence_stop):
                break
            hidden = self._step(chain[-1].ids, hidden, state.caches)
            chain.append(self._output.best(hidden, noise, len(chain)))
        return mx.concatenate([draft.ids for draft in chain], axis=1)[0]
