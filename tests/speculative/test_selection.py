"""Kernel selections: what they change, that they can be undone, and that batches still run under them."""

import sys

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.glm4_moe_lite import ModelArgs, MoEGate
from mlx_lm.models.mla import MultiLinear

from speculative.selection import (
    DEFAULT,
    NARROW,
    AppliedSelection,
    Selection,
    candidates,
    selected,
    why_unavailable,
)
from speculative.target import Target
from speculative.tiling import tiled
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, generate, plain
from tests.speculative.drafters import scripted

ROW_INVARIANT = Selection(name="row_invariant", attention="row", tile=4)


class ShapeDependent(nn.Linear):
    """A linear layer whose bytes depend on how many rows it is given, as optimised kernels' do."""

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x) * (1 + 1e-6 * (x.size // x.shape[-1]))


def shape_dependent_target() -> Target:
    model = tiny.llama_model(tie_word_embeddings=False)
    for module in model.modules():
        for name, child in module.children().items():
            if type(child) is nn.Linear:
                twin = ShapeDependent(1, 1, bias=False)
                twin.weight = child.weight
                module[name] = twin
    return Target(model)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("lead", [(), (1,)])
def test_tiled_layers_compute_what_they_wrap(rows: int, lead: tuple[int, ...]) -> None:
    """Padding is invisible: any number of rows, with or without a batch axis, gives the inner result."""
    x = mx.random.normal((*lead, rows, 32), key=mx.random.key(1))
    linear, embedding = nn.Linear(32, 8), nn.Embedding(12, 32)
    gate = tiny.randomise(MoEGate(ModelArgs(**tiny.GLM_FIELDS | {"hidden_size": 32})))
    assert mx.allclose(tiled(linear, 4)(x), linear(x), atol=1e-6).item()
    head = tiled(embedding, 4)
    assert mx.allclose(head.as_linear(x), embedding.as_linear(x), atol=1e-6).item()
    assert mx.array_equal(head(mx.array([3, 5])), embedding(mx.array([3, 5]))).item()
    for got, wanted in zip(tiled(gate, 4)(x), gate(x), strict=True):
        assert got.shape == wanted.shape
        assert mx.allclose(mx.sort(got, axis=-1), mx.sort(wanted, axis=-1), atol=1e-6).item()


@pytest.mark.parametrize("rows", [1, 4, 6])
def test_tiled_heads_compute_what_they_wrap(rows: int) -> None:
    """Per-head projections are padded along their rows, in both directions."""
    heads = MultiLinear(16, 8, 3)
    x, y = mx.ones((1, 3, rows, 16)), mx.ones((1, 3, rows, 8))
    assert mx.allclose(tiled(heads, 4)(x), heads(x), atol=1e-6).item()
    assert mx.allclose(tiled(heads, 4)(y, transpose=False), heads(y, transpose=False), atol=1e-6).item()


def test_other_modules_are_left_alone() -> None:
    """What is not a matrix product by rows is not wrapped."""
    norm = nn.RMSNorm(4)
    assert tiled(norm, 4) is norm


def test_row_counts_up_to_the_tile_share_one_kernel() -> None:
    """Where kernels depend on the row count, only the tile makes block and single steps byte-equal."""
    target = shape_dependent_target()
    wanted = plain(target, PROMPTS["before the window"], 16)
    unequal = generate(target, PROMPTS["before the window"], 16, scripted(wanted.tokens), depth=3)
    assert not tiny.same_bytes(unequal.logits, wanted.logits)
    with selected(target, ROW_INVARIANT):
        wanted = plain(target, PROMPTS["before the window"], 16)
        for depth in (1, 2, 3):
            got = generate(target, PROMPTS["before the window"], 16, scripted(wanted.tokens), depth=depth)
            assert tiny.same_bytes(got.logits, wanted.logits)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_undoing_restores_the_models_own_layers(family: str) -> None:
    """After a selection is undone the model holds the same layer objects and gives the same bytes."""
    target = tiny.target(family)
    tokens = mx.array([tiny.prompt(3)])
    before = target.forward(tokens, target.make_cache()).logits
    layers = [type(m) for m in target.model.modules()]
    head = target.output_head
    applied = AppliedSelection(target, ROW_INVARIANT)
    assert target.output_head is not head
    assert mx.allclose(target.forward(tokens, target.make_cache()).logits, before, atol=1e-4).item()
    applied.undo()
    applied.undo()
    assert target.output_head is head
    assert [type(m) for m in target.model.modules()] == layers
    assert tiny.same_bytes(target.forward(tokens, target.make_cache()).logits, before)


def batched(target: Target, prompts: list[list[int]], length: int) -> list[list[int]]:
    generator = BatchGenerator(target.model, max_tokens=length, stop_tokens=[])
    uids = generator.insert(prompts)
    out: dict[int, list[int]] = {uid: [] for uid in uids}
    while any(len(tokens) < length for tokens in out.values()):
        for response in generator.next()[1]:
            out[response.uid].append(response.token)
    generator.close()
    return [out[uid] for uid in uids]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_batches_run_under_a_selection(family: str) -> None:
    """Continuous batching over rotating, recurrent and latent caches emits the same under row_invariant."""
    target = tiny.target(family)
    prompts = [tiny.prompt(5), tiny.prompt(2 * tiny.WINDOW + 1, 1), tiny.prompt(9, 2)]
    wanted = batched(target, prompts, 12)
    with selected(target, ROW_INVARIANT):
        assert batched(target, prompts, 12) == wanted
    assert [len(tokens) for tokens in wanted] == [12, 12, 12]


def test_one_selection_at_a_time() -> None:
    """Applying a selection on top of another is an error."""
    target = tiny.target("llama")
    with selected(target, DEFAULT), pytest.raises(ValueError, match="undo it first"):
        AppliedSelection(target, ROW_INVARIANT)


def test_narrow_kernels_are_reported_as_unavailable() -> None:
    """Stock MLX has no narrow-kernel switch: applying it is an error that says so."""
    assert why_unavailable(DEFAULT) is None
    assert why_unavailable(ROW_INVARIANT) is None
    with pytest.raises(ValueError, match="narrow: this MLX build has no switch"):
        AppliedSelection(tiny.target("llama"), NARROW)


@pytest.mark.parametrize(("block_size", "tiles"), [(2, [0, 4, 2]), (4, [0, 4]), (6, [0, 8, 6]), (8, [0, 8])])
def test_candidates_go_from_cheap_to_dear(block_size: int, tiles: list[int]) -> None:
    """Default, narrow, row-wise attention alone; then rows padded to a multiple of 4, last to the block."""
    names = [selection.name for selection in candidates(block_size)]
    assert names == ["default", "narrow", *["row_invariant"] * len(tiles)]
    assert [s.tile for s in candidates(block_size)[2:]] == tiles


def test_only_tiles_of_padded_rows_bound_a_block() -> None:
    """Attention in tiles as high as what comes takes blocks of any size."""
    bounds = {s.describe(): s.max_rows for s in candidates(6, attends_in_tiles=True)}
    assert bounds.pop("row_invariant (tile 8, attention in tiles)") == 8
    assert set(bounds.values()) == {sys.maxsize}
    assert "row_invariant (attention in tiles)" in bounds
