"""Many replicas and pairings folded into one value: leases, merged evidence, the top level, starvation."""

import msgspec
import pytest

from messages.policy import (
    Detach,
    Exactness,
    ExactnessFound,
    Gate,
    Message,
    NotAttached,
    Renew,
)
from messages.scheduling import ModelName
from policy.cluster import dispatch_to_load, gate_of, key_of, reply
from policy.config import PolicyConfig
from policy.fold import expire, forget, observe
from policy.report import publish, snapshot
from policy.sentence import sentence
from policy.switches import Switches
from policy.wire import body, worker_not_ready
from tests.policy.builders import CPU, M5, attach, copied, dispatch, sample
from tests.policy.clusters import cluster, counted, fold, plain, top

A, B = ModelName("a"), ModelName("b")
INEXACT = Exactness(exact=False, selection="default", detail="verify block position 0 differs")


def test_before_any_replica_reports_no_worker_is_ready() -> None:
    """Nothing is claimed: the gate is unknown, not closed."""
    report = top(cluster())
    assert (report.state, report.reason, report.mtp_enabled) == ("unavailable", "worker_not_ready", None)
    assert (report.samples, report.samples_required, report.gpu_vendor) == (0, 4, "Unknown")


def test_without_a_drafter_mtp_never_runs() -> None:
    """The hardware is known, the pairing does not exist; neither a pin nor a disabled policy changes that."""
    for switches in (Switches(), Switches(adaptive=False, pin=True)):
        value = cluster(plain(), sample(model="a"), switches=switches)
        report = top(value)
        assert (report.state, report.reason, report.mtp_enabled) == ("unavailable", "no_mtp_dispatch", False)
        assert report.target is report.drafter is report.hardware is report.block_size is None
        assert gate_of(value, A).enabled is False


def test_replicas_of_one_pairing_merge_their_evidence() -> None:
    """Two samples of each of two replicas are four samples, and both get the verdict."""
    value = cluster(attach("a"), attach("b"), *[sample(model="a"), sample(model="b")] * 2)
    report = top(value)
    assert (report.state, report.verdict, report.samples, report.replicas) == ("settled", "enable", 4, 2)
    assert gate_of(value, A) == gate_of(value, B)


def test_a_late_replica_joins_the_verdict() -> None:
    """Nothing is profiled twice."""
    value = cluster(attach("a"), *[sample(model="a")] * 4, attach("b"))
    assert gate_of(value, B).measure_every > 1
    assert top(value).replicas == 2


def test_pairings_on_different_hardware_are_judged_apart() -> None:
    """One model pays on one machine and loses on another: two verdicts, both shown."""
    other = attach("b", hardware=CPU)
    value = cluster(attach("a"), other, *[sample(2.0, model="a"), sample(0.7, model="b")] * 4)
    verdicts = {report.hardware: report.verdict for report in snapshot(value).pairings}
    assert verdicts == {M5.label: "enable", CPU.label: "decline"}
    assert (gate_of(value, A).enabled, gate_of(value, B).enabled) == (True, False)


def test_a_new_block_size_is_a_new_profile_and_the_old_one_is_kept() -> None:
    """A replica that changes K starts measuring; back at the old K the verdict is still there."""
    value = cluster(attach("a"), *[sample(model="a")] * 4)
    value = observe(value, attach("a", of=dispatch(block_size=5)))
    assert (top(value).state, top(value).block_size) == ("profiling", 5)
    assert top(observe(value, attach("a"))).state == "settled"


def test_the_top_level_shows_the_pairing_with_most_replicas() -> None:
    """Most live replicas first, ties by key; all pairings are listed."""
    names = ["zeta", "alpha", "beta"]
    targets = [attach(model, of=dispatch(target=name)) for model, name in zip("abc", names, strict=True)]
    assert top(cluster(*targets)).target == "alpha"
    published = snapshot(cluster(*targets, attach("d", of=dispatch(target="zeta"))))
    assert published.top.target == "zeta"
    assert [report.target for report in published.pairings] == ["zeta", "alpha", "beta"]
    assert [report.replicas for report in published.pairings] == [2, 1, 1]


