"""The contract probe: which reading of a head's file makes it agree with the target it was trained for.

Owns teacher-forced agreement and the choice among candidates. Knows heads as networks, no family.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx
from msgspec import Struct

from speculative.chained_head import HeadNetwork
from speculative.target import Target

# Rows per forward, so that the logits of a large vocabulary stay small.
CHUNK = 256


class Contract(Struct, frozen=True, kw_only=True):
    """One way to read a head: whether its norms get 1 added, and which hidden of the target it reads.

    `tap` is the residual stream after the last layer ("pre") or the same after the final norm ("post").
    """

    norm_shift: bool = False
    tap: Literal["post", "pre"] = "post"

    def tap_layers(self, target: Target) -> tuple[int, ...]:
        """The tap as `Target.tap` takes it."""
        return (len(target.layers) - 1,) if self.tap == "pre" else ()


class Agreement(Struct, frozen=True, kw_only=True):
    """How often the head's first proposal was the target's choice: in `agreed` of `rows` positions."""

    contract: Contract
    agreed: int
    rows: int

    @property
    def rate(self) -> float:
        """Agreement as a fraction, 0 to 1."""
        return self.agreed / self.rows


class ContractProbe(Struct, frozen=True, kw_only=True):
    """The agreement of every candidate, in the order they were given."""

    agreements: tuple[Agreement, ...]

    @property
    def best(self) -> Agreement:
        """The candidate that agrees most; of equals the first."""
        return max(self.agreements, key=lambda agreement: agreement.agreed)


def probe_contracts(
    target: Target,
    build: Callable[[Contract], HeadNetwork],
    candidates: Sequence[Contract],
    tokens: Sequence[int],
) -> ContractProbe:
    """Measures top-1 agreement of the heads `build` makes, teacher-forced over int ids `tokens`.

    Row i of a head reads (hidden i, token i + 1) and is compared with the target's row i + 1. Runs before a
    drafter is bound: the target is left without taps. Raises ValueError without candidates or with fewer
    than 3 tokens.
    """
    if not candidates:
        raise ValueError("no candidate contract to probe; give at least 1")
    if len(tokens) < 3:
        raise ValueError(f"probing contracts over {len(tokens)} tokens; at least 3 are needed")
    features: dict[tuple[int, ...], mx.array] = {}
    choices = mx.array([])
    try:
        for layers in {candidate.tap_layers(target) for candidate in candidates}:
            target.tap(layers)
            features[layers], choices = _read(target, tokens)
    finally:
        target.tap(())
    return ContractProbe(
        agreements=tuple(
            _agreement(
                target, contract, build(contract), tokens, features[contract.tap_layers(target)], choices
            )
            for contract in candidates
        )
    )


def _read(target: Target, tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
    """Features [1, L, F] and the target's choices [L] after each of the L tokens."""
    caches, features, choices = target.make_cache(), [], []
    for start in range(0, len(tokens), CHUNK):
        out = target.forward(mx.array([list(tokens[start : start + CHUNK])]), caches)
        features.append(out.features)
        choices.append(mx.argmax(out.logits[0], axis=-1))
        mx.eval(features[-1], choices[-1])
    return mx.concatenate(features, axis=1), mx.concatenate(choices)


def _agreement(
    target: Target,
    contract: Contract,
    head: HeadNetwork,
    tokens: Sequence[int],
    features: mx.array,
    choices: mx.array,
) -> Agreement:
    cache, rows, agreed = head.make_cache(), len(tokens) - 1, 0
    following = mx.array([list(tokens[1:])])
    for start in range(0, rows, CHUNK):
        end = min(start + CHUNK, rows)
        hiddens = head.fuse(features[:, start:end])
        out = head(target.embed(following[:, start:end]), hiddens, cache)
        proposed: Any = mx.argmax(target.logits(out)[0], axis=-1)
        agreed += int((proposed == choices[start + 1 : end + 1]).sum().item())
    return Agreement(contract=contract, agreed=agreed, rows=rows)


def sample_text(target: Target, length: int, seed: int = 0) -> list[int]:
    """`length` ids the target samples at temperature 1, from token 0 on, for when no text is given.

    Sampled, because a greedy text soon repeats itself, and there any head agrees.
    """
    caches, tokens = target.make_cache(), [0]
    keys = mx.random.split(mx.random.key(seed), length)
    for i in range(length - 1):
        logits = target.forward(mx.array([tokens[-1:]]), caches).logits[0, -1]
        token: Any = mx.random.categorical(logits, key=keys[i])
        tokens.append(int(token.item()))
    return tokens
