"""What a step sees of its examples."""

import mlx.core as mx
import pytest

from speculative.fitting.data import Packed, thinned


def packed() -> Packed:
    return Packed(
        tokens=mx.zeros((2, 52), dtype=mx.int32),
        hidden=mx.full((2, 50, 40), 3.0),
        final=mx.ones((2, 50, 8)),
        counted=mx.ones((2, 50), dtype=mx.bool_),
    )


def test_dropout_leaves_out_a_share_and_keeps_the_mean() -> None:
    """About that share of what the head reads is 0, the rest is larger by as much; nothing else changes."""
    whole = packed()
    thin = thinned(whole, 0.2, mx.random.key(1))
    missing = (thin.hidden == 0).mean().item()
    assert missing == pytest.approx(0.2, abs=0.03)
    assert thin.hidden.max().item() == pytest.approx(3.0 / 0.8)
    assert thin.hidden.mean().item() == pytest.approx(3.0, abs=0.1)
    assert (thin.tokens, thin.final, thin.counted) == (whole.tokens, whole.final, whole.counted)


def test_the_key_decides_what_is_left_out() -> None:
    """A resumed step repeats itself, the next one leaves out something else."""
    hiddens = [thinned(packed(), 0.2, mx.random.key(seed)).hidden for seed in (1, 1, 2)]
    assert mx.array_equal(hiddens[0], hiddens[1]).item()
    assert not mx.array_equal(hiddens[0], hiddens[2]).item()


def test_without_dropout_nothing_is_touched() -> None:
    """The very same arrays go on."""
    whole = packed()
    assert thinned(whole, 0.0, mx.random.key(1)) is whole
