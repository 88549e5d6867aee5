"""Rounds with the families' own drafters emit what plain decode emits and leave the caches it leaves."""

from functools import cache

import pytest

from speculative.drafter import Drafter
from speculative.gemma_drafter import GemmaDrafter
from speculative.glm_drafter import glm_drafter
from speculative.probe import ProbeSettings, run_probe
from speculative.selection import DEFAULT, Selection, selected
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, Generated, copied_in_turns, generate, plain
from tests.speculative.drafters import perfect, random_drafter, scripted
from tests.speculative.family_heads import assistant, glm_head

LENGTH = 12
FAMILIES = ("gemma4", "glm4_moe_lite")
DRAFTERS = ("real", "perfect", "random", "scripted")


@cache
def real_drafter(family: str) -> Drafter:
    drafter = GemmaDrafter(*assistant()) if family == "gemma4" else glm_drafter(*glm_head())
    drafter.bind(tiny.target(family))
    return drafter


@cache
def exact_selection(family: str) -> Selection:
    """What the probe finds exact for blocks of 6 rows."""
    settings = ProbeSettings(block_size=6, context_length=64, draws=1, repeats=1)
    result = run_probe(tiny.target(family), settings)
    assert result.exact
    return result.selection


@cache
def wanted(family: str, prompt: str, exact: bool) -> Generated:
    """Plain decode; its caches are compared with and never written to."""
    with selected(tiny.target(family), exact_selection(family) if exact else DEFAULT):
        return plain(tiny.target(family), PROMPTS[prompt], LENGTH)


def drafter(name: str, family: str, text: list[int]) -> Drafter:
    match name:
        case "real":
            return real_drafter(family)
        case "perfect":
            return perfect(text)
        case "random":
            return random_drafter()
        case _:
            return scripted(text)


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("block_size", [2, 4, 6])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_equal_plain_decode(family: str, name: str, block_size: int, prompt: str, exact: bool) -> None:
    """Same ids; same caches, to the bit under the selection found exact and within rounding by default."""
    target, plainly = tiny.target(family), wanted(family, prompt, exact)
    proposer = drafter(name, family, plainly.tokens)
    with selected(target, exact_selection(family) if exact else DEFAULT):
        got = generate(target, PROMPTS[prompt], LENGTH, proposer, depth=block_size - 1)
    assert got.tokens == plainly.tokens
    difference = tiny.largest_difference(got.caches, plainly.caches)
    assert difference == 0.0 if exact else difference < 1e-5
    if exact:
        assert tiny.same_bytes(got.logits, plainly.logits)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_copied_rounds_leave_the_families_drafters_in_order(family: str, prompt: str) -> None:
    """They draft from where the text is, with or without caches of their own."""
    target, text = tiny.target(family), plain(tiny.target(family), PROMPTS[prompt], 36).tokens
    rounds = copied_in_turns(target, PROMPTS[prompt], text, real_drafter(family))
    emitted = [text[0], *(token for done in rounds for token in done.emitted)]
    assert emitted == text[: len(emitted)]
    assert [done.drafter_error for done in rounds] == [None] * len(rounds)
    assert [done.drafted for done in rounds] == [3] * len(rounds)
