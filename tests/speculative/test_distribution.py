"""Above temperature 0 emitted tokens follow the target's own filtered distribution, whatever is drafted."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import apply_top_p

from speculative.rollback import clone_caches
from speculative.round import Burst, Pick, run_round
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.drafters import ScriptedDrafter, random_drafter, scripted

VOCAB = 6
PROMPT = [1, 2, 3, 4]
FIRST = 5
DRAWS = 800

Filter = Callable[[mx.array], mx.array]
Pair = tuple[int, int]


@cache
def target() -> Target:
    """A model whose next token is uncertain, so that many pairs occur."""
    return Target(
        tiny.llama_model(
            hidden_size=16, num_hidden_layers=1, intermediate_size=16, num_attention_heads=1,
            num_key_value_heads=1, vocab_size=VOCAB, scale=0.1,
        )
    )  # fmt: skip


def filtered(temperature: float, top_p: float) -> Filter:
    """Log-probabilities after temperature and top-p."""

    def apply(logits: mx.array) -> mx.array:
        scaled = logits / temperature
        scaled = scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)
        return apply_top_p(scaled, top_p) if top_p < 1 else scaled

    return apply


def sampler(seed: int, distribution: Filter) -> Pick:
    """Draws row i with a key of seed and position + i alone."""

    def pick(logits: mx.array, block: mx.array, position: int) -> mx.array:
        rows = distribution(logits)
        keys = [mx.random.key(seed * 1000 + position + i) for i in range(rows.shape[0])]
        return mx.stack([mx.random.categorical(row, key=key) for row, key in zip(rows, keys, strict=True)])

    return pick


def exact_pairs(distribution: Filter) -> dict[Pair, float]:
    """The probability of every pair of next tokens, from plain forwards."""

    def next_probabilities(tokens: list[int]) -> list[float]:
        logits = target().forward(mx.array([tokens]), target().make_cache()).logits[:, -1]
        return mx.softmax(distribution(logits), axis=-1)[0].tolist()  # pyright: ignore[reportReturnType]

    first = next_probabilities([*PROMPT, FIRST])
    second = {i: next_probabilities([*PROMPT, FIRST, i]) for i in range(VOCAB)}
    return {(i, j): p * second[i][j] for i, p in enumerate(first) for j in range(VOCAB)}


def speculative_pairs(distribution: Filter) -> Counter[Pair]:
    """The first two tokens emitted after FIRST, in as many rounds as that takes, over many seeds."""
    caches, _ = tiny.prefill(target(), PROMPT)
    pairs: Counter[Pair] = Counter()
    for seed in range(DRAWS):
        drafter = ScriptedDrafter(lambda done, depth, seed=seed: [(seed + i) % 3 for i in range(depth)])
        own, tokens = clone_caches(caches), [FIRST]
        state = drafter.make_state()
        while len(tokens) < 3:
            burst = Burst(
                target=target(), caches=own, bonus=tokens[-1], position=len(tokens), drafter=drafter,
                state=state,
            )  # fmt: skip
            tokens += run_round(burst, 2, sampler(seed, distribution)).emitted
        pairs[tokens[1], tokens[2]] += 1
    return pairs


def chi_squared(observed: Counter[Pair], expected: dict[Pair, float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells expected fewer than 5 times are pooled."""
    total = sum(observed.values())
    large = [cell for cell, p in expected.items() if p * total >= 5]
    cells = [(observed[cell], expected[cell] * total) for cell in large]
    rest = total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells)
    if rest[1] >= 1:
        cells.append(rest)
    return sum((count - mean) ** 2 / mean for count, mean in cells), len(cells) - 1


def critical(freedom: int) -> float:
    """The value chi-squared exceeds once in a thousand times (Wilson and Hilferty's approximation)."""
    step = 2 / (9 * freedom)
    return freedom * (1 - step + 3.09 * math.sqrt(step)) ** 3


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [
        (0.7, 0.9),
        pytest.param(1.0, 0.8, marks=pytest.mark.slow),
        pytest.param(1.0, 1.0, marks=pytest.mark.slow),
    ],
)
def test_emitted_tokens_follow_the_targets_distribution(temperature: float, top_p: float) -> None:
    """Pairs of emitted tokens fit the target's filtered distribution and nothing outside it is emitted."""
    distribution = filtered(temperature, top_p)
    expected, observed = exact_pairs(distribution), speculative_pairs(distribution)
    assert all(expected[pair] > 0 for pair in observed)
    statistic, freedom = chi_squared(observed, expected)
    assert freedom >= 8
    assert statistic < critical(freedom)


def test_the_statistic_tells_a_wrong_distribution() -> None:
    """Tokens drawn at another temperature are recognised as such, so the test above can fail."""
    observed = speculative_pairs(filtered(0.6, 1.0))
    statistic, freedom = chi_squared(observed, exact_pairs(filtered(1.0, 1.0)))
    assert statistic > critical(freedom)


@pytest.mark.parametrize("family", ["llama", "llama-sliding", "qwen3_5"])
def test_a_seeded_text_does_not_depend_on_speculation(family: str) -> None:
    """With keys of seed and position, sampled text is the same plainly and with any drafter and depth."""
    prompt = tiny.prompt(9)
    for seed in range(3):
        pick = sampler(seed, filtered(1.0, 0.9))
        wanted = plain(tiny.target(family), prompt, 14, pick=pick).tokens
        for drafter, depth in ((random_drafter(), 2), (scripted(wanted), 3), (scripted(wanted), 5)):
            got = generate(tiny.target(family), prompt, 14, drafter, depth=depth, pick=pick)
            assert got.tokens == wanted
    assert len(set(wanted)) > 3
