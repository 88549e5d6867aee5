"""Attention in tiles: the same values as mlx-lm's, the same bytes for a block as for single steps."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from speculative.hooks import BlockContext
from speculative.selection import Selection, candidates, selected
from speculative.target import Target
from speculative.tiled_attention import PAGE, TileKVBlock
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.drafters import scripted

IN_TILES = Selection(name="row_invariant", attention="tile", tile=4)
UNPADDED = Selection(name="row_invariant", attention="tile")


def filled(length: int, capacity_step: int = 256) -> tuple[KVCache, mx.array, mx.array]:
    cache = KVCache()
    cache.step = capacity_step
    keys, values = (mx.random.normal((1, 2, length, 8), key=mx.random.key(i)) for i in (0, 1))
    cache.update_and_fetch(keys, values)
    return cache, keys, values


def attend(
    cache: KVCache,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    window: int | None = None,
    tile: int = 4,
):
    """The block's attention over `cache` with these rows appended, queries [1, heads, rows, 8]."""
    block = TileKVBlock(cache, tile, BlockContext())
    masks = block.make_mask(queries.shape[2], window_size=window)
    block.update_and_fetch(keys, values)
    return block, block.attend(lambda: None, {"queries": queries, "scale": 0.5, "mask": masks})


def reference(queries: mx.array, keys: mx.array, values: mx.array, window: int | None) -> mx.array:
    rows, length = queries.shape[2], keys.shape[2]
    position = mx.arange(length - rows, length)[:, None]
    mask = mx.arange(length)[None] <= position
    if window is not None:
        mask = mask & (mx.arange(length)[None] > position - window)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.5, mask=mask)


@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("length", [1, 7, PAGE - 2, PAGE - 1, PAGE, 2 * PAGE - 3])
def test_values_are_those_of_attention(length: int, rows: int, window: int | None, tile: int) -> None:
    """Pages, padding and masks are invisible, also where a block crosses a page and under a window."""
    cache, keys, values = filled(length)
    queries = mx.random.normal((1, 4, rows, 8), key=mx.random.key(2))
    new = [mx.random.normal((1, 2, rows, 8), key=mx.random.key(i)) for i in (3, 4)]
    _, got = attend(cache, queries, *new, window, tile)
    both = [mx.concatenate(pair, axis=2) for pair in zip((keys, values), new, strict=True)]
    assert mx.allclose(got, reference(queries, *both, window), atol=1e-5).item()


def test_what_lies_beyond_the_last_row_is_never_seen() -> None:
    """Rows forgotten by a rewind still lie in the buffer; they change nothing."""
    queries = mx.random.normal((1, 4, 1, 8), key=mx.random.key(2))
    rows = [mx.random.normal((1, 2, 1, 8), key=mx.random.key(i)) for i in (3, 4)]
    clean, *_ = filled(9)
    dirty, *_ = filled(9)
    block = TileKVBlock(dirty, 4, BlockContext())
    block.update_and_fetch(*(mx.full((1, 2, 4, 8), 1e3) for _ in range(2)))
    block.keep(0)
    assert dirty.offset == 9
    assert tiny.same_bytes(attend(dirty, queries, *rows)[1], attend(clean, queries, *rows)[1])


@pytest.mark.parametrize("capacity_step", [1, 50, 256])
def test_buffers_grow_to_whole_pages(capacity_step: int) -> None:
    """A buffer that ends within a page is extended once, and the cache goes on as before."""
    cache, keys, _ = filled(PAGE - 1, capacity_step)
    queries = mx.random.normal((1, 4, 4, 8), key=mx.random.key(2))
    rows = [mx.random.normal((1, 2, 4, 8), key=mx.random.key(i)) for i in (3, 4)]
    block, got = attend(cache, queries, *rows)
    assert got.shape == queries.shape
    block.keep(2)
    assert cache.offset == PAGE + 1
    held = mx.array(cache.keys)[:, :, : cache.offset]
    assert mx.array_equal(held, mx.concatenate([keys, rows[0][:, :, :2]], axis=2)).item()


def test_foreign_masks_and_sinks_are_refused() -> None:
    """What tiles cannot evaluate raises, so that the probe passes on to the next selection."""
    cache, *_ = filled(3)
    block = TileKVBlock(cache, 4, BlockContext())
    call = {"queries": mx.zeros((1, 4, 1, 8)), "scale": 1.0, "mask": None}
    with pytest.raises(ValueError, match="not evaluated in tiles"):
        block.attend(lambda: None, call)
    with pytest.raises(ValueError, match="not evaluated in tiles"):
        block.attend(lambda: None, call | {"mask": block.make_mask(1), "sinks": mx.zeros(4)})


@pytest.mark.parametrize("selection", [UNPADDED, IN_TILES], ids=["unpadded", "padded"])
@pytest.mark.parametrize("length", [3, PAGE - 10, 3 * PAGE + 1])
def test_rounds_and_single_steps_give_the_same_bytes(length: int, selection: Selection) -> None:
    """Log-probabilities and caches of MTP equal those of plain decode, over page crossings.

    Unpadded that takes matrix kernels which do not depend on the row count, such as MLX's own.
    """
    target = tiny.target("llama")
    prompt = tiny.prompt(length)
    default = plain(target, prompt, 24)
    with selected(target, selection):
        wanted = plain(target, prompt, 24)
        for depth in (1, 2, 3):
            got = generate(target, prompt, 24, scripted(wanted.tokens), depth=depth)
            assert got.tokens == wanted.tokens
            assert tiny.same_bytes(got.logits, wanted.logits)
    assert wanted.tokens == default.tokens
    assert mx.allclose(wanted.logits, default.logits, atol=1e-4).item()


def test_only_models_with_plain_keys_and_values_attend_in_tiles() -> None:
    """Rotating, recurrent and latent attention keep their own way of being evaluated."""
    found = {family: tiny.target(family).attends_in_tiles for family in tiny.FAMILIES}
    assert found["llama"]
    assert not any(found[family] for family in found if family != "llama")


def test_tiles_are_tried_before_what_attends_row_by_row_and_padding_last() -> None:
    """What pads no plain step comes first; of either kind the cheaper verify forward does."""
    tried = [(selection.attention, selection.tile) for selection in candidates(6, attends_in_tiles=True)]
    unpadded, padded = [("block", 0), ("row", 0), ("tile", 0), ("row", 0)], [("tile", 8), ("row", 8)]
    assert tried == [*unpadded, *padded, ("row", 6)]
    assert "tile" not in [selection.attention for selection in candidates(6)]


def test_a_selection_in_tiles_is_undone() -> None:
    """Afterwards a single step is mlx-lm's own again."""
    target: Target = tiny.target("llama")
    tokens = mx.array([[3]])
    before = target.forward(tokens, target.make_cache()).logits
    with selected(target, IN_TILES):
        target.forward(tokens, target.make_cache())
    assert tiny.same_bytes(target.forward(tokens, target.make_cache()).logits, before)
