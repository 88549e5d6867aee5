"""What drafting costs on this machine: wall time of one drafted token. Knows no exactness."""

import time
from collections.abc import Generator
from typing import Any

import mlx.core as mx

from speculative.drafter import Drafter
from speculative.probe_plan import SHORT_CONTEXT, walk
from speculative.target import Target

_REPEATS = 5


def draft_step(target: Target, drafter: Drafter, depth: int) -> Generator[None, None, float | None]:
    """Milliseconds per drafted token of a proposal of `depth` tokens, in pieces of about one forward.

    The history grows by one plain step between proposals, so a proposal also pays for taking that in. The
    quickest of several counts, after one that compiles. None when the drafter fails.
    """
    try:
        return (yield from _measure(target, drafter, depth))
    except Exception:  # whatever is wrong with a drafter, the target can still decode
        return None


def _measure(target: Target, drafter: Drafter, depth: int) -> Generator[None, None, float]:
    tokens = walk(SHORT_CONTEXT + _REPEATS + 1, 7, 1, target.vocab_size)
    prompt, following = tokens[:SHORT_CONTEXT], tokens[SHORT_CONTEXT:]
    caches = target.make_cache()
    state: Any = drafter.make_state()
    features = target.forward(mx.array([prompt]), caches).features
    drafter.prime(state, prompt, features)
    features = features[:, -1:]
    times: list[float] = []
    for token in following:
        mx.eval(features)
        start = time.perf_counter()
        drafter.extend(state, [token], features)
        drafts = drafter.draft(state, depth, caches)
        mx.eval(drafts)
        times.append((time.perf_counter() - start) * 1e3 / max(drafts.shape[0], 1))
        features = target.forward(mx.array([[token]]), caches).features
        yield
    return min(times[1:])
