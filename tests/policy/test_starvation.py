"""When every attempt comes to nothing: named, counted, and never claimed without reason."""

import msgspec

from messages.policy import (
    Counts,
    Declined,
    FellBack,
    Renew,
    Sample,
)
from messages.scheduling import ModelName
from policy.fold import observe
from policy.switches import Switches
from tests.policy.builders import attach, copied, sample
from tests.policy.clusters import cluster, counted, top

A = ModelName("a")


def test_starvation_is_named() -> None:
    """When every attempt is declined the snapshot says by which gate; it never just goes on measuring."""
    value = cluster(attach("a"), Renew(model=A, incarnation="1", counts=counted(concurrent=30, grammar=7)))
    report = top(value)
    assert (report.state, report.samples, report.starved_by, report.attempts) == (
        "profiling",
        0,
        "concurrent",
        37,
    )


def test_starvation_shows_under_steady_load() -> None:
    """Attempts still under way neither hide what became of the others nor count as starved themselves."""
    under_way = msgspec.structs.replace(counted(concurrent=30), attempts=38)
    waiting = msgspec.structs.replace(counted(concurrent=3), attempts=38)
    for counts, gate in ((under_way, "concurrent"), (waiting, None)):
        value = cluster(attach("a"), Renew(model=A, incarnation="1", counts=counts))
        assert top(value).starved_by == gate


def test_a_drafter_that_always_breaks_is_starvation() -> None:
    """Before the first round or in the middle of a burst: nothing is measured, and the snapshot says why."""
    counts = Counts(
        attempts=6,
        bursts=4,
        declines=(Declined("drafter_failed", 2),),
        fallbacks=(FellBack("drafter_failed", 6),),
    )
    value = cluster(attach("a"), Renew(model=A, incarnation="1", counts=counts))
    assert (top(value).samples, top(value).starved_by) == (0, "drafter_failed")


def test_starvation_is_not_claimed_too_early_or_when_something_got_through() -> None:
    """Three declined attempts are too few, and one burst is progress to wait for."""
    few = Renew(model=A, incarnation="1", counts=counted(concurrent=3))
    some = Renew(model=A, incarnation="1", counts=counted(1, concurrent=30))
    assert top(cluster(attach("a"), few)).starved_by is None
    assert top(cluster(attach("a"), some)).starved_by is None


def test_a_profile_that_stopped_advancing_is_starved_too() -> None:
    """Two of four done, and since then every attempt declined."""
    counts = counted(2)
    measured = [msgspec.structs.replace(sample(model="a"), counts=counts)] * 2
    value = cluster(attach("a"), *measured)
    assert top(value).starved_by is None
    later = Renew(model=A, incarnation="1", counts=counted(2, multimodal=9))
    report = top(observe(value, later))
    assert (report.samples, report.starved_by) == (2, "multimodal")


def test_only_tiny_requests_is_starvation() -> None:
    """Bursts run but none is long enough to count: the snapshot says too_short."""
    tiny: list[Sample] = [
        msgspec.structs.replace(sample(model="a", rounds=8), counts=counted(done)) for done in range(1, 6)
    ]
    report = top(cluster(attach("a"), *tiny))
    assert (report.samples, report.starved_by) == (0, "too_short")


def test_only_tiny_requests_of_copies_is_starvation_too() -> None:
    """They had their bursts, though none in which the drafter was asked."""
    tiny: list[Sample] = [
        msgspec.structs.replace(copied(model="a", rounds=8), counts=counted(done)) for done in range(1, 6)
    ]
    report = top(cluster(attach("a"), *tiny))
    assert (report.samples, report.starved_by) == (0, "too_short")


def test_requests_that_end_before_their_first_round_are_counted_once() -> None:
    """They are declined and still report their probe steps; two of them are not four."""
    probed = msgspec.structs.replace(sample(model="a", rounds=0), counts=counted(too_short=2))
    assert top(cluster(attach("a"), probed, probed)).starved_by is None
    later = msgspec.structs.replace(probed, counts=counted(too_short=4))
    assert top(cluster(attach("a"), *[probed] * 2, *[later] * 2)).starved_by == "too_short"


def test_an_enabled_pairing_that_never_runs_says_so() -> None:
    """`mtp_enabled` alone does not mean that MTP ran."""
    value = cluster(attach("a"), *[msgspec.structs.replace(sample(model="a"), counts=counted(4))] * 4)
    value = observe(value, Renew(model=A, incarnation="1", counts=counted(4, concurrent=10)))
    report = top(value)
    assert (report.state, report.mtp_enabled, report.starved_by) == ("settled", True, "concurrent")
    value = observe(value, Renew(model=A, incarnation="1", counts=counted(5, concurrent=10)))
    assert top(value).starved_by is None


def test_a_closed_gate_is_not_starvation() -> None:
    """Under a pin to off nothing is expected to run."""
    value = cluster(attach("a"), switches=Switches(pin=False))
    value = observe(value, Renew(model=A, incarnation="1", counts=counted(concurrent=10)))
    assert top(value).starved_by is None
