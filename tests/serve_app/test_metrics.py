"""Prometheus metrics."""

from messages.events import DraftTimings, Finished, Timings, Usage
from messages.policy import Declined, FellBack, PolicyReport
from messages.requests import RequestId
from messages.scheduling import SchedulerLoad
from serve_app.metrics import Metrics


def test_counts_appear_under_their_names() -> None:
    """Requests by route and status, errors by code, tokens by kind."""
    metrics = Metrics()
    metrics.request_finished("/v1/completions", 503, 0.2, "server_busy")
    metrics.first_token(0.03)
    metrics.tokens_emitted(3)
    metrics.tokens_emitted(2)
    draft = DraftTimings(draft_n=9, draft_n_accepted=6, draft_rounds=3, draft_kind="mtp")
    metrics.generation_finished(
        Finished(
            request_id=RequestId("r"),
            reason="stop",
            usage=Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=4),
            timings=Timings(prompt_n=7, prompt_ms=1, predicted_n=5, predicted_ms=1, draft=draft),
        )
    )
    text = metrics.render(
        SchedulerLoad(queue_depth=2, max_queue_depth=32, slots_used=4, num_slots=4), ()
    ).decode()
    for line in (
        'mtp_serve_requests_total{route="/v1/completions",status="503"} 1.0',
        'mtp_serve_errors_total{code="server_busy"} 1.0',
        'mtp_serve_request_duration_seconds_count{route="/v1/completions"} 1.0',
        "mtp_serve_time_to_first_token_seconds_count 1.0",
        'mtp_serve_tokens_total{kind="completion"} 5.0',
        'mtp_serve_tokens_total{kind="prompt"} 11.0',
        'mtp_serve_tokens_total{kind="prompt_cached"} 4.0',
        'mtp_serve_tokens_total{kind="drafted"} 9.0',
        'mtp_serve_tokens_total{kind="accepted"} 6.0',
        "mtp_serve_verify_rounds_total 3.0",
        "mtp_serve_queue_depth 2.0",
        "mtp_serve_slots_used 4.0",
        "mtp_serve_slots 4.0",
    ):
        assert line in text.splitlines()


def test_two_apps_do_not_share_counts() -> None:
    """Each has its own registry."""
    first, second = Metrics(), Metrics()
    first.tokens_emitted(5)
    assert 'mtp_serve_tokens_total{kind="completion"} 0.0' in second.render(None, ()).decode()


def test_what_replicas_count_is_passed_on_by_reason() -> None:
    """Attempts, declines, fallbacks and audits of all pairings add up; unused reasons are zero."""
    first = PolicyReport(
        state="settled",
        attempts=9,
        bursts=7,
        declines=(Declined("concurrent", 2),),
        fallbacks=(FellBack("bail_out", 3), FellBack("audit", 1)),
        audited_rounds=5,
        audit_mismatches=1,
    )
    second = PolicyReport(
        state="profiling", attempts=1, declines=(Declined("concurrent", 1),), audited_rounds=2
    )
    lines = Metrics().render(None, (first, second)).decode().splitlines()
    for line in (
        "mtp_serve_speculation_attempts_total 10.0",
        "mtp_serve_speculation_bursts_total 7.0",
        'mtp_serve_speculation_declines_total{reason="concurrent"} 3.0',
        'mtp_serve_speculation_declines_total{reason="too_short"} 0.0',
        'mtp_serve_speculation_fallbacks_total{reason="bail_out"} 3.0',
        'mtp_serve_speculation_fallbacks_total{reason="audit"} 1.0',
        'mtp_serve_speculation_fallbacks_total{reason="drafter_failed"} 0.0',
        "mtp_serve_speculation_audited_rounds_total 7.0",
        "mtp_serve_speculation_audit_mismatches_total 1.0",
    ):
        assert line in lines