def test_a_pairing_outranks_a_model_without_mtp() -> None:
    """A replica that cannot speculate does not hide one that can."""
    assert top(cluster(plain("a"), plain("b"), attach("c"))).state == "profiling"


@pytest.mark.parametrize("switches", [Switches(), Switches(pin=True), Switches(adaptive=False, pin=True)])
def test_a_veto_outranks_pin_profile_and_disabled_policy(switches: Switches) -> None:
    """The state says so, with the probe's sentence, and the gate is closed whatever was asked for."""
    value = cluster(attach("a", exactness=INEXACT), switches=switches)
    report = top(value)
    assert (report.state, report.mtp_enabled, report.exact) == ("exactness_declined", False, False)
    assert (report.decline_detail, report.verdict) == (INEXACT.detail, None)
    assert gate_of(value, A).enabled is False


def test_one_mismatch_vetoes_the_pairing_everywhere() -> None:
    """An audit that fails on one replica closes the gate of its twin; the verdict waits below."""
    value = cluster(attach("a"), attach("b"), *[sample(model="a")] * 4)
    value = observe(value, ExactnessFound(model=A, incarnation="1", exactness=INEXACT))
    assert top(value).state == "exactness_declined"
    assert gate_of(value, B).enabled is False
    assert top(observe(value, Detach(model=A, incarnation="1"))).state == "settled"


def test_a_replica_still_probing_waits_while_its_twin_speculates() -> None:
    """Its own gate is closed, the pairing's state is the twin's."""
    value = cluster(attach("a"), attach("b", exactness=Exactness()))
    assert (gate_of(value, A).enabled, gate_of(value, B).enabled) == (True, False)
    assert top(value).state == "profiling"


def test_a_probe_that_has_not_run_is_told_apart() -> None:
    """Neither profiling nor vetoed: the gate is closed and the reason says what is awaited."""
    value = cluster(attach("a", exactness=Exactness()))
    assert (top(value).reason, top(value).mtp_enabled) == ("exactness_pending", False)
    found = ExactnessFound(
        model=A, incarnation="1", exactness=Exactness(exact=True, selection="row_invariant")
    )
    report = top(observe(value, found))
    assert (report.state, report.exact, report.selection) == ("profiling", True, "row_invariant")


def test_allowed_inexactness_is_shown() -> None:
    """The policy runs, and the snapshot does not hide what was given up."""
    value = cluster(attach("a", exactness=INEXACT), switches=Switches(allow_inexact=True))
    assert (top(value).state, top(value).exact, gate_of(value, A).enabled) == ("profiling", False, True)


def test_a_disabled_policy_names_its_pairing_only_in_the_list() -> None:
    """The top level follows the contract; the row below shows which pairing it is."""
    published = snapshot(cluster(attach("a"), switches=Switches(adaptive=False)))
    assert (published.top.reason, published.top.mtp_enabled) == ("adaptive_disabled", True)
    assert published.top.target is None
    assert published.pairings[0].target == "Gemma4-12B"


def test_a_lease_that_ran_out_is_no_replica() -> None:
    """Ten seconds without a word: no worker is ready; the verdict waits for the next attachment."""
    value = cluster(attach("a", at_s=100.0), *[sample(model="a", at_s=101.0)] * 4)
    assert top(expire(value, 111.0)).state == "settled"
    stale = expire(value, 111.1)
    assert top(stale).reason == "worker_not_ready"
    assert top(stale).gpu_vendor == "Apple"
    assert top(observe(stale, attach("a", "2", at_s=112.0))).state == "settled"


def test_renewals_keep_a_lease() -> None:
    """Every message of the replica counts as a sign of life."""
    renewals = [Renew(model=A, incarnation="1", at_s=float(at)) for at in range(0, 100, 9)]
    assert top(cluster(attach("a"), *renewals)).state == "profiling"


