"""Rewinding caches: state equality with token-by-token decode, bit for bit."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from speculative.rollback import Attention, OpenBlock, clone_caches, why_not_rewindable
from tests.speculative import tiny

ROWS = 4
CONTEXTS = {
    "before the window": 7,
    "across the window": tiny.WINDOW - 2,
    "past the window": 2 * tiny.WINDOW + 5,
}


@pytest.fixture(params=["block", "row"])
def attention(request: pytest.FixtureRequest) -> Attention:
    return Attention(request.param)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_row_attention_rewinds_to_the_bytes_of_single_steps(family: str, context: int) -> None:
    """Evaluated per row, a block leaves logits and caches byte-equal to single steps, whatever is kept."""
    target = tiny.target(family)
    caches, _ = tiny.prefill(target, tiny.prompt(context))
    ids, chain = tiny.greedy_chain(target, clone_caches(caches), 3, ROWS)
    for kept in range(ROWS + 1):
        block_caches = clone_caches(caches)
        block = OpenBlock(block_caches, ROWS, Attention("row"))
        logits = target.verify(mx.array([[3, *ids[: ROWS - 1]]]), block).logits[0]
        assert tiny.same_bytes(logits, chain)
        block.keep(kept)
        reference = clone_caches(caches)
        tiny.greedy_chain(target, reference, 3, kept) if kept else None
        assert tiny.largest_difference(block_caches, reference) == 0.0


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_block_attention_rewinds_to_single_steps(family: str, context: int) -> None:
    """Evaluated as a block, the caches end laid out as after single steps and equal within rounding."""
    target = tiny.target(family)
    caches, _ = tiny.prefill(target, tiny.prompt(context))
    ids, chain = tiny.greedy_chain(target, clone_caches(caches), 3, ROWS)
    for kept in range(ROWS + 1):
        block_caches = clone_caches(caches)
        block = OpenBlock(block_caches, ROWS, Attention())
        logits = target.verify(mx.array([[3, *ids[: ROWS - 1]]]), block).logits[0]
        assert mx.allclose(logits, chain, atol=1e-4).item()
        block.keep(kept)
        reference = clone_caches(caches)
        tiny.greedy_chain(target, reference, 3, kept) if kept else None
        assert tiny.largest_difference(block_caches, reference) < 1e-4


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rejected_rows_leave_no_trace(family: str, attention: Attention) -> None:
    """Two blocks that differ only in their rejected rows leave the same bytes behind, round after round."""
    target = tiny.target(family)
    left, _ = tiny.prefill(target, tiny.prompt(tiny.WINDOW - 3))
    right = clone_caches(left)
    for step in range(6):
        for caches, rejected in ((left, 5), (right, 71)):
            block = OpenBlock(caches, ROWS, attention)
            target.verify(mx.array([[step, step + 1, rejected, rejected + 1]]), block)
            block.keep(2)
        assert tiny.largest_difference(left, right) == 0.0


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_block_can_follow_an_empty_cache(family: str, attention: Attention) -> None:
    """A block on caches that hold nothing yet is kept like any other."""
    target = tiny.target(family)
    caches, reference = target.make_cache(), target.make_cache()
    block = OpenBlock(caches, 3, attention)
    target.verify(mx.array([[1, 2, 3]]), block)
    block.keep(2)
    for token in (1, 2):
        target.forward(mx.array([[token]]), reference)
    assert tiny.largest_difference(caches, reference) < 1e-4


def test_undoing_a_forward_that_failed_restores_the_caches(attention: Attention) -> None:
    """Keeping no row of a block whose forward was never run or broke off changes nothing."""
    target = tiny.target("llama-sliding")
    caches, _ = tiny.prefill(target, tiny.prompt(20))
    before = clone_caches(caches)
    block = OpenBlock(caches, ROWS, attention)
    block.views[0].update_and_fetch(mx.ones((1, 2, ROWS, 16)), mx.ones((1, 2, ROWS, 16)))
    block.keep(0)
    assert tiny.largest_difference(caches, before) == 0.0


@pytest.mark.parametrize("kept", [-1, ROWS + 1])
def test_keeping_an_illegal_number_of_rows_is_an_error(kept: int) -> None:
    """Only 0 to K rows can be kept."""
    with pytest.raises(ValueError, match="legal is 0 to 4"):
        OpenBlock([KVCache()], ROWS, Attention()).keep(kept)


def test_clones_are_independent() -> None:
    """Writing to a cache after it was cloned does not reach the clone, nested caches included."""
    kv, ring, arrays = KVCache(), RotatingKVCache(4), ArraysCache(1)
    rows = mx.ones((1, 1, 2, 4))
    for cache in (kv, ring):
        cache.update_and_fetch(rows, rows)
    arrays[0] = mx.ones((1, 2))
    original = CacheList(kv, ring, arrays)
    (twin,) = clone_caches([original])
    for cache in (kv, ring):
        cache.trim(2)
        cache.update_and_fetch(rows * 5, rows * 5)
    arrays[0] = mx.zeros((1, 2))
    assert [member.keys_and_values()[0].max().item() for member in twin.caches[:2]] == [1.0, 1.0]
    assert twin.caches[2][0].sum().item() == 2.0


def test_caches_without_exact_rewind_are_named() -> None:
    """A cache class whose rewind is not known is refused by name, inside a list of caches too."""
    assert why_not_rewindable([KVCache(), RotatingKVCache(8)]) is None
    reason = why_not_rewindable([CacheList(KVCache(), ChunkedKVCache(8))])
    assert reason is not None
    assert "ChunkedKVCache" in reason
    with pytest.raises(ValueError, match="ChunkedKVCache"):
        OpenBlock([ChunkedKVCache(8)], 2, Attention())


def test_recurrence_that_was_not_recorded_is_refused() -> None:
    """A recurrent cache used by an unknown layer cannot be kept in part."""
    cache = ArraysCache(2)
    block = OpenBlock([cache], 3, Attention())
    block.views[0][0] = mx.ones((1, 3, 4))
    with pytest.raises(ValueError, match="no exact rewind"):
        block.keep(1)
