"""Every family, block size, drafter, context and way to end: the text, logits and caches of plain decode."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from speculative.probe import ProbeSettings, run_probe
from speculative.rollback import clone_caches
from speculative.selection import Selection, selected
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, Generated, generate, plain
from tests.speculative.drafters import ScriptedDrafter, doubtful, perfect, random_drafter, scripted

LENGTH = 12
MakeDrafter = Callable[[Sequence[int]], ScriptedDrafter]
DRAFTERS: dict[str, MakeDrafter] = {
    "perfect": perfect,
    "random": lambda text: random_drafter(),
    "scripted": scripted,
    "doubtful": doubtful,
}
QUICK = [4]
OTHERS = [1, 2, 6]


@cache
def exact_selection(family: str) -> Selection:
    """The selection the probe finds for this family's tiny model."""
    settings = ProbeSettings(block_size=6, context_length=64, draws=1, repeats=1)
    result = run_probe(tiny.target(family), settings)
    assert result.exact, result.detail
    return result.selection


def stop_token(text: Sequence[int]) -> int:
    """A token whose first occurrence lies well inside the text, where the family's text has one."""
    return max(set(text), key=list(text).index)


def assert_same(got: Generated, wanted: Generated) -> None:
    assert got.tokens == wanted.tokens
    assert tiny.same_bytes(got.logits, wanted.logits)
    assert tiny.largest_difference(got.caches, wanted.caches) == 0.0


@cache
def prefilled(family: str, context: str) -> tuple[list[Any], int]:
    """The prompt's whole prefill chunks; they do not depend on the selection."""
    length = len(PROMPTS[context]) // 8 * 8
    return tiny.prefill(tiny.target(family), PROMPTS[context][:length])[0], length


def prefix(family: str, context: str) -> tuple[list[Any], int]:
    caches, length = prefilled(family, context)
    return clone_caches(caches), length


@cache
def plainly(family: str, context: str, length: int, stop: tuple[int, ...] = ()) -> Generated:
    """Plain decode under the family's selection, which the caller has put in force."""
    own = prefix(family, context)
    return plain(tiny.target(family), PROMPTS[context], length, stop=stop, prefix=own)


@pytest.mark.parametrize("context", PROMPTS)
@pytest.mark.parametrize("rows", [*QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in OTHERS)])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rounds_give_the_bytes_of_plain_decode(family: str, rows: int, context: str) -> None:
    """Under the selection the probe finds, tokens, logits and caches are byte-equal, however it ends."""
    target = tiny.target(family)
    with selected(target, exact_selection(family)):
        text = plainly(family, context, LENGTH).tokens
        for length, stop in ((LENGTH - 1, ()), (LENGTH, ()), (LENGTH, (stop_token(text),))):
            wanted = plainly(family, context, length, stop)
            for make in DRAFTERS.values():
                got = generate(
                    target,
                    PROMPTS[context],
                    length,
                    make(text),
                    depth=rows - 1,
                    stop=stop,
                    prefix=prefix(family, context),
                )
                assert_same(got, wanted)


@pytest.mark.parametrize("family", ["llama-sliding", "gemma4", "glm4_moe_lite"])
def test_default_kernels_keep_the_text_and_stay_close(family: str) -> None:
    """Where the probe rejects the default selection, logits and caches differ by rounding only."""
    target = tiny.target(family)
    assert exact_selection(family).name == "row_invariant"
    prompt = PROMPTS["past the window"]
    wanted = plain(target, prompt, LENGTH)
    got = generate(target, prompt, LENGTH, scripted(wanted.tokens), depth=3)
    assert got.tokens == wanted.tokens
    assert mx.allclose(got.logits, wanted.logits, atol=1e-4).item()
    assert tiny.largest_difference(got.caches, wanted.caches) < 1e-4


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rounds_on_reused_caches_equal_rounds_on_fresh_ones(family: str) -> None:
    """Starting from a stored copy of a prompt's prefix changes nothing, and the copy stays as it was."""
    target = tiny.target(family)
    prompt = PROMPTS["past the window"]
    with selected(target, exact_selection(family)):
        wanted = plain(target, prompt, LENGTH)
        stored, _ = tiny.prefill(target, prompt[:24])
        before = tiny.frozen(stored)
        for _ in range(2):
            drafter = scripted(wanted.tokens)
            got = generate(target, prompt, LENGTH, drafter, depth=3, prefix=(clone_caches(stored), 24))
            assert_same(got, wanted)
        for cache_before, cache_after in zip(before, tiny.frozen(stored), strict=True):
            assert all(map(tiny.same_bytes, cache_before, cache_after))
