"""The exactness probe: which inputs, which verdict, which sentence, and what it leaves behind."""

import re

import mlx.core as mx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

from speculative.probe import ProbeResult, ProbeSettings, differing_bytes, probe_steps, run_probe
from speculative.probe_plan import draws, edge_lengths
from speculative.rollback import OpenBlock
from speculative.selection import candidates
from speculative.target import Forward, Target
from tests.speculative import tiny
from tests.speculative.test_selection import shape_dependent_target

SETTINGS = ProbeSettings(block_size=4, context_length=64, draws=2, repeats=1)
SENTENCE = r"verify block position \d+ differs from the single-token chain in \d+ of 384 logit bytes"


def chosen(result: ProbeResult) -> tuple[bool, str]:
    return result.exact, result.selection.describe()


def test_default_is_chosen_where_it_is_exact() -> None:
    """A model whose kernels do not depend on the row count needs no other selection."""
    result = run_probe(tiny.target("llama"), SETTINGS)
    assert chosen(result) == (True, "default")
    assert result.detail == ""
    assert len(result.attempts) == 1


@pytest.mark.parametrize("family", ["llama-sliding", "gemma4", "glm4_moe_lite"])
def test_row_attention_is_chosen_where_only_attention_differs(family: str) -> None:
    """Past a window, and for latent attention, block evaluation is rejected and row by row accepted."""
    result = run_probe(tiny.target(family), SETTINGS)
    assert chosen(result) == (True, "row_invariant")
    default, narrow, row = result.attempts
    assert re.fullmatch(SENTENCE, default.reason)
    assert "no switch" in narrow.reason
    assert row.reason == ""


def test_a_tile_is_chosen_where_matrix_kernels_differ() -> None:
    """Kernels that depend on the row count are made equal by padding to the block size."""
    result = run_probe(shape_dependent_target(), SETTINGS)
    assert chosen(result) == (True, "row_invariant (tile 4, attention in tiles)")


def test_nothing_is_chosen_where_nothing_helps() -> None:
    """When no selection is exact the result says so in the default selection's words."""
    target = Target(tiny.llama_model())
    noise = iter(range(1, 10**6))
    honest = target.logits
    target.logits = lambda hidden: honest(hidden) + 1e-3 * next(noise)  # pyright: ignore[reportAttributeAccessIssue]
    result = run_probe(target, SETTINGS)
    assert chosen(result) == (False, "default")
    also = r"Selecting row_invariant.* or row_invariant.* did not make it exact either\."
    assert re.fullmatch(rf"{SENTENCE}\. {also}", result.detail)
    assert [attempt.selection for attempt in result.attempts] == list(candidates(4, attends_in_tiles=True))


def test_three_independent_inputs_are_compared_by_default() -> None:
    """A difference that only the third draw shows is found without asking, and missed by two draws."""
    target = tiny.target("llama")
    contexts = edge_lengths(target.make_cache(), 4, 64)
    _, _, third = draws(3, contexts, ProbeSettings(block_size=4, context_length=64).cost_rows, tiny.VOCAB)
    honest = target.verify

    def verify(tokens: mx.array, block: OpenBlock) -> Forward:
        out = honest(tokens, block)
        is_third = tuple(tokens[0].tolist()) == third.block[: tokens.shape[1]]
        return out._replace(logits=out.logits + 1e-3 * is_third)

    target.verify = verify  # pyright: ignore[reportAttributeAccessIssue]
    settings = ProbeSettings(block_size=4, context_length=64, repeats=1)
    assert not run_probe(target, settings).exact
    assert run_probe(target, msgspec.structs.replace(settings, draws=2)).exact