@pytest.mark.parametrize(
    "message",
    [
        Renew(model=B, incarnation="1"),
        Renew(model=A, incarnation="0"),
        sample(model="b"),
        ExactnessFound(model=A, incarnation="0", exactness=INEXACT),
        Detach(model=A, incarnation="0"),
    ],
)
def test_messages_of_the_unknown_change_nothing(message: Message) -> None:
    """A stranger or an earlier incarnation is asked to attach."""
    value = cluster(attach("a"))
    assert observe(value, message) == value
    assert reply(value, message) == NotAttached(message.model, message.incarnation)


def test_a_stale_replica_is_asked_to_attach_again() -> None:
    """After a long pause its renewal is answered with that, not with a gate."""
    late = Renew(model=A, incarnation="1", at_s=60.0)
    assert isinstance(reply(observe(cluster(attach("a")), late), late), NotAttached)


def test_a_restarted_replica_replaces_its_former_self() -> None:
    """One replica, not two, and late messages of the old one are ignored."""
    value = cluster(attach("a", "1"), attach("a", "2"))
    assert top(value).replicas == 1
    assert isinstance(reply(value, Renew(model=A, incarnation="1")), NotAttached)
    assert isinstance(reply(value, Renew(model=A, incarnation="2")), Gate)


def test_memory_is_read_once_per_pairing_and_never_under_a_pin() -> None:
    """A pin or a disabled policy neither reads nor writes; a known pairing needs no file."""
    assert dispatch_to_load(cluster(), attach("a")) == dispatch()
    assert dispatch_to_load(cluster(), plain("a")) is None
    assert dispatch_to_load(cluster(attach("a")), attach("b")) is None
    assert dispatch_to_load(cluster(switches=Switches(pin=False)), attach("a")) is None
    assert dispatch_to_load(cluster(switches=Switches(adaptive=False)), attach("a")) is None


def test_forgetting_starts_one_pairing_over() -> None:
    """Others keep their verdicts."""
    value = cluster(attach("a"), attach("b", hardware=CPU), *[sample(model="a"), sample(model="b")] * 4)
    key = key_of(dispatch())
    assert key is not None
    states = {report.hardware: report.state for report in snapshot(forget(value, key)).pairings}
    assert states == {M5.label: "profiling", CPU.label: "settled"}
    assert forget(value, "unknown") is value


def test_attempts_and_declines_are_added_up() -> None:
    """Over replicas, over restarts of one replica, and never twice for repeated readings."""
    first, second = counted(2, concurrent=3), counted(1, grammar=1)
    value = cluster(
        attach("a"),
        attach("b"),
        Renew(model=A, incarnation="1", counts=first),
        Renew(model=A, incarnation="1", counts=first),
        Renew(model=A, incarnation="1", counts=counted(1)),
        Renew(model=B, incarnation="1", counts=second),
        attach("a", "2"),
        Renew(model=A, incarnation="2", counts=second),
    )
    report = top(value)
    assert (report.attempts, report.bursts) == (9, 4)
    assert {row.reason: row.count for row in report.declines} == {"concurrent": 3, "grammar": 2}


def test_a_late_sample_of_another_block_size_is_left_out() -> None:
    """A request that began before its replica changed K says nothing about the new pairing."""
    value = cluster(attach("a"), attach("a", of=dispatch(block_size=5)), sample(model="a", block_size=4))
    assert top(value).samples == 0
    assert top(observe(value, sample(model="a", block_size=5))).samples == 1


def test_counters_follow_a_replica_to_its_new_block_size() -> None:
    """What it counted before belongs to the pairing it had then."""
    value = cluster(
        attach("a"),
        Renew(model=A, incarnation="1", counts=counted(5)),
        attach("a", of=dispatch(block_size=5)),
        Renew(model=A, incarnation="1", counts=counted(7)),
    )
    assert top(value).attempts == 2
    assert top(observe(value, attach("a"))).attempts == 5


