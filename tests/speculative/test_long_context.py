"""Rounds on a long context work on the caches in place: no hidden copy of keys and values."""

from typing import Any

import mlx.core as mx
import pytest

from speculative.chained_head import ChainedHeadDrafter
from speculative.round import Burst, run_round
from speculative.selection import DEFAULT, Selection, selected
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import greedy
from tests.speculative.test_chained_head import bound, head_files

CONTEXT = 8000
HEADS, WIDTH = 4, 64


def filled(caches: list[Any], length: int) -> list[Any]:
    """The same caches holding `length` random rows."""
    for i, cache in enumerate(caches):
        rows = mx.random.normal((1, HEADS, length, WIDTH), key=mx.random.key(i))
        cache.update_and_fetch(rows, rows)
    mx.eval([cache.state for cache in caches])
    return caches


def long_burst(target: Target, drafter: ChainedHeadDrafter) -> Burst:
    state = drafter.make_state()
    state.caches, state.length = filled(state.caches, CONTEXT), CONTEXT
    drafter.extend(state, [3], mx.zeros((1, 1, 64)))
    caches = filled(target.make_cache(), CONTEXT)
    return Burst(target=target, caches=caches, bonus=3, position=1, drafter=drafter, state=state)


@pytest.mark.parametrize(
    "selection", [DEFAULT, Selection(name="row_invariant", attention="row", tile=4)], ids=["default", "row"]
)
def test_a_round_does_not_copy_the_caches(selection: Selection) -> None:
    """Target and head keep 8,000 tokens of KV; a round needs less memory than one copy of one buffer."""
    geometry: dict[str, Any] = {"num_key_value_heads": HEADS, "num_attention_heads": HEADS, "head_dim": WIDTH}
    target = Target(tiny.llama_model(**geometry))
    burst = long_burst(target, bound(head_files(**geometry), target))
    buffer_bytes = burst.caches[0].keys.nbytes
    with selected(target, selection):
        run_round(burst, 3, greedy)
        for _ in range(3):
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            run_round(burst, 3, greedy)
            assert mx.get_peak_memory() - before < buffer_bytes


def test_a_live_view_would_be_noticed() -> None:
    """Holding a slice of the keys across a round makes it copy them, which the measure above shows."""
    geometry: dict[str, Any] = {"num_key_value_heads": HEADS, "num_attention_heads": HEADS, "head_dim": WIDTH}
    target = Target(tiny.llama_model(**geometry))
    burst = long_burst(target, bound(head_files(**geometry), target))
    run_round(burst, 3, greedy)
    view = burst.caches[0].keys[..., : burst.caches[0].offset, :]
    mx.eval(view)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    run_round(burst, 3, greedy)
    assert mx.get_peak_memory() - before >= burst.caches[0].keys.nbytes
    del view
