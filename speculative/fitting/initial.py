"""Where a head starts: copies of the target's last layers and a least-squares `fc` in front of them.

Owns the starting point alone; the better it is, the fewer tokens the fitting needs.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from speculative.fitting.data import Example
from speculative.fitting.taps import tapped
from speculative.generic_head import GenericHead, GenericHeadConfig

_RIDGE = 1e-3


def head_config(
    model: Any, num_layers: int, tap_layers: tuple[int, ...], draft_vocab_size: int | None, block_size: int
) -> GenericHeadConfig:
    """The generic head whose layers have the shape of the target's.

    Raises ValueError when the target has fewer layers than asked for.
    """
    args = model.args
    if num_layers > args.num_hidden_layers:
        raise ValueError(f"num_layers is {num_layers}; legal is 1 to {args.num_hidden_layers}")
    return GenericHeadConfig(
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_key_value_heads or args.num_attention_heads,
        vocab_size=args.vocab_size,
        head_dim=args.head_dim,
        num_layers=num_layers,
        rms_norm_eps=args.rms_norm_eps,
        rope_theta=args.rope_theta,
        rope_traditional=args.rope_traditional,
        rope_scaling=args.rope_scaling,
        max_position_embeddings=args.max_position_embeddings,
        tap_layers=tap_layers,
        draft_vocab_size=draft_vocab_size,
        block_size=block_size,
    )


def initial_head(config: GenericHeadConfig, model: Any, examples: list[Example]) -> GenericHead:
    """A head whose layers and final norm copy the target's last ones.

    `fc` maps (embedding of token j + 1, final hidden of token j), both normed, to the residual stream the
    target has at token j + 1 in front of those layers, by ridge regression over `examples`; `tap_fc` adds
    to the final hidden what explains the residual's remainder best. The examples' taps have to be
    those of `config`, the final hidden last.
    """
    head = GenericHead(config)
    for layer, source in zip(head.layers, model.model.layers[-config.num_layers :], strict=True):
        layer.update(tree_unflatten(tree_flatten(source.parameters())))
    head.norm.weight = mx.array(model.model.norm.weight)
    size = config.hidden_size
    gram, moment = _moments(config, model, examples)
    main = np.r_[0:size, gram.shape[0] - size : gram.shape[0]]
    weights = _ridge(gram[np.ix_(main, main)], moment[main])
    head.fc.weight = mx.array(weights.T.astype(np.float32))
    if config.tap_layers:
        others = np.r_[size : gram.shape[0] - size]
        remainder = moment[others] - gram[np.ix_(others, main)] @ weights
        wanted = _ridge(gram[np.ix_(others, others)], remainder)
        through = weights[size:]
        # What to add to the hidden so that `fc` turns it into what is wanted.
        added = _ridge(through @ through.T, through @ wanted.T).T
        tap_fc = np.concatenate([added, np.eye(size)]).T
        head.tap_fc.weight = mx.array(tap_fc.astype(np.float32))
    mx.eval(head.parameters())
    return head


def _ridge(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return np.linalg.solve(gram + _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram)), moment)


def _moments(config: GenericHeadConfig, model: Any, examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Gram matrix of (embedding, taps, final hidden), all normed, and products with the wanted residual."""
    below = model.args.num_hidden_layers - config.num_layers - 1
    size = config.hidden_size
    width = size * (1 + max(len(config.tap_layers), 1))
    gram, moment = np.zeros((width, width)), np.zeros((width, size))
    read = slice(None) if config.tap_layers else slice(-1, None)
    with tapped(model, (below,)) as taps:
        for example in examples:
            tokens = mx.array(example.tokens[None, :-1])
            # The first token's residual is an attention sink, orders of magnitude larger than any other.
            residual = np.array(taps.run(tokens)[1][0, 1:])
            hidden = mx.array(example.taps[:-1, read].astype(np.float32))
            embeddings = model.model.embed_tokens(tokens)[0, 1:, None]
            inputs = np.array(_normed(mx.concatenate([embeddings, hidden], axis=1), config))
            inputs = inputs.reshape(len(inputs), width)
            gram += inputs.T @ inputs
            moment += inputs.T @ residual
    return gram, moment


def _normed(x: mx.array, config: GenericHeadConfig) -> mx.array:
    return mx.fast.rms_norm(x, None, config.rms_norm_eps)
