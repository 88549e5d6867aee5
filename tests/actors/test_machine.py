"""How a loaded engine introduces itself to the policy."""

from typing import Any

import msgspec
import pytest

from actors.machine import attachment, hardware_of
from engine.device import DeviceFacts
from engine.drafting import Probed
from engine.session import DraftFacts, Facts
from messages.model import ModelCard
from messages.policy import Attach, Exactness, MtpDispatch, NoMtpDispatch, Pairing, VerifyCost
from messages.scheduling import ModelName

DEVICE = DeviceFacts(backend="cpu", device_name=None, architecture="x86_64", gpu_cores=0, cpu_cores=2)
CARD = ModelCard(
    model_id="owner/Gemma4-12B",
    created=0,
    context_length=64,
    vocab_size=8,
    eos_token_ids=(),
    tokenizer_files={},
)
PROBED = Probed(
    is_exact=True,
    selection="row_invariant",
    detail="",
    plain_ms=9.0,
    rows_ms=(10.0, 12.0),
    draft_step_ms=1.5,
    exact_sizes=(2, 4),
)
DRAFTER = DraftFacts(
    name="Gemma4-12B-MTP",
    kind="mtp",
    model_type="gemma4_assistant",
    block_size=4,
    may_resize=False,
    fingerprint="f",
    probed=PROBED,
)


def attached(drafter: DraftFacts | None) -> Attach:
    """What the policy is told of an engine with this drafter."""
    return attachment(ModelName("m"), "1", Facts(card=CARD, device=DEVICE, drafter=drafter))


def with_(**changes: Any) -> Attach:
    """What the policy is told of a drafter that differs in these fields."""
    return attached(msgspec.structs.replace(DRAFTER, **changes))


def test_a_pairing_is_named_by_what_was_loaded() -> None:
    """Model and drafter without owners, the machine's label, the block size, and what the probe timed."""
    told = attached(DRAFTER)
    assert told.dispatch == MtpDispatch(
        pairing=Pairing(
            target="Gemma4-12B", drafter="Gemma4-12B-MTP", hardware="cpu-x86_64-Unknown-2c", block_size=4
        ),
        drafter_kind="gemma4_assistant",
        fingerprint="f",
        target_can_batch=True,
        verify_cost=(VerifyCost(1, 10.0), VerifyCost(2, 12.0)),
        plain_step_ms=9.0,
        draft_step_ms=1.5,
    )
    assert told.exactness == Exactness(exact=True, selection="row_invariant")


@pytest.mark.parametrize("drafter", [None, msgspec.structs.replace(DRAFTER, kind="model")])
def test_without_an_mtp_drafter_there_is_no_dispatch(drafter: DraftFacts | None) -> None:
    """No drafter, and one of another kind, which may well speculate: there is no MTP to judge."""
    assert attached(drafter).dispatch == NoMtpDispatch()


def test_before_the_probe_has_answered_nothing_is_claimed() -> None:
    """The pairing is known, whether it is exact is not."""
    told = with_(probed=None)
    assert told.exactness == Exactness(exact=None)
    assert isinstance(told.dispatch, MtpDispatch)
    assert (told.dispatch.verify_cost, told.dispatch.plain_step_ms) == ((), None)


def test_the_reason_of_a_decline_is_passed_on_as_it_is() -> None:
    """Word for word what the log says."""
    told = with_(probed=PROBED.refuted("verify block position 0 differs."))
    assert (told.exactness.exact, told.exactness.detail) == (False, "verify block position 0 differs.")


def test_sizes_are_offered_only_by_a_drafter_that_may_change() -> None:
    """A fixed block size follows no recommendation."""
    for may_resize, sizes in ((True, (2, 4)), (False, ())):
        dispatch = with_(may_resize=may_resize).dispatch
        assert isinstance(dispatch, MtpDispatch)
        assert dispatch.block_sizes == sizes


@pytest.mark.parametrize(
    ("backend", "label"),
    [
        ("metal", "M5-40c"),
        ("cuda", "cuda-arch-Unknown-0c"),
        ("rocm", "rocm-arch-Unknown-0c"),
        ("cpu", "cpu-arch-Unknown-18c"),
    ],
)
def test_each_backend_has_its_label(backend: Any, label: str) -> None:
    """A Mac is told apart by GPU cores, a CPU by its own, the others by architecture."""
    facts = DeviceFacts(
        backend=backend, device_name="Apple M5 Max", architecture="arch", gpu_cores=40, cpu_cores=18
    )
    assert hardware_of(facts).label == label
