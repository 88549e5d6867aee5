"""Prometheus metrics of one app, in its own registry. Updated per burst, never per token.

What the replicas count about speculation comes with the policy's snapshots and is only passed on.
"""

from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from messages.events import Finished
from messages.policy import DeclineReason, FallbackReason, PolicyReport
from messages.scheduling import SchedulerLoad

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class SpeculationCollector(Collector):
    """Counters of all live pairings together, as the newest snapshot has them."""

    def __init__(self) -> None:
        self.pairings: tuple[PolicyReport, ...] = ()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One family per counter; every reason has its series from the start."""
        yield self._total("attempts", "Requests that were to speculate.", (r.attempts for r in self.pairings))
        yield self._total("bursts", "Attempts that ran a round.", (r.bursts for r in self.pairings))
        yield self._total(
            "audited_rounds",
            "Rounds re-checked against plain decode.",
            (r.audited_rounds for r in self.pairings),
        )
        yield self._total(
            "audit_mismatches", "Audited rounds that differed.", (r.audit_mismatches for r in self.pairings)
        )
        declines = [(row.reason, row.count) for report in self.pairings for row in report.declines]
        yield self._by_reason("declines", "Attempts that ran no round.", get_args(DeclineReason), declines)
        fallbacks = [(row.reason, row.count) for report in self.pairings for row in report.fallbacks]
        yield self._by_reason(
            "fallbacks",
            "Returns of a speculating request to plain decode.",
            get_args(FallbackReason),
            fallbacks,
        )

    @staticmethod
    def _total(name: str, text: str, counts: Iterable[int]) -> CounterMetricFamily:
        return CounterMetricFamily(f"mtp_serve_speculation_{name}", text, value=sum(counts))

    @staticmethod
    def _by_reason(
        name: str, text: str, reasons: tuple[str, ...], rows: list[tuple[str, int]]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"mtp_serve_speculation_{name}", text, labels=["reason"])
        for reason in reasons:
            family.add_metric([reason], sum(count for found, count in rows if found == reason))
        return family


class Metrics:
    """All series this layer owns; the labels have few values by construction (routes, statuses, codes)."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "mtp_serve_requests", "Finished HTTP requests.", ["route", "status"], registry=registry
        )
        self._errors = Counter(
            "mtp_serve_errors", "Failed requests, also those failing mid-stream.", ["code"], registry=registry
        )
        self._duration = Histogram(
            "mtp_serve_request_duration_seconds",
            "Time from request to last byte.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._first_token = Histogram(
            "mtp_serve_time_to_first_token_seconds",
            "Time from request to first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter("mtp_serve_tokens", "Tokens processed.", ["kind"], registry=registry)
        self._emitted = self._tokens.labels("completion")
        self._prompt = self._tokens.labels("prompt")
        self._cached = self._tokens.labels("prompt_cached")
        self._drafted = self._tokens.labels("drafted")
        self._accepted = self._tokens.labels("accepted")
        self._copied = self._tokens.labels("copied")
        self._copied_accepted = self._tokens.labels("copied_accepted")
        self._rounds = Counter("mtp_serve_verify_rounds", "Rounds with drafts run.", registry=registry)
        self._copy_rounds = Counter(
            "mtp_serve_copy_rounds", "Rounds with tokens copied from the text run.", registry=registry
        )
        self._queue_depth = Gauge("mtp_serve_queue_depth", "Requests waiting for a slot.", registry=registry)
        self._slots_used = Gauge("mtp_serve_slots_used", "Slots generating.", registry=registry)
        self._slots = Gauge("mtp_serve_slots", "Slots of all replicas.", registry=registry)
        self._speculation = SpeculationCollector()
        registry.register(self._speculation)

    def request_finished(self, route: str, status: int, duration_s: float, error_code: str | None) -> None:
        """Count one request under its route pattern."""
        self._requests.labels(route, str(status)).inc()
        self._duration.labels(route).observe(duration_s)
        if error_code is not None:
            self._errors.labels(error_code).inc()

    def first_token(self, elapsed_s: float) -> None:
        """Note how long a client waited for its first token."""
        self._first_token.observe(elapsed_s)

    def tokens_emitted(self, num_tokens: int) -> None:
        """Count the tokens of one burst."""
        self._emitted.inc(num_tokens)

    def generation_finished(self, event: Finished) -> None:
        """Count what is known only at the end of a generation."""
        self._prompt.inc(event.usage.prompt_tokens)
        self._cached.inc(event.usage.cached_tokens)
        draft = event.timings.draft
        if draft is not None:
            self._drafted.inc(draft.draft_n)
            self._accepted.inc(draft.draft_n_accepted)
            self._rounds.inc(draft.draft_rounds)
            self._copied.inc(draft.copy_n)
            self._copied_accepted.inc(draft.copy_n_accepted)
            self._copy_rounds.inc(draft.copy_rounds)

    def render(self, load: SchedulerLoad | None, pairings: tuple[PolicyReport, ...]) -> bytes:
        """The exposition text, with the scheduler's newest books and the policy's newest reports."""
        self._speculation.pairings = pairings
        if load is not None:
            self._queue_depth.set(load.queue_depth)
            self._slots_used.set(load.slots_used)
            self._slots.set(load.num_slots)
        return generate_latest(self.registry)
