"""What a round costs beside its verify forward, at several lengths of context. Figures only; pure."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from bench.tables import Table


class Timing(Struct, frozen=True):
    """One turn, in milliseconds of wall time: a bare verify forward, a round whose drafts cost nothing, and a
    round with the drafter, which spends `draft_ms` of it proposing."""

    verify_ms: float
    free_round_ms: float
    round_ms: float
    draft_ms: float


class Point(Struct, frozen=True, kw_only=True):
    """All turns at one length of context, in tokens.

    `cache_bytes` are the target's keys, values and states, `extra_bytes` the most memory any round took on
    top of what was in use before it: below `cache_bytes` nothing of that size was copied.
    """

    context: int
    timings: tuple[Timing, ...]
    cache_bytes: int
    extra_bytes: int

    @property
    def verify_ms(self) -> float:
        """Median time of the verify forward."""
        return median(timing.verify_ms for timing in self.timings)

    @property
    def round_ms(self) -> float:
        """Median time of a round with the drafter."""
        return median(timing.round_ms for timing in self.timings)

    @property
    def round_per_verify(self) -> float:
        """Median over the turns of a round without drafter over its verify forward; 1 is free."""
        return median(timing.free_round_ms / timing.verify_ms for timing in self.timings)

    @property
    def draft_share(self) -> float:
        """Median share of a round that the drafter takes."""
        return median(timing.draft_ms / timing.round_ms for timing in self.timings)


def summary(points: Sequence[Point], conditions: dict[str, object]) -> dict[str, object]:
    """The object printed last."""
    return {
        **conditions,
        "contexts": [
            {
                "context": point.context,
                "verify_ms": round(point.verify_ms, 3),
                "round_ms": round(point.round_ms, 3),
                "round_per_verify": round(point.round_per_verify, 3),
                "draft_share": round(point.draft_share, 3),
                "cache_bytes": point.cache_bytes,
                "extra_bytes": point.extra_bytes,
            }
            for point in points
        ],
    }


def round_table(points: Sequence[Point]) -> Table:
    """What a round costs beside its verify forward, per length of context."""
    return Table(
        "One round against its verify forward, medians",
        (
            "context",
            "verify, ms",
            "round without drafter / verify",
            "round, ms",
            "drafter's share",
            "caches, MiB",
            "extra memory, MiB",
        ),
        [
            (
                str(point.context),
                f"{point.verify_ms:.2f}",
                f"{point.round_per_verify:.3f}",
                f"{point.round_ms:.2f}",
                f"{point.draft_share:.0%}",
                f"{point.cache_bytes / 2**20:.1f}",
                f"{point.extra_bytes / 2**20:.1f}",
            )
            for point in points
        ],
    )
