"""The generic MTP head for llama-type targets: network, configuration and file layout.

Owns what the head computes and how it is stored. Knows neither caches of requests nor the round loop;
embedding table and output head belong to the target and are never stored here.
"""

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import ModelArgs, TransformerBlock
from msgspec import Struct

from speculative.head_weights import load_module_weights, read_tensors

MODEL_TYPE = "mtp_serve_head"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
DRAFT_VOCAB_KEY = "draft_vocab"


class GenericHeadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Geometry of a generic head; the attention fields mean what they mean in a llama `config.json`.

    `tap_layers` lists the target's hidden states the head reads, concatenated in that order: index i below
    the target's layer count is the residual stream after decoder layer i, the layer count itself is the
    hidden after the final norm. Empty means the latter alone. `draft_vocab_size` is the length of the stored
    list of target ids the head may propose, or None when it proposes over the whole vocabulary.
    """

    model_type: str = MODEL_TYPE
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int | None = None
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_traditional: bool = False
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    tap_layers: tuple[int, ...] = ()
    draft_vocab_size: int | None = None
    block_size: int = 4

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.model_type != MODEL_TYPE:
            raise ValueError(f"model_type is {self.model_type!r}; this head is {MODEL_TYPE!r}")
        for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_key_value_heads < 1 or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}; "
                f"it must divide num_attention_heads ({self.num_attention_heads})"
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}; without head_dim "
                f"it must divide hidden_size ({self.hidden_size})"
            )
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size is {self.draft_vocab_size}; legal is 1 to {self.vocab_size}")
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 2")
        if any(layer < 0 for layer in self.tap_layers):
            raise ValueError(f"tap_layers is {self.tap_layers}; indices must be 0 or more")


def block_args(config: GenericHeadConfig) -> ModelArgs:
    """The llama arguments of one decoder layer of the head."""
    return ModelArgs(
        model_type="llama",
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        vocab_size=config.vocab_size,
        rope_theta=config.rope_theta,
        rope_traditional=config.rope_traditional,
        rope_scaling=config.rope_scaling,
        max_position_embeddings=config.max_position_embeddings,
    )


class GenericHead(nn.Module):
    """fc over [norm(embedding), norm(hidden)], decoder layers with own KV, final norm."""

    def __init__(self, config: GenericHeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        args = block_args(config)
        if config.tap_layers:
            self.tap_fc = nn.Linear(size * len(config.tap_layers), size, bias=False)
        self.norm_embedding = nn.RMSNorm(size, eps=eps)
        self.norm_hidden = nn.RMSNorm(size, eps=eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [TransformerBlock(args) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(size, eps=eps)

    def fuse(self, features: mx.array) -> mx.array:
        """Concatenated target hiddens [B, L, taps * H] to the hidden [B, L, H] that `__call__` reads.

        The identity when the head reads only the hidden after the final norm; several taps are brought to
        unit root mean square each, since residual streams differ by orders of magnitude between layers and
        tokens.
        Chained hiddens are the head's own outputs and must not pass here.
        """
        if "tap_fc" not in self:
            return features
        each = features.reshape(*features.shape[:-1], -1, self.norm.weight.size)
        return self.tap_fc(mx.fast.rms_norm(each, None, self.norm.eps).reshape(features.shape))

    def joined(self, embeddings: mx.array, hiddens: mx.array) -> mx.array:
        """The input [B, L, H] of the first layer."""
        return self.fc(mx.concatenate([self.norm_embedding(embeddings), self.norm_hidden(hiddens)], axis=-1))

    def __call__(
        self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache] | None = None
    ) -> mx.array:
        """One pass over the pairs (hidden of position i, embedding of the token at i + 1).

        embeddings and hiddens are [B, L, H]; without a cache row i attends to rows 0..i and its rope position
        is i. Returns [B, L, H]: the input of the target's output head for the token at i + 2 and, when
        drafting deeper, the next hidden.
        """
        x = self.joined(embeddings, hiddens)
        caches: list[KVCache | None] = [*cache] if cache else [None] * len(self.layers)
        mask: Any = create_attention_mask(x, caches[0])
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x = layer(x, mask, layer_cache)
        return self.norm(x)

    def make_cache(self) -> list[KVCache]:
        """Empty KV caches, one per decoder layer; slot i holds the pair (hidden i, token i + 1)."""
        return [KVCache() for _ in self.layers]


class HeadFiles(NamedTuple):
    """A loaded head: the network, its configuration, and int32 [D] target ids it may propose (or None)."""

    head: GenericHead
    config: GenericHeadConfig
    draft_vocab: mx.array | None


def check_draft_vocab(config: GenericHeadConfig, draft_vocab: mx.array | None) -> None:
    """Raises ValueError unless the list fits the configuration and holds distinct ids of the vocabulary."""
    size = None if draft_vocab is None else draft_vocab.size
    if size != config.draft_vocab_size:
        raise ValueError(f"draft_vocab holds {size} ids; draft_vocab_size says {config.draft_vocab_size}")
    if draft_vocab is None:
        return
    ids: list[int] = draft_vocab.tolist()  # pyright: ignore[reportAssignmentType]
    outside = [i for i in ids if not 0 <= i < config.vocab_size]
    if outside:
        raise ValueError(f"draft_vocab holds id {outside[0]}; legal is 0 to {config.vocab_size - 1}")
    if len(set(ids)) != len(ids):
        raise ValueError("draft_vocab holds an id twice; ids must be distinct")


def save_generic_head(folder: Path, files: HeadFiles) -> None:
    """Writes `config.json` and `model.safetensors` into `folder`, creating it."""
    check_draft_vocab(files.config, files.draft_vocab)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, mx.array] = dict(tree_flatten(files.head.parameters()))
    if files.draft_vocab is not None:
        tensors[DRAFT_VOCAB_KEY] = files.draft_vocab.astype(mx.int32)
    mx.save_safetensors(str(folder / WEIGHTS_FILE), tensors, {"format": "mlx"})
    text = msgspec.json.format(msgspec.json.encode(files.config), indent=2)
    (folder / CONFIG_FILE).write_bytes(text + b"\n")


def load_generic_head(folder: Path) -> HeadFiles:
    """Reads a folder written by `save_generic_head`; quantised tensors keep their bits and group size.

    Raises ValueError when configuration and tensors disagree and msgspec.ValidationError (a ValueError) on an
    unknown or ill-typed field.
    """
    config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=GenericHeadConfig)
    tensors = read_tensors(folder / WEIGHTS_FILE)
    draft_vocab = tensors.pop(DRAFT_VOCAB_KEY, None)
    check_draft_vocab(config, draft_vocab)
    head = GenericHead(config)
    load_module_weights(head, tensors)
    return HeadFiles(head, config, draft_vocab)
