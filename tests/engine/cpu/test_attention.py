"""Attention on a CPU: MLX's own values, a block's rows as single steps, anything unusual left to MLX."""

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import base
from mlx_lm.models.base import create_causal_mask

from engine.cpu import attention
from engine.cpu.attention import scaled_dot_product_attention

SIZE = 8


def drawn(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def inputs(batch: int, groups: int, repeats: int, rows: int, length: int) -> dict[str, Any]:
    return {
        "queries": drawn(1, batch, groups * repeats, rows, SIZE),
        "keys": drawn(2, batch, groups, length, SIZE),
        "values": drawn(3, batch, groups, length, SIZE),
        "cache": None,
        "scale": 0.3,
        "mask": None,
    }


def padded_mask(rows: int, length: int) -> mx.array:
    """[2, 1, rows, length], the second row of the batch padded on the left up to its last key but one."""
    return create_causal_mask(rows, length - rows, left_padding=mx.array([0, length - 1]))


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("mask", ["none", "causal", "array", "padded"])
def test_values_are_those_of_mlx(repeats: int, mask: str) -> None:
    """With and without shared keys, under every mask it takes, also where a row sees nothing."""
    rows, length = 3, 11
    call = inputs(2, 2, repeats, rows, length)
    masks: dict[str, Any] = {
        "none": None,
        "causal": "causal",
        "array": create_causal_mask(rows, length - rows, window_size=4),
        "padded": padded_mask(rows, length),
    }
    call["mask"] = masks[mask]
    found, wanted = scaled_dot_product_attention(**call), base.scaled_dot_product_attention(**call)
    assert found.shape == wanted.shape
    assert mx.allclose(found, wanted, rtol=1e-5, atol=1e-6).item()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(2, 6), length=st.integers(8, 80))
def test_a_row_of_a_block_is_a_single_step(rows: int, length: int) -> None:
    """Every row of a block has the values of a step of its own over the keys that it sees."""
    call = inputs(1, 1, 1, rows, length)
    block = scaled_dot_product_attention(**call | {"mask": "causal"})
    for row in range(rows):
        seen = length - rows + row + 1
        single = scaled_dot_product_attention(
            **call
            | {
                "queries": call["queries"][:, :, row : row + 1],
                "keys": call["keys"][:, :, :seen],
                "values": call["values"][:, :, :seen],
            }
        )
        assert mx.allclose(block[:, :, row], single[:, :, 0], rtol=1e-5, atol=1e-6).item()


def test_large_scores_neither_overflow_nor_vanish() -> None:
    """Differences far beyond what an exponential can hold leave the largest score with all the weight."""
    call = inputs(1, 1, 1, 1, 4)
    call["keys"] = mx.array([[[[300.0] * SIZE, [-300.0] * SIZE, [0.0] * SIZE, [1.0] * SIZE]]])
    call["queries"] = mx.ones((1, 1, 1, SIZE))
    assert mx.allclose(scaled_dot_product_attention(**call)[0, 0, 0], call["values"][0, 0, 0]).item()


@pytest.mark.parametrize(
    "unusual",
    [
        {"sinks": mx.zeros((2,))},
        {"mask": mx.zeros((3, 11))},
        {"mask": mx.ones((1, 2, 3, 11), dtype=mx.bool_)},
        {"queries": drawn(1, 1, 2, 3, SIZE).astype(mx.bfloat16)},
    ],
    ids=["sinks", "additive mask", "mask per head", "half precision queries"],
)
def test_the_unusual_is_mlx_lms(unusual: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the very arguments of the call."""
    call = inputs(1, 2, 1, 3, 11) | unusual
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        attention.base, "scaled_dot_product_attention", lambda *args: seen.append(args) or call["queries"]
    )
    assert scaled_dot_product_attention(**call) is call["queries"]
    assert [id(x) for x in seen[0]] == [
        id(call.get(name)) for name in ("queries", "keys", "values", "cache", "scale", "mask", "sinks")
    ]


def test_layers_share_one_mask() -> None:
    """The causal mask of a block is made once, however many layers ask for it."""
    attention._causal.cache_clear()
    call = inputs(1, 1, 1, 2, 9) | {"mask": "causal"}
    for _ in range(30):
        scaled_dot_product_attention(**call)
    assert attention._causal.cache_info().misses == 1
