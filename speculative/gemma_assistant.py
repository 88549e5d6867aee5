"""The Gemma 4 assistant as a network: configuration, tensors, and one drafting step over borrowed KV.

Owns what the assistant computes and how it is stored. Knows neither the target nor its caches: keys, values
and position come in as values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import msgspec
from mlx import nn
from mlx_lm.models.gemma4_text import DecoderLayer, ModelArgs
from msgspec import Struct

from speculative.draft_noise import DraftNoise, choose_draft
from speculative.head_weights import load_module_weights, read_folder

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
_CONFIG_FILE = "config.json"

# Keys and values [B, heads, T, D] per layer type, as the target has cached them.
SharedKV = Mapping[str, tuple[mx.array, mx.array]]


class AssistantConfig(Struct, frozen=True, kw_only=True):
    """`config.json` of an assistant; unknown fields are ignored.

    `backbone_hidden_size` is the target's. With `use_ordered_embeddings` only the tokens of the
    `centroid_intermediate_top_k` best of `num_centroids` clusters compete. `query_position` is the rope
    position of every query of a block: the last token the target has read ("last") or the decided one after
    it ("bonus"); published engines do either, and only the rate of accepted drafts depends on it.
    """

    backbone_hidden_size: int
    text_config: dict[str, Any]
    use_ordered_embeddings: bool = False
    num_centroids: int = 2048
    centroid_intermediate_top_k: int = 32
    tie_word_embeddings: bool = True
    block_size: int = 4
    query_position: Literal["last", "bonus"] = "last"

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 2")
        if not self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings is false; an assistant's output head is its embedding")
        if not self.use_ordered_embeddings:
            return
        vocab, top = self.args.vocab_size, self.centroid_intermediate_top_k
        if self.num_centroids < 1 or vocab % self.num_centroids:
            raise ValueError(f"num_centroids is {self.num_centroids}; it must divide vocab_size ({vocab})")
        if not 1 <= top <= self.num_centroids:
            raise ValueError(f"centroid_intermediate_top_k is {top}; legal is 1 to {self.num_centroids}")

    @property
    def args(self) -> ModelArgs:
        """mlx-lm arguments of the decoder layers: all share the target's keys and values."""
        layers: Any = self.text_config.get("num_hidden_layers")
        fixed = {"num_kv_shared_layers": layers, "hidden_size_per_layer_input": 0}
        return ModelArgs.from_dict(self.text_config | fixed)


class CentroidHead(nn.Module):
    """Clusters of tokens with one centroid each: which ids are worth scoring.

    Cluster c holds the ids `token_ordering`[c * size : (c + 1) * size], size being tokens per cluster.
    """

    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        args = config.args
        self.centroids = nn.Linear(args.hidden_size, config.num_centroids, bias=False)
        self.token_ordering = mx.arange(args.vocab_size, dtype=mx.int32)
        self._top = config.centroid_intermediate_top_k

    def candidates(self, hidden: mx.array) -> mx.array:
        """Int32 [B, L, C] ids of the clusters whose centroids score best for hiddens [B, L, h]."""
        scores = self.centroids(hidden)
        clusters = mx.argpartition(-scores, kth=self._top - 1, axis=-1)[..., : self._top]
        ids = self.token_ordering.reshape(scores.shape[-1], -1)[clusters]
        return ids.reshape(*hidden.shape[:-1], -1)


class _Decoder(nn.Module):
    """Embedding, decoder layers without keys and values of their own, final norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [DecoderLayer(args, i) for i in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


class Assistant(nn.Module):
    """Projects the target's [embedding, hidden] down, attends to the target's KV, projects back up."""

    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        size, backbone = config.args.hidden_size, config.backbone_hidden_size
        self.pre_projection = nn.Linear(2 * backbone, size, bias=False)
        self.model = _Decoder(config.args)
        self.post_projection = nn.Linear(size, backbone, bias=False)
        if config.use_ordered_embeddings:
            self.masked_embedding = CentroidHead(config)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """Which keys and values each layer attends to, in order."""
        return tuple(layer.layer_type for layer in self.model.layers)

    def __call__(self, embeddings: mx.array, hiddens: mx.array, shared: SharedKV, position: int) -> mx.array:
        """Normed hiddens [B, L, h] of the target's scaled embeddings and hiddens [B, L, H].

        Every query has the rope position `position` and sees all rows of `shared`.
        """
        x = self.pre_projection(mx.concatenate([embeddings, hiddens], axis=-1))
        for layer in self.model.layers:
            x, _, _ = cast(Any, layer)(x, shared_kv=shared[layer.layer_type], offset=position)
        return self.model.norm(x)

    def chained(self, hidden: mx.array) -> mx.array:
        """The next step's hidden [B, L, H] from a normed one [B, L, h]."""
        return self.post_projection(hidden)

    def best_ids(self, hidden: mx.array, noise: DraftNoise | None = None, index: int = 0) -> mx.array:
        """Int32 [B, L] ids to propose as draft `index` after normed hiddens [B, L, h], no soft-cap."""
        embedding = self.model.embed_tokens
        if "masked_embedding" not in self:
            return choose_draft(embedding.as_linear(hidden), noise, index).astype(mx.int32)
        ids = self.masked_embedding.candidates(hidden)
        scores = embedding(ids) @ hidden[..., None]
        best = choose_draft(scores.squeeze(-1), noise, index, ids)
        return mx.take_along_axis(ids, best[..., None], axis=-1).squeeze(-1)


def load_assistant(folder: Path) -> tuple[Assistant, AssistantConfig]:
    """Reads an assistant's folder; quantised tensors keep their bits and group size.

    Raises ValueError when configuration and tensors disagree.
    """
    config = msgspec.json.decode((folder / _CONFIG_FILE).read_bytes(), type=AssistantConfig)
    tensors = {k: v for k, v in read_folder(folder).items() if not k.startswith("lm_head.")}
    ordering = tensors.get("masked_embedding.token_ordering")
    if ordering is not None:
        tensors["masked_embedding.token_ordering"] = ordering.astype(mx.int32)
    assistant = Assistant(config)
    load_module_weights(assistant, tensors)
    return assistant, config
