"""The policy's tunable numbers with their legal ranges; knows nothing about where they were read from."""

import math
from typing import Literal

from msgspec import Struct

# The visible window of a profile; part of the published contract, hence not configurable.
SAMPLES_REQUIRED = 4

EstimatorName = Literal["paired", "measured", "upper_bound"]


class PolicyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every threshold and cap of the policy. Raises ValueError naming the legal range on construction.

    estimator: `paired` compares wall time per emitted token with plain decode inside the same request;
    `measured` and `upper_bound` are the original rules, which settle on the fourth sample and stay settled.

    Original rules: at or below `decline_threshold` decline, at or above `enable_threshold` enable.

    Paired rule: enable when the `confidence` interval of the speed-up lies above 1 + `margin`, decline when
    it lies below 1. Requests are expected to differ by `request_spread` (standard deviation of the logarithm
    of their speed-ups), which counts like `request_spread_weight` requests. A request needs
    `min_rounds_per_sample` rounds and `min_plain_tokens` plain tokens to qualify and weighs at most
    `max_rounds_per_sample` rounds. At `cap_rounds` rounds profiling ends on the narrower interval of
    `closing_confidence`, with the static default if even that is undecided. A slice slower than
    `outlier_ratio` times the median one is set aside if such are rare.

    Watching a settled verdict: every `watch_every`-th request is measured while MTP is on; a declined pairing
    is tried again after `retry_every` requests, doubling up to `retry_limit`; evidence that leans against the
    verdict is followed up every `suspect_every`-th request. At least `dwell_samples` samples lie between a
    verdict and its re-opening.
    """

    estimator: EstimatorName = "paired"
    enable_threshold: float = 1.5
    decline_threshold: float = 1.0
    probe_rounds: int = 2
    margin: float = 0.05
    confidence: float = 0.95
    closing_confidence: float = 0.7
    request_spread: float = 0.15
    request_spread_weight: int = 3
    min_rounds_per_sample: int = 16
    max_rounds_per_sample: int = 64
    min_plain_tokens: int = 8
    cap_rounds: int = 512
    outlier_ratio: float = 4.0
    slice_rounds: int = 8
    slice_plain_tokens: int = 8
    watch_every: int = 32
    retry_every: int = 32
    retry_limit: int = 1024
    suspect_every: int = 4
    dwell_samples: int = 4
    bail_loss_tokens: float = 4.0
    bail_pause_tokens: int = 64
    starved_after: int = 4
    lease_s: float = 10.0

    def __post_init__(self) -> None:
        for name, (low, high) in LEGAL_RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"policy.{name} is {value}; the legal range is {low} to {high}")
        _ordered(self, "decline_threshold", "enable_threshold")
        _ordered(self, "min_rounds_per_sample", "max_rounds_per_sample")
        _ordered(self, "max_rounds_per_sample", "cap_rounds")
        _ordered(self, "retry_every", "retry_limit")
        _ordered(self, "closing_confidence", "confidence")


LEGAL_RANGES: dict[str, tuple[float, float]] = {
    "enable_threshold": (1.0, 10.0),
    "decline_threshold": (0.1, 10.0),
    "probe_rounds": (0, 16),
    "margin": (0.0, 1.0),
    "confidence": (0.5, 0.9999),
    "closing_confidence": (0.5, 0.9999),
    "request_spread": (0.0, 10.0),
    "request_spread_weight": (0, 1024),
    "min_rounds_per_sample": (1, 1024),
    "max_rounds_per_sample": (1, 1 << 16),
    "min_plain_tokens": (1, 1024),
    "cap_rounds": (16, 1 << 16),
    "outlier_ratio": (1.5, math.inf),
    "slice_rounds": (1, 1024),
    "slice_plain_tokens": (1, 1024),
    "watch_every": (1, 1 << 20),
    "retry_every": (1, 1 << 20),
    "retry_limit": (1, 1 << 20),
    "suspect_every": (1, 1 << 20),
    "dwell_samples": (1, 1024),
    "bail_loss_tokens": (0.1, 1024.0),
    "bail_pause_tokens": (1, 1 << 16),
    "starved_after": (1, 1 << 20),
    "lease_s": (0.1, 3600.0),
}


def _ordered(config: PolicyConfig, lower: str, upper: str) -> None:
    if getattr(config, lower) > getattr(config, upper):
        raise ValueError(
            f"policy.{lower} is {getattr(config, lower)}; it may be at most policy.{upper}, "
            f"which is {getattr(config, upper)}"
        )
