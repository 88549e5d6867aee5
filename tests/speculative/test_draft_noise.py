"""Drafts chosen with the noise of the draws they are compared with: kept more often, and no token changes."""

from collections.abc import Callable
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from speculative.draft_noise import SHARPNESS, DraftNoise, choose_draft
from speculative.drafter import Drafter
from speculative.gemma_drafter import GemmaDrafter
from speculative.glm_drafter import glm_drafter
from speculative.model_drafter import ModelDrafter
from speculative.qwen_drafter import qwen_drafter
from tests.speculative import test_chained_head, test_inkling, tiny
from tests.speculative.decoding import PROMPTS, SeededNoise, generate, plain, start
from tests.speculative.family_heads import CLUSTERS, assistant, glm_head
from tests.speculative.qwen_files import config_of, random_head

DEPTH, LENGTH = 3, 24
DRAFT_VOCAB = [80, 3, 41, 7, 12, 55]
EVERY_CLUSTER = CLUSTERS | {"centroid_intermediate_top_k": CLUSTERS["num_centroids"]}

MAKERS: dict[str, tuple[str, Callable[[], Drafter]]] = {
    "generic head": ("llama", test_chained_head.bound),
    "head with a vocabulary of its own": (
        "llama",
        lambda: test_chained_head.bound(test_chained_head.head_files(DRAFT_VOCAB)),
    ),
    "draft model": ("llama", lambda: ModelDrafter(tiny.llama_model())),
    "gemma": ("gemma4", lambda: GemmaDrafter(*assistant())),
    "gemma with clusters": ("gemma4", lambda: GemmaDrafter(*assistant(**EVERY_CLUSTER))),
    "glm": ("glm4_moe_lite", lambda: glm_drafter(*glm_head())),
    "qwen": ("qwen3_5", lambda: qwen_drafter(random_head("dense"), config_of("dense"))),
    "inkling": ("inkling", test_inkling.bound),
}


@cache
def drafter(name: str) -> Drafter:
    family, make = MAKERS[name]
    made = make()
    made.bind(tiny.target(family))
    return made


class Decree:
    """Noise that leaves no choice: at position p the token DRAFT_VOCAB[p % 6] wins."""

    temperature = 0.8

    def row(self, position: int, width: int) -> mx.array:
        return mx.where(mx.arange(width) == DRAFT_VOCAB[position % len(DRAFT_VOCAB)], 1e9, 0.0)


@pytest.mark.parametrize("name", MAKERS)
def test_every_drafter_chooses_with_the_noise_of_the_position_it_drafts_for(name: str) -> None:
    """Draft i of a round that goes on at position p is chosen with row p + i, by the target's ids."""
    target = tiny.target(MAKERS[name][0])
    burst, _ = start(target, PROMPTS["before the window"], drafter(name))
    for position in (1, 4):
        noise = DraftNoise(Decree(), position, target.num_logits)
        ids = drafter(name).draft(burst.state, DEPTH, burst.caches, noise).tolist()
        assert ids == [DRAFT_VOCAB[(position + i) % len(DRAFT_VOCAB)] for i in range(DEPTH)]
        if name == "draft model":  # which has to read a decided token before it drafts again
            break


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_sampled_text_is_that_of_plain_decode(name: str, prompt: str) -> None:
    """Whatever is proposed with noise, every emitted token is the target's own draw."""
    target, noise = tiny.target(MAKERS[name][0]), SeededNoise(3, 0.8)
    wanted = plain(target, PROMPTS[prompt], LENGTH, pick=noise.pick).tokens
    got = generate(target, PROMPTS[prompt], LENGTH, drafter(name), depth=DEPTH, pick=noise.pick, noise=noise)
    assert got.tokens == wanted
    assert [done.drafter_error for done in got.rounds] == [None] * len(got.rounds)


@pytest.mark.parametrize("family", ["llama", "llama-sliding", "qwen3_5", "inkling"])
def test_a_model_drafting_for_itself_draws_what_its_target_draws(family: str) -> None:
    """Every draft is kept with the noise; without it the likeliest tokens are drawn only now and then."""
    target, noise = tiny.target(family), SeededNoise(5, 1.5)
    own = ModelDrafter(tiny.MAKERS[family]())
    own.bind(target)
    prompt = PROMPTS["past the window"]
    coupled, likeliest = (
        generate(target, prompt, 25, own, depth=DEPTH, pick=noise.pick, noise=given)
        for given in (noise, None)
    )
    assert {done.accepted for done in coupled.rounds} == {DEPTH}
    assert coupled.tokens == likeliest.tokens
    assert min(done.accepted for done in likeliest.rounds) < DEPTH


def kept(error: float, sharpness: float | None) -> float:
    """How often a draft is what the target draws, its logits being off by normal errors of that scale."""
    width, draws, temperature = 200, 600, 0.8
    logits = 3 * mx.random.normal((draws, width), key=mx.random.key(1))
    drafted = logits + error * mx.random.normal(logits.shape, key=mx.random.key(2))
    noise = SeededNoise(7, temperature)
    same = 0
    for i in range(draws):
        draw = noise.pick(logits[i : i + 1], mx.zeros(1), i)
        given = DraftNoise(noise, i, width) if sharpness else None
        same += choose_draft(drafted[i], given, 0, sharpness=sharpness or 1.0).item() == draw.item()
    return same / draws


def test_noise_in_common_agrees_more_often_than_the_likeliest_token() -> None:
    """Also for a drafter that is off by as much as the temperature, and always for one that is not off."""
    assert kept(0.0, 1.0) == 1.0
    for sharpness in (1.0, SHARPNESS):
        assert kept(0.8, sharpness) > kept(0.8, None) + 0.05


@pytest.mark.parametrize("names", [None, [5, 0, 8], [[[2, 9, 4]]]])
def test_the_choice_is_the_largest_sum_of_sharpened_logits_and_noise(names: list[int] | None) -> None:
    """Noise belongs to the target's ids, however the tokens that compete are named; logits may be coarse."""
    width, noise = 10, SeededNoise(11, 0.7)
    count = width if names is None else 3
    ids = np.arange(width) if names is None else np.array(names).reshape(-1)
    for position in range(30):
        logits = mx.random.normal((1, 1, count), key=mx.random.key(position)).astype(mx.bfloat16)
        scores = np.array(logits.astype(mx.float32)).reshape(-1) * SHARPNESS / 0.7
        scores += np.array(noise.row(position + 2, width))[ids]
        given = None if names is None else mx.array(names)
        place = choose_draft(logits, DraftNoise(noise, position, width), 2, given)
        assert place.shape == (1, 1)
        assert place.item() == scores.argmax()


def test_without_noise_the_largest_logit_is_proposed() -> None:
    """The lowest id on ties, as greedy decode picks."""
    assert choose_draft(mx.array([1.0, 4.0, 4.0]), None, 5).item() == 1
