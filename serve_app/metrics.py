"""Prometheus metrics of one app, in its own registry. Updated per burst, never per token."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from messages.events import Finished
from messages.scheduling import SchedulerLoad

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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
        self._rounds = Counter("mtp_serve_verify_rounds", "Speculative rounds run.", registry=registry)
        self._queue_depth = Gauge("mtp_serve_queue_depth", "Requests waiting for a slot.", registry=registry)
        self._slots_used = Gauge("mtp_serve_slots_used", "Slots generating.", registry=registry)
        self._slots = Gauge("mtp_serve_slots", "Slots of all replicas.", registry=registry)

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

    def render(self, load: SchedulerLoad | None) -> bytes:
        """The exposition text, with the scheduler's newest books."""
        if load is not None:
            self._queue_depth.set(load.queue_depth)
            self._slots_used.set(load.slots_used)
            self._slots.set(load.num_slots)
        return generate_latest(self.registry)