def test_pinned_kernels_are_not_replaced() -> None:
    """With a pin only the default selection is tried, and a decline says that no other one was.

    As in the original a pin of either value forbids the retry; unlike there it switches no kernel itself.
    """
    pinned = msgspec.structs.replace(SETTINGS, pinned_by="MLXCEL_QMV_WIDE")
    result = run_probe(shape_dependent_target(), pinned)
    assert chosen(result) == (False, "default")
    assert len(result.attempts) == 1
    skipped = r" The qmv_wide retry was skipped because MLXCEL_QMV_WIDE is pinned\."
    assert re.fullmatch(rf"{SENTENCE}\.{skipped}", result.detail)
    assert run_probe(tiny.target("llama"), pinned).exact
    assert (
        "retry" not in run_probe(tiny.target("llama"), msgspec.structs.replace(pinned, block_size=1)).detail
    )


def test_chain_is_what_the_server_does_plainly() -> None:
    """The chain arm decodes with the caches it is told to, here those of a batch of one."""
    target, calls = tiny.target("llama"), []

    def batch_of_one(caches: list[KVCache]) -> list[object]:
        calls.append(len(caches))
        return [type(cache).merge([cache]) for cache in caches]

    assert run_probe(target, SETTINGS, batch_of_one).exact
    assert calls


def test_cost_is_measured_per_row_count() -> None:
    """Times are reported for one plain step and for 1 to 8 rows under the selection in force."""
    result = run_probe(tiny.target("glm4_moe_lite"), SETTINGS)
    assert len(result.verify_cost.rows_ms) == 8
    assert min(result.verify_cost.plain_ms, *result.verify_cost.rows_ms, result.duration_ms) > 0


SIZES = (2, 3, 4, 5, 6, 7, 8)


def test_other_block_sizes_are_compared_too() -> None:
    """Where kernels do not depend on the row count every size is exact; without a question only K is."""
    wanted = msgspec.structs.replace(SETTINGS, other_sizes=SIZES)
    assert run_probe(tiny.target("llama"), wanted).exact_sizes == SIZES
    assert run_probe(tiny.target("llama"), SETTINGS).exact_sizes == (4,)


@pytest.mark.parametrize(
    ("in_tiles", "name"),
    [(True, "row_invariant (tile 4, attention in tiles)"), (False, "row_invariant (tile 4)")],
)
def test_blocks_within_a_tile_are_exact_and_larger_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, in_tiles: bool, name: str
) -> None:
    """A tile of 4 rows makes 2, 3 and 4 rows one kernel; 5 rows have no tile, or run outside and differ."""
    monkeypatch.setattr(Target, "attends_in_tiles", in_tiles)
    result = run_probe(shape_dependent_target(), msgspec.structs.replace(SETTINGS, other_sizes=SIZES))
    assert chosen(result) == (True, name)
    assert result.exact_sizes == (2, 3, 4)
    assert len(result.verify_cost.rows_ms) == (4 if in_tiles else 8)


def test_one_exact_size_vouches_for_no_other() -> None:
    """Kernels that differ at five rows rule out that size and all above, whose rounds may be shorter."""
    target = Target(tiny.llama_model())
    honest = target.logits
    target.logits = lambda hidden: honest(hidden) * (1 + 1e-3 * (hidden.shape[1] == 5))  # pyright: ignore[reportAttributeAccessIssue]
    result = run_probe(target, msgspec.structs.replace(SETTINGS, other_sizes=SIZES))
    assert result.exact_sizes == (2, 3, 4)


@pytest.mark.parametrize("rows", [2, 3])
def test_shorter_blocks_are_compared_after_every_context(rows: int) -> None:
    """A difference at fewer rows than K counts, even where only a later context shows it."""
    target, begun = Target(tiny.llama_model()), []
    verify = target.verify

    def disturbed(tokens: mx.array, block: OpenBlock) -> Forward:
        out = verify(tokens, block)
        begun.append(tokens[0, 0].item())
        is_off = tokens.shape[1] == rows and begun[-1] != begun[0]
        return out._replace(logits=out.logits * 1.001) if is_off else out

    target.verify = disturbed  # pyright: ignore[reportAttributeAccessIssue]
    result = run_probe(target, SETTINGS)
    assert not result.exact
    assert "verify block position 0 differs" in result.detail


