"""Chooses the target's token after every row: penalties, log-probabilities and the draw, for rows of a block.

The same for one row as for several, so plain steps and verify rows cannot differ in how they sample.
"""

import mlx.core as mx

from engine.sampling import draw_noise, logits_processors, make_draw
from engine.sequence import Sequence


class Picker:
    """A `speculative.round.Pick` for one sequence.

    `logprobs` [K, V] are those of its latest call, and cost nothing until they are used. `noise` is what it
    draws with, None when it picks greedily.
    """

    def __init__(self, sequence: Sequence, context_length: int) -> None:
        """`context_length` bounds how far back penalties look, in tokens."""
        request = sequence.request
        self._sequence = sequence
        self.noise = draw_noise(request.sampling)
        self._draw = make_draw(request.sampling, self.noise)
        self._processors = logits_processors(request.sampling, len(request.prompt), context_length)
        self.logprobs: mx.array = mx.zeros((0, 0))

    def __call__(self, logits: mx.array, block: mx.array, position: int) -> mx.array:
        """Ids [K] from logits [K, V]; `position` is the index in the generated text of row 0's token."""
        if self._processors:
            logits = self._processed(logits, block, position)
        self.logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        # Normalising a row of the vocabulary takes as long as a layer, and changes no draw.
        return self._draw(logits, position)

    def launch(self, token: mx.array) -> None:
        """Start computing a token picked here, with its log-probabilities if they were asked for."""
        wants_logprobs = self._sequence.request.top_logprobs is not None
        mx.async_eval(token, *((self.logprobs,) if wants_logprobs else ()))

    def _processed(self, logits: mx.array, block: mx.array, position: int) -> mx.array:
        request = self._sequence.request
        # block[0] is the token before the one row 0 picks, so everything before it is decided and known.
        before = [*request.prompt, *self._sequence.token_ids][: len(request.prompt) + position - 1]
        known = mx.array(before, dtype=block.dtype)
        rows: list[mx.array] = []
        for index in range(logits.shape[0]):
            row = logits[index : index + 1]
            context = mx.concatenate([known, block[: index + 1]])
            for processor in self._processors:
                row = processor(context, row)
            rows.append(row)
        return mx.concatenate(rows)
