"""The one-line account for people."""

import msgspec
import pytest

from messages.policy import Declined
from policy.sentence import sentence
from tests.policy.builders import CPU, attach, sample
from tests.policy.test_wire import SNAPSHOTS, served


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("worker_not_ready", "waiting for a model to load"),
        ("no_mtp_dispatch", "MTP is not configured: no drafter is loaded"),
        ("adaptive_disabled", "MTP off: the adaptive policy is disabled"),
        ("exactness_pending", "MTP waits for the exactness probe; running plain decode"),
        ("forced", "MTP pinned on by MLXCEL_ENABLE_MTP_B1; nothing is measured"),
        ("profiling_2_of_4", "measuring: 2 of 4 single-request generations done"),
        ("settled", "MTP on: measured at 1.80 times (1.58 to 2.05) plain decode"),
        ("declined", "MTP off: measured at 0.70 times (0.61 to 0.80) plain decode"),
    ],
)
def test_every_state_has_its_sentence(name: str, said: str) -> None:
    """A pin is called a pin, a measurement a measurement."""
    assert sentence(SNAPSHOTS[name].top) == said


def test_a_veto_gives_the_probe_s_reason() -> None:
    """Verbatim, after saying that plain decode runs."""
    said = sentence(SNAPSHOTS["exactness_declined"].top)
    assert said.startswith("MTP configured but vetoed; running plain decode: verify block position 0 differs")


def test_starvation_is_never_called_measuring_alone() -> None:
    """The sentence says that nothing gets through, how often, and why."""
    starved = msgspec.structs.replace(
        SNAPSHOTS["profiling"].top,
        attempts=37,
        declines=(Declined("concurrent", 37),),
        starved_by="concurrent",
    )
    assert "37 of 37 attempts declined, mostly concurrent" in sentence(starved)


def test_bursts_that_are_too_small_are_not_called_declined() -> None:
    """They ran; it is measuring that came to nothing."""
    starved = msgspec.structs.replace(
        SNAPSHOTS["profiling"].top, attempts=6, bursts=5, starved_by="too_short"
    )
    said = sentence(starved)
    assert "5 of 6 attempts gave too little to measure, mostly too_short" in said
    assert "declined" not in said


@pytest.mark.parametrize(("speedup", "differs"), [(1.3, True), (2.0, False)])
def test_the_original_rules_are_quoted_where_they_differ(speedup: float, differs: bool) -> None:
    """A measured gain inside the original's dead band, on hardware whose table declines."""
    message = attach(hardware=CPU)
    report = served(message, *[sample(speedup)] * 4).top
    said = sentence(report)
    assert report.verdict == "enable"
    assert said.endswith("(the original rules would decline at 1.30 times)") is differs
    assert ("original" in said) is differs
