"""How many drafts of a head the target accepts, by replaying rounds over the target's own greedy answers.

Owns the replay and its counts. The head's outputs at a depth are those of a chain that was right so far,
which is all that acceptance asks about, so one teacher-forced pass serves every round.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from msgspec import Struct

from speculative.fitting.data import Example, pack
from speculative.fitting.forward import chained_outputs
from speculative.fitting.train import Output, tap_slice
from speculative.generic_head import GenericHead


class Acceptance(Struct, frozen=True, kw_only=True):
    """Rounds replayed, and per draft position how often it was reached and how often accepted."""

    rounds: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def conditional(self) -> tuple[float, ...]:
        """Share accepted per position among the rounds that reached it; 0 where none did."""
        return tuple(a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True))

    @property
    def emitted_per_round(self) -> float:
        """Mean tokens a round yields: accepted drafts and the target's own token."""
        return 1.0 + sum(self.accepted) / self.rounds if self.rounds else 0.0

    def plus(self, other: "Acceptance") -> "Acceptance":
        """Counts of both; positions have to match."""
        return Acceptance(
            rounds=self.rounds + other.rounds,
            reached=tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)),
            accepted=tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
        )


def replay(hits: Sequence[Sequence[bool]], first: int) -> Acceptance:
    """Count rounds over one answer.

    `hits[d][j]` says whether the draft at depth d + 1 in slot j equals the target's token; rounds start in
    slot `first` and go on after the tokens they emit. Drafts past the last slot do not count as reached.
    """
    depths, slots = len(hits), len(hits[0])
    reached, accepted = [0] * depths, [0] * depths
    rounds, start = 0, first
    while start < slots:
        rounds += 1
        run = 0
        while run < depths and start + run < slots:
            reached[run] += 1
            if not hits[run][start + run]:
                break
            accepted[run] += 1
            run += 1
        start += run + 1
    return Acceptance(rounds=rounds, reached=tuple(reached), accepted=tuple(accepted))


def measure(
    head: GenericHead,
    output: Output,
    draft_vocab: np.ndarray,
    examples: Sequence[Example],
    *,
    tap_layers: tuple[int, ...],
    depths: int,
) -> dict[str, Acceptance]:
    """Acceptance by kind of prompt over greedy answers; sampled ones are left out."""
    counts: dict[str, Acceptance] = {}
    ids = mx.array(draft_vocab)
    for example in examples:
        if not example.greedy:
            continue
        packed = pack([example], tap_slice(tap_layers))
        embeddings = output.embed(packed.tokens[:, 1:-1])
        outputs = chained_outputs(head, head.fuse(packed.hidden), embeddings, depths)
        drafted = [ids[mx.argmax(o @ output.rows.T, axis=-1)][0] for o in outputs]
        hits = [np.array(d == packed.tokens[0, 2:]).tolist() for d in drafted]
        found = replay(hits, example.prompt_length - 1)
        counts[example.kind] = counts[example.kind].plus(found) if example.kind in counts else found
    return counts


def total(counts: dict[str, Acceptance]) -> Acceptance:
    """All kinds together. Raises ValueError when there are none."""
    if not counts:
        raise ValueError("no greedy held-out answers to measure acceptance on")
    first, *others = counts.values()
    for other in others:
        first = first.plus(other)
    return first
