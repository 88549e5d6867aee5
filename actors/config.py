"""The actors' own settings; values only, checked once."""

from msgspec import Struct


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission limits: how many requests may wait, and how long a ticket may stay unclaimed (seconds)."""

    max_queue_depth: int = 32
    claim_timeout_s: float = 15.0
    report_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError naming the value and the legal range."""
        if not 0 <= self.max_queue_depth <= 100_000:
            raise ValueError(f"max_queue_depth is {self.max_queue_depth}, legal: 0 to 100000")
        for name, value in (
            ("claim_timeout_s", self.claim_timeout_s),
            ("report_timeout_s", self.report_timeout_s),
        ):
            if not 0.1 <= value <= 3600:
                raise ValueError(f"{name} is {value}, legal: 0.1 to 3600")
