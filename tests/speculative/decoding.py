"""Generating with rounds, and plainly, for comparison."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from msgspec import Struct
from msgspec.structs import replace

from speculative.draft_noise import DrawNoise
from speculative.drafter import Drafter
from speculative.round import Burst, Limit, Pick, Round, run_round
from speculative.target import Target
from tests.speculative import tiny

# Caches that already hold this many tokens of the prompt.
Prefix = tuple[list[Any], int]


def greedy(logits: mx.array, block: mx.array, position: int) -> mx.array:
    return mx.argmax(logits, axis=-1)


class SeededNoise:
    """Gumbel noise of a seed's positions, and a pick that draws with it."""

    def __init__(self, seed: int, temperature: float) -> None:
        self.temperature = temperature
        self._seed = seed

    def row(self, position: int, width: int) -> mx.array:
        return mx.random.gumbel((width,), key=mx.random.key(self._seed * 1000 + position))

    def pick(self, logits: mx.array, block: mx.array, position: int) -> mx.array:
        rows = [self.row(position + i, logits.shape[-1]) for i in range(logits.shape[0])]
        return mx.argmax(logits.astype(mx.float32) / self.temperature + mx.stack(rows), axis=-1)


class Generated(Struct, frozen=True):
    """Emitted ids, the first token included, the rows they were picked from, rounds, caches at the end."""

    tokens: list[int]
    logits: mx.array
    rounds: list[Round]
    caches: list[Any]


def start(
    target: Target,
    prompt: Sequence[int],
    drafter: Drafter | None,
    pick: Pick = greedy,
    prefix: Prefix | None = None,
) -> tuple[Burst, mx.array]:
    """Prefill, first token, primed drafter: the burst before its first round; the first token's logits."""
    caches, cached = prefix or (target.make_cache(), 0)
    state = drafter.make_state() if drafter else None
    for begin in range(cached, len(prompt), 8):
        chunk = list(prompt[begin : begin + 8])
        out = target.forward(mx.array([chunk]), caches)
        if drafter:
            drafter.prime(state, chunk, out.features)
        mx.eval(out.features, [c.state for c in caches])
    row = out.logits[:, -1]
    first = int(pick(row, mx.array([prompt[-1]]), 0).item())
    if drafter:
        drafter.extend(state, [first], out.features[:, -1:])
    return Burst(target=target, caches=caches, bonus=first, position=1, drafter=drafter, state=state), row


def generate(
    target: Target,
    prompt: Sequence[int],
    length: int,
    drafter: Drafter | None = None,
    *,
    depth: int = 0,
    pick: Pick = greedy,
    limit: Limit | None = None,
    stop: Sequence[int] = (),
    prefix: Prefix | None = None,
    noise: DrawNoise | None = None,
) -> Generated:
    """Emits `length` tokens, or fewer when a token of `stop` comes, in rounds of the given depth."""
    burst, row = start(target, prompt, drafter, pick, prefix)
    tokens, rows, rounds = [burst.bonus], [row], []
    while len(tokens) < length and tokens[-1] not in stop:

        def keep(emitted: Sequence[int], done: int = len(tokens)) -> int:
            ends = [i + 1 for i, token in enumerate(emitted) if token in stop]
            return min([length - done, len(emitted), *ends])

        result = run_round(replace(burst, noise=noise), depth, pick, limit or keep)
        tokens += result.emitted
        rows.append(result.logits)
        rounds.append(result)
        burst = Burst(
            target=target,
            caches=burst.caches,
            bonus=result.bonus,
            position=len(tokens),
            drafter=drafter,
            state=burst.state,
        )
    return Generated(tokens, mx.concatenate(rows), rounds, burst.caches)


def plain(target: Target, prompt: Sequence[int], length: int, **options: Any) -> Generated:
    return generate(target, prompt, length, **options)


def copied_in_turns(
    target: Target, prompt: Sequence[int], text: Sequence[int], drafter: Drafter
) -> list[Round]:
    """Rounds of up to three drafts along `text`, every second one of copies: 2, 0, 1, 3 of them right."""
    burst, _ = start(target, prompt, drafter)
    done, rounds = 1, []
    for kept in (2, None, 0, None, 1, None, 3, None):
        ahead = text[done : done + 3]
        copied = () if kept is None else (*ahead[:kept], *((t + 1) % tiny.VOCAB for t in ahead[kept:]))
        rounds.append(run_round(replace(burst, copied=tuple(copied)), 3, greedy))
        done += len(rounds[-1].emitted)
        burst = replace(burst, bonus=rounds[-1].bonus, position=done)
    return rounds


PROMPTS = {"before the window": tiny.prompt(9), "past the window": tiny.prompt(2 * tiny.WINDOW + 3)}