def test_a_size_that_fits_no_context_is_not_exact() -> None:
    """With 14 tokens in all there is room for six rows after the shortest context."""
    wanted = msgspec.structs.replace(SETTINGS, other_sizes=SIZES, context_length=14)
    assert run_probe(tiny.target("llama"), wanted).exact_sizes == (2, 3, 4, 5, 6)


def test_a_sizes_own_edges_are_visited() -> None:
    """A difference only past a sliding window is found for sizes other than K as well."""
    target = tiny.target("llama-sliding")
    wanted = msgspec.structs.replace(SETTINGS, other_sizes=SIZES)
    result = run_probe(target, wanted)
    assert chosen(result) == (True, "row_invariant")
    assert result.exact_sizes == SIZES


@pytest.mark.parametrize(
    ("changes", "message"), [({"block_size": 1}, "block size 1"), ({"context_length": 5}, "context of 5")]
)
def test_what_cannot_be_probed_is_not_exact(changes: dict[str, int], message: str) -> None:
    """A block of one row, or no room for a context, is a decline that says the probe did not run."""
    result = run_probe(tiny.target("llama"), msgspec.structs.replace(SETTINGS, **changes))
    assert not result.exact
    assert result.detail.startswith("exactness probe did not run: ")
    assert message in result.detail


def test_a_model_that_cannot_be_rewound_is_not_exact() -> None:
    """Caches without exact rewind make every attempt fail with that reason."""

    class OtherCache(KVCache):
        pass

    target = Target(tiny.llama_model())
    target.make_cache = lambda: [OtherCache(), OtherCache()]  # pyright: ignore[reportAttributeAccessIssue]
    result = run_probe(target, SETTINGS)
    assert result.detail == "exactness probe did not run: no exact rewind for a cache of type OtherCache."


def test_a_probe_given_up_half_way_restores_the_model() -> None:
    """Closing the steps anywhere leaves no selection in force."""
    target = shape_dependent_target()
    total = sum(1 for _ in probe_steps(target, SETTINGS))
    assert total > 20
    for stop in range(1, total, 7):
        steps = probe_steps(target, SETTINGS)
        for _ in range(stop):
            next(steps)
        steps.close()
        assert not target.selected


def test_result_can_be_stored() -> None:
    """A result survives JSON unchanged."""
    result = run_probe(tiny.target("llama"), SETTINGS)
    assert msgspec.json.decode(msgspec.json.encode(result), type=ProbeResult) == result


def test_differing_bytes_are_counted_per_row() -> None:
    """One changed float of four bytes counts the bytes that changed, in its row only; NaN equals itself."""
    left = mx.array([[1.0, 2.0], [float("nan"), 4.0]])
    right = mx.array([[1.0, -2.0], [float("nan"), 4.0]])
    assert differing_bytes(left, right).tolist() == [1, 0]


@given(st.integers(2, 16), st.integers(2, 5000), st.integers(1, 2000))
def test_contexts_leave_room_for_the_block(block: int, context: int, window: int) -> None:
    """Every context and block fit the model; with room enough all edges are visited."""
    lengths = edge_lengths([CacheList(KVCache(), RotatingKVCache(window))], block, context)
    assert all(n >= 1 and n + block <= context for n in lengths)
    assert list(lengths) == sorted(set(lengths))
    if context == 5000:
        assert 1056 in lengths
        assert any(n < 256 < n + block for n in lengths)
        assert any(n > window for n in lengths)


def test_draws_differ_and_stay_in_the_vocabulary() -> None:
    """Each draw has its own tokens, all of them legal, and long enough for its contexts."""
    made = draws(3, (8, 300), 4, 50)
    assert len({draw.block for draw in made}) == 3
    for draw in made:
        assert len(draw.prompt) == max(draw.lengths)
        assert all(0 <= token < 50 for token in draw.prompt + draw.block)
