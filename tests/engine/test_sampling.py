"""Draws: from the filtered softmax, the same wherever a position is drawn, their noise made once."""

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.sampling import GumbelNoise, draw_noise, make_draw, row_sampler
from messages.requests import SamplingParams
from tests.speculative.test_distribution import chi_squared, critical

VOCAB, DRAWS = 12, 2000
LOGITS = mx.array([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, 1.2, 0.3, -4.0, 1.9, -1.0, 0.7]])
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 4},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.3},
    "all": {"top_k": 7, "top_p": 0.9, "min_p": 0.05, "temperature": 0.6},
}


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.9, "seed": 17, "top_p": 1.0} | changes))


def drawn(sampling: SamplingParams, logits: mx.array = LOGITS, draws: int = DRAWS) -> list[int]:
    """The tokens at positions 0 to `draws` - 1 of a text whose logits never change."""
    draw = make_draw(sampling, draw_noise(sampling))
    return draw(mx.broadcast_to(logits, (draws, logits.shape[-1])), 0).tolist()  # pyright: ignore[reportReturnType]


def probabilities(sampling: SamplingParams) -> np.ndarray:
    """The filtered distribution, by definition: temperature, min-p, top-k, top-p."""
    p = np.exp(np.array(LOGITS[0], dtype=np.float64) / sampling.temperature)
    p[p < sampling.min_p * p.max()] = 0
    if sampling.top_k:
        p[p < np.sort(p)[-sampling.top_k]] = 0
    p /= p.sum()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= sampling.top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_filtered_distribution(name: str) -> None:
    """Frequencies over many positions fit, and nothing that was filtered out is drawn."""
    sampling = params(**FILTERS[name])
    p = probabilities(sampling)
    counts = Counter((token, 0) for token in drawn(sampling))
    assert all(p[token] > 0 for token, _ in counts)
    statistic, freedom = chi_squared(counts, {(i, 0): float(q) for i, q in enumerate(p)})
    assert freedom >= 2
    assert statistic < critical(freedom)


def test_the_statistic_tells_another_temperature() -> None:
    """So the test above can fail."""
    p = probabilities(params(temperature=1.2))
    counts = Counter((token, 0) for token in drawn(params()))
    statistic, freedom = chi_squared(counts, {(i, 0): float(q) for i, q in enumerate(p)})
    assert statistic > critical(freedom)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shift", [-400.0, 400.0])
def test_logits_need_not_be_normalised(name: str, shift: float) -> None:
    """The lanes give logits or log-probabilities of one row, and draw the same."""
    sampling = params(**FILTERS[name])
    logprobs = LOGITS - mx.logsumexp(LOGITS, axis=-1, keepdims=True)
    assert drawn(sampling, logprobs, 300) == drawn(sampling, LOGITS, 300)
    # Multiples of 1/16: adding the shift rounds nothing away.
    coarse = mx.round(LOGITS * 16) / 16
    assert drawn(sampling, coarse + shift, 300) == drawn(sampling, coarse, 300)


@pytest.mark.parametrize("name", FILTERS)
def test_a_position_draws_the_same_in_every_lane(name: str) -> None:
    """Row by row, as rows of a block, through the batch's sampler, and after a rejection."""
    sampling = params(**FILTERS[name])
    rows = 3 * mx.random.normal((12, VOCAB), key=mx.random.key(5))
    draw = make_draw(sampling, draw_noise(sampling))
    one_by_one = [int(draw(rows[i : i + 1], i).item()) for i in range(12)]
    assert (
        [i for at in (0, 3, 1, 6, 8) for i in draw(rows[at : at + 4], at).tolist()]
        == [  # pyright: ignore[reportGeneralTypeIssues]
            token for at in (0, 3, 1, 6, 8) for token in one_by_one[at : at + 4]
        ]
    )
    sampler = row_sampler(sampling, 4)
    assert [int(sampler(rows[i : i + 1]).item()) for i in range(4, 12)] == one_by_one[4:]


def test_seeds_and_positions_draw_apart() -> None:
    """Another seed, and the next position, share no noise."""
    first, other = GumbelNoise(1, 1.0), GumbelNoise(2, 1.0)
    rows = [first.row(0, 500), first.row(1, 500), other.row(0, 500)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(np.array(rows[i]), np.array(rows[j]))[0, 1]) < 0.2


def test_noise_is_standard_gumbel() -> None:
    """Of mean Euler's constant and variance pi^2 / 6."""
    row = np.array(GumbelNoise(3, 1.0).row(7, 40_000))
    assert row.dtype == np.float32
    assert row.mean() == pytest.approx(0.5772, abs=0.03)
    assert row.var() == pytest.approx(math.pi**2 / 6, abs=0.06)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths of the noise rows made from now on."""
    widths: list[int] = []
    honest = mx.random.gumbel

    def noting(shape: tuple[int, ...], **options: Any) -> mx.array:
        widths.append(shape[0])
        return honest(shape, **options)

    monkeypatch.setattr(mx.random, "gumbel", noting)
    return widths


def test_noise_of_a_position_is_made_once(made: list[int]) -> None:
    """For its drafts, its draws and the rounds after a rejection, block after block."""
    noise = GumbelNoise(4, 1.0)
    for start in range(0, 60, 2):
        for position in (*range(start, start + 4), *range(start, start + 5)):
            noise.row(position, VOCAB)
    assert made == [VOCAB] * 63


def test_few_positions_are_remembered() -> None:
    """However long the text and the blocks, and what was forgotten comes back the same."""
    noise = GumbelNoise(4, 1.0, kept=3)
    first = noise.row(0, VOCAB).tolist()
    for start in range(0, 100, 7):
        for position in range(start, start + 16):
            noise.row(position, VOCAB)
            assert len(noise._rows) <= 3
    assert noise.row(0, VOCAB).tolist() == first


def test_a_greedy_request_makes_no_noise(made: list[int]) -> None:
    """It picks the largest logit, the lowest id on ties."""
    sampling = params(temperature=0.0)
    assert draw_noise(sampling) is None
    draw = make_draw(sampling, None)
    assert draw(mx.array([[1.0, 3.0, 3.0], [5.0, 3.0, 3.0]]), 0).tolist() == [1, 0]
    assert made == []
