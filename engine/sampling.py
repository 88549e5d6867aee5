"""Logits to one token: penalties, filters, and draws whose noise depends on seed and position only.

Because the noise never depends on call order, a seeded request draws the same tokens alone, in a batch, or
from the rows of a verify forward.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx_lm import sample_utils
from mlx_lm.sample_utils import LogitsProcessor

from messages.requests import SamplingParams

# As many rows as the longest blocks in common use; a longer one makes some of its noise twice.
_KEPT_POSITIONS = 8
_MASK64 = (1 << 64) - 1

Draw = Callable[[mx.array, int], mx.array]


def position_key(seed: int, position: int) -> mx.array:
    """Random key, shape [2] uint32, of one position of one seeded request.

    The mixing is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), so neighbouring seeds and positions
    share nothing.
    """
    x = (seed * 0x9E3779B97F4A7C15 + position + 1) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    x ^= x >> 31
    return mx.array([x >> 32, x & 0xFFFFFFFF], dtype=mx.uint32)


class GumbelNoise:
    """The noise of one seeded request, each position's made once: for its draft, its draw and the next round.

    A text only grows, so the lowest positions are forgotten first.
    """

    def __init__(self, seed: int, temperature: float, kept: int = _KEPT_POSITIONS) -> None:
        """`kept` is how many positions to remember, 1 or more."""
        self.temperature = temperature
        self._seed = seed
        self._kept = kept
        self._rows: dict[int, mx.array] = {}

    def row(self, position: int, width: int) -> mx.array:
        """Standard Gumbel noise [width] float32 of a position, unevaluated when new; see `DrawNoise.row`."""
        row = self._rows.get(position)
        if row is None:
            row = mx.random.gumbel((width,), key=position_key(self._seed, position))
            self._rows[position] = row
            if len(self._rows) > self._kept:
                del self._rows[min(self._rows)]
        return row


def draw_noise(params: SamplingParams, kept: int = _KEPT_POSITIONS) -> GumbelNoise | None:
    """The noise that `params` draw with, None at temperature 0."""
    return GumbelNoise(params.seed, params.temperature, kept) if params.temperature > 0 else None


def filtered_logits(logits: mx.array, params: SamplingParams) -> mx.array:
    """The distribution a sampled token comes from: temperature first, then min-p, top-k and top-p.

    `logits` has shape [..., vocabulary] and need not be normalised; the result is float32 of that shape, no
    more normalised than they are, with -inf for what was filtered out. The order is the one vLLM uses.
    """
    scaled = logits.astype(mx.float32) * (1.0 / params.temperature)
    if params.min_p > 0:
        scaled = sample_utils.apply_min_p(scaled, params.min_p)
    if 0 < params.top_k < scaled.shape[-1]:
        scaled = sample_utils.apply_top_k(scaled, params.top_k)
    if params.top_p < 1:
        # mlx-lm divides by the total itself, but takes exponentials as they come.
        scaled = scaled - scaled.max(axis=-1, keepdims=True)
        scaled = sample_utils.apply_top_p(scaled, params.top_p)
    return scaled


def make_draw(params: SamplingParams, noise: GumbelNoise | None) -> Draw:
    """A function (logits [rows, vocabulary], position of the first row) -> token ids [rows].

    Row i is the argmax of its filtered logits and the noise of position + i, a sample of their softmax (the
    Gumbel-max trick); without noise it is the argmax (lowest id on ties). Log-probabilities do as well.
    """
    if noise is None:
        return lambda logits, position: sample_utils.greedy_sampler(logits)

    def draw(logits: mx.array, position: int) -> mx.array:
        filtered = filtered_logits(logits, params)
        rows = [
            mx.argmax(filtered[i : i + 1] + noise.row(position + i, filtered.shape[-1]), axis=-1)
            for i in range(filtered.shape[0])
        ]
        return rows[0] if len(rows) == 1 else mx.concatenate(rows)

    return draw


class RowSampler:
    """mlx-lm's sampler interface over a position-indexed draw: one row per call, positions counted here."""

    def __init__(self, draw: Draw, position: int) -> None:
        """`position` is the index, within the generated text, of the first token to draw."""
        self._draw = draw
        self._position = position

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Draw the next token from logprobs [1, vocabulary]."""
        token = self._draw(logprobs, self._position)
        self._position += 1
        return token


def row_sampler(params: SamplingParams, position: int) -> Callable[[mx.array], mx.array]:
    """The sampler of one row of a batch; greedy rows share one function, which mlx-lm evaluates batched."""
    if params.temperature == 0:
        return sample_utils.greedy_sampler
    return RowSampler(make_draw(params, draw_noise(params, kept=1)), position)


def logits_processors(
    params: SamplingParams, prompt_tokens: int, context_length: int
) -> list[LogitsProcessor]:
    """mlx-lm processors for bias and penalties, each (tokens so far, logits [rows, vocabulary]) -> logits.

    Presence and frequency penalties count generated tokens only, the repetition penalty prompt and
    generated ones, over the whole text, as OpenAI and vLLM define them.
    """
    processors: list[LogitsProcessor] = []
    if params.logit_bias or params.repetition_penalty != 1:
        processors += sample_utils.make_logits_processors(
            logit_bias=dict(params.logit_bias) or None,
            repetition_penalty=params.repetition_penalty if params.repetition_penalty != 1 else None,
            repetition_context_size=context_length,
        )
    generated_only = sample_utils.make_logits_processors(
        presence_penalty=params.presence_penalty,
        presence_context_size=context_length,
        frequency_penalty=params.frequency_penalty,
        frequency_context_size=context_length,
    )
    return processors + [_after(prompt_tokens, processor) for processor in generated_only]


def _after(prompt_tokens: int, processor: LogitsProcessor) -> LogitsProcessor:
    return lambda tokens, logits: processor(tokens[prompt_tokens:], logits)