def test_the_running_rate_is_raw_and_the_settled_one_rounded() -> None:
    """While profiling the plain quotient, once settled two decimals."""
    value = cluster(attach("a"))
    assert top(value).acceptance_rate is None
    value = fold(value, [sample(model="a")] * 3)
    assert top(value).acceptance_rate == 2 / 3
    assert top(observe(value, sample(model="a"))).acceptance_rate == 0.67


def test_what_copies_alone_gained_is_reported_without_a_drafters_figures() -> None:
    """A speed-up there is; of acceptance, its cost and a better block size nothing is known."""
    value = cluster(attach("a"), *[copied(model="a")] * 3)
    report = top(value)
    assert (report.samples, report.speedup) == (3, pytest.approx(2.0))
    assert (report.rounds, report.acceptance_rate, report.accepted_per_position) == (0, None, None)
    assert (report.drafter_share, report.recommended_block_size) == (None, None)
    assert [(row.samples, row.acceptance_rate) for row in report.classes] == [(3, None)]
    settled = observe(value, copied(model="a"))
    assert (top(settled).verdict, top(settled).starved_by) == ("enable", None)
    assert "2.00 times" in sentence(top(settled))
    assert msgspec.json.decode(msgspec.json.encode(body(snapshot(settled))))["rounds"] == 0


def test_samples_stay_at_three_until_the_evidence_decides() -> None:
    """The fourth is only ever counted by settling, so four is never shown while measuring goes on."""
    value = cluster(attach("a"))
    seen: list[tuple[int, int | None]] = []
    for speedup in (1.5, 0.8, 1.5, 0.8, 1.5, 0.8):
        value = observe(value, sample(speedup, model="a"))
        seen.append((top(value).samples, top(value).samples_remaining))
    assert seen == [(1, 3), (2, 2), (3, 1), (3, 1), (3, 1), (3, 1)]


def test_the_snapshot_shows_the_numbers_behind_the_verdict() -> None:
    """Speed-up with interval, both wall times, acceptance per position, and the original's answer."""
    samples = [sample(1.25, model="a", at_s=5.0)] * 4
    value = cluster(attach("a"), *samples, config=PolicyConfig(request_spread_weight=0))
    report = top(value)
    assert report.speedup == pytest.approx(1.25)
    assert (report.speedup_low, report.speedup_high) == pytest.approx((1.25, 1.25))
    assert (report.plain_ms_per_token, report.mtp_ms_per_token) == pytest.approx((40.0, 32.0))
    assert report.accepted_per_position == (1.0, 1.0, 0.0)
    assert (report.original_speedup, report.original_verdict) == (pytest.approx(1.25), "enable")
    assert (report.source, report.settled_at, report.estimator) == ("measured", 5.0, "paired")
    assert [(row.temperature, row.context, row.samples) for row in report.classes] == [("greedy", "short", 4)]


def test_kinds_of_requests_are_told_apart() -> None:
    """Sampled long-context requests have a figure of their own."""
    other = msgspec.structs.replace(sample(0.9, model="a"), temperature="sampled", prompt_tokens=6000)
    value = cluster(attach("a"), sample(1.5, model="a"), other)
    rows = {(row.temperature, row.context): row.speedup for row in top(value).classes}
    assert rows == {("greedy", "short"): pytest.approx(1.5), ("sampled", "long"): pytest.approx(0.9)}


def test_publishing_raises_the_version_only_on_change() -> None:
    """A renewal that changes nothing publishes nothing."""
    first = publish(cluster(attach("a")), worker_not_ready(version=10))
    assert first.version == 11
    again = publish(cluster(attach("a"), Renew(model=A, incarnation="1")), first)
    assert again is first
    assert publish(cluster(attach("a"), sample(model="a")), first).version == 12
