"""The served model as speculation sees it: hidden states, logits, embeddings and caches of an mlx-lm model.

Owns where a family keeps its inner model and its output head. Knows no drafter and no round.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.models.gemma4_text import logit_softcap

from speculative.hooks import block_forward, install_hooks
from speculative.rollback import Attention, OpenBlock
from speculative.rowwise_latent import RowwiseLatentAttention, install_rowwise_latent
from speculative.taps import Collected, install_taps


class Forward(NamedTuple):
    """One forward's results, unevaluated.

    `hidden` [B, L, H] is the hidden after the final norm, `features` what the bound drafter reads: the same
    array unless it taps other layers ([B, L, taps * H]). `logits` [B, L, V] costs nothing until it is used.
    """

    hidden: mx.array
    features: mx.array
    logits: mx.array


def _are_plain(caches: Sequence[Any]) -> bool:
    return all(type(cache) is KVCache for cache in caches)


def text_model(model: Any) -> Any:
    """The part holding inner model and output head: multimodal wrappers keep it in `language_model`."""
    return getattr(model, "language_model", model)


class Target:
    """An mlx-lm model with its final hidden tapped.

    `attention` says how rows are attended to; `speculative.selection` sets it along with the linear layers.
    """

    def __init__(self, model: nn.Module) -> None:
        """Installs inert hooks; raises ValueError when hidden and logits of the model do not correspond."""
        self.model = model
        self._text = text_model(model)
        self._inner: Any = getattr(self._text, "model", None)
        if not hasattr(self._inner, "embed_tokens"):
            raise ValueError(f"model type {self.model_type!r} has no inner model with embed_tokens to tap")
        self.attention = Attention()
        self.selected = False
        self._taps: tuple[int, ...] = ()
        self._num_logits = 0
        install_hooks(model)
        install_rowwise_latent(model)
        self._check_tap()

    @property
    def model_type(self) -> str:
        """The family name of the model's configuration."""
        return getattr(self.model, "model_type", type(self.model).__name__)

    @property
    def text_args(self) -> Any:
        """The text model's mlx-lm arguments."""
        return self._text.args

    @property
    def inner(self) -> Any:
        """The inner model, for drafters that share more of it than embedding and output head."""
        return self._inner

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, in order."""
        return self._inner.layers

    @property
    def hidden_size(self) -> int:
        """Width H of the hidden states."""
        return self._inner.norm.weight.shape[0]

    @property
    def dtype(self) -> mx.Dtype:
        """Type the hidden states are computed in."""
        return self._inner.norm.weight.dtype

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return self._inner.embed_tokens.weight.shape[0]

    @property
    def num_logits(self) -> int:
        """Width V of the logits: families that pad their vocabulary cut the padding off."""
        return self._num_logits

    @property
    def embed_scale(self) -> float:
        """What the model multiplies embedding rows with before its first layer."""
        return float(getattr(self._inner, "embed_scale", 1.0))

    @property
    def output_head(self) -> nn.Module:
        """The module whose rows produce logits: `lm_head`, or the embedding when they are tied."""
        return self._text.lm_head if "lm_head" in self._text else self._inner.embed_tokens

    def embed(self, tokens: mx.array) -> mx.array:
        """Embedding rows [..., H] of int tokens [...], without the family's scale."""
        return self._inner.embed_tokens(tokens)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] of hiddens [..., H] after the final norm, soft-capped where the family does."""
        if hasattr(self._text, "hidden_to_logits"):
            return self._text.hidden_to_logits(hidden)
        head: Any = self.output_head
        out = head.as_linear(hidden) if hasattr(head, "as_linear") else head(hidden)
        cap = getattr(self._text, "final_logit_softcapping", None)
        return out if cap is None else logit_softcap(cap, out)

    def make_cache(self) -> list[Any]:
        """Empty caches for one sequence, as the model makes them."""
        return make_prompt_cache(self.model)

    def tap(self, layers: Sequence[int]) -> None:
        """Chooses the features as `GenericHeadConfig.tap_layers` says; ValueError for an unknown layer."""
        count = len(self.layers)
        if any(not 0 <= layer <= count for layer in layers):
            raise ValueError(f"tap layers {tuple(layers)}; legal is 0 to {count}")
        install_taps(self.layers, [layer for layer in layers if layer < count])
        self._taps = tuple(layers)

    def forward(self, tokens: mx.array, caches: Sequence[Any]) -> Forward:
        """Runs int tokens [B, L] through the model, advancing the caches."""
        if self.attention.mode == "tile" and tokens.size == 1 and _are_plain(caches):
            block = self.open_block(caches, 1)
            stepped = self.verify(tokens, block)
            block.keep(1)
            return stepped
        with Collected() as collected:
            hidden = self._inner(tokens, cache=list(caches))
        outputs = collected.outputs | {len(self.layers): hidden}
        features = mx.concatenate([outputs[i] for i in self._taps], axis=-1) if self._taps else hidden
        return Forward(hidden, features, self.logits(hidden))

    @property
    def attends_in_tiles(self) -> bool:
        """Whether attention "tile" can evaluate this model: nothing but mlx-lm's own keys and values."""
        latent = any(isinstance(module, RowwiseLatentAttention) for module in self.model.modules())
        return _are_plain(self.make_cache()) and not latent

    def open_block(self, caches: Sequence[Any], rows: int) -> OpenBlock:
        """Readies the caches of one sequence for a forward of `rows` rows that will be partly kept."""
        return OpenBlock(caches, rows, self.attention)

    def verify(self, tokens: mx.array, block: OpenBlock) -> Forward:
        """Runs int tokens [1, rows] through an open block; the caches count once the block is kept."""
        with block_forward(block.context):
            return self.forward(tokens, block.views)

    def _check_tap(self) -> None:
        """The tap is right when head(hidden) is, byte for byte, what the model itself returns."""
        tokens = mx.array([[0, min(1, self.vocab_size - 1)]])
        try:
            tapped = self.forward(tokens, self.make_cache()).logits
            wanted = self.model(tokens, cache=self.make_cache())
        except (TypeError, AttributeError) as error:
            raise ValueError(f"cannot tap the hidden of model type {self.model_type!r}: {error}") from error
        self._num_logits = tapped.shape[-1]
        if not mx.array_equal(tapped, wanted, equal_nan=True).item():
            raise ValueError(f"head(hidden) of model type {self.model_type!r} is not what the model returns")
