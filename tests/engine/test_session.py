"""A session's start: drafters found or refused, probed once, and the gate's rules."""

import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from structlog.testing import capture_logs

from engine.config import EngineConfig
from engine.drafting import Probed
from engine.errors import ModelLoadError
from engine.identity import Identity
from engine.session import Session
from messages.policy import Gate
from messages.scheduling import ModelName
from speculative.target import Forward, Target
from tests import tiny
from tests.engine.conftest import LETTERS, NO_BLAS, finish_of, request, run, text_of

IDENTITY = Identity(ModelName("m"), "1")


def session(checkpoint: Path, folder: Path, **settings: object) -> Session:
    """A started session with its cache in `folder`, probed to the end."""
    config = EngineConfig(model=str(checkpoint), cache_root=str(folder), **settings)  # pyright: ignore[reportArgumentType]
    started = Session(config, IDENTITY, NO_BLAS, lambda text: None)
    while started.has_idle_work:
        started.idle_step()
    return started


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny model."""
    return tiny.write_head(tmp_path_factory.mktemp("heads") / "head")


def test_without_a_drafter_there_is_nothing_to_probe(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """`none`, and `auto` for a model that comes without one, mean plain decode."""
    for choice in ("none", "auto"):
        assert session(tiny_checkpoint, tmp_path, draft_model=choice).facts.drafter is None


def test_the_probe_is_stored_and_not_repeated(tiny_checkpoint: Path, tmp_path: Path, head: Path) -> None:
    """A second start with the same files takes the stored answer at once."""
    first = session(tiny_checkpoint, tmp_path, draft_model=str(head)).facts.drafter
    (stored,) = (tmp_path / "mtp-probe").iterdir()
    written = stored.stat().st_mtime_ns
    again = session(tiny_checkpoint, tmp_path, draft_model=str(head)).facts.drafter
    assert first == again
    assert first.probed.is_exact
    assert stored.stat().st_mtime_ns == written


def test_a_garbled_probe_file_is_probed_again(tiny_checkpoint: Path, tmp_path: Path, head: Path) -> None:
    """An unreadable file counts as none."""
    session(tiny_checkpoint, tmp_path, draft_model=str(head))
    (stored,) = (tmp_path / "mtp-probe").iterdir()
    stored.write_text("{")
    assert session(tiny_checkpoint, tmp_path, draft_model=str(head)).facts.drafter.probed.is_exact


def test_an_mtp_drafter_waits_for_the_gate(tiny_checkpoint: Path, tmp_path: Path, head: Path) -> None:
    """Closed at first, open when told, and an older gate that arrives late changes nothing."""
    started = session(tiny_checkpoint, tmp_path, draft_model=str(head))
    assert finish_of(run(started.engine, request())["r"]).timings.draft is None
    started.set_gate(Gate(enabled=True, version=5))
    started.set_gate(Gate(version=4))
    assert finish_of(run(started.engine, request())["r"]).timings.draft is not None


def test_a_draft_model_speculates_without_a_verdict(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The same model as its own drafter is accepted throughout and reports itself as a model."""
    started = session(tiny_checkpoint, tmp_path, draft_model=str(tiny_checkpoint))
    started.set_gate(Gate(version=9))
    draft = finish_of(run(started.engine, request(max_tokens=30))["r"]).timings.draft
    assert (draft.draft_kind, draft.draft_n_accepted) == ("model", draft.draft_n)


def test_a_drafter_that_cannot_serve_is_a_clear_error(
    tiny_checkpoint: Path, tmp_path: Path, head: Path
) -> None:
    """A missing folder and a head of another size are named in the message."""
    with pytest.raises(ModelLoadError, match="does not exist"):
        session(tiny_checkpoint, tmp_path, draft_model=str(tmp_path / "nowhere"))
    wide = tiny.write_checkpoint(tmp_path / "wide", hidden_size=64)
    with pytest.raises(ModelLoadError, match=r"32.*64"):
        session(wide, tmp_path, draft_model=str(head))


def disturbed(out: Forward) -> Forward:
    """The second row of a verify block differs by rounding."""
    noise = mx.zeros_like(out.logits)
    noise[:, 1:2] = 1e-3
    return out._replace(logits=out.logits + noise)


def corrupt(started: Session) -> None:
    """Make the second row of every verify block differ by rounding from now on."""
    target = started.speculation.target
    honest = target.verify
    target.verify = lambda tokens, block: disturbed(honest(tokens, block))


@pytest.fixture
def inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No selection of kernels makes blocks and chains equal in this test."""
    honest = Target.verify
    monkeypatch.setattr(Target, "verify", lambda self, tokens, block: disturbed(honest(self, tokens, block)))


def warnings_of(logs: list[dict]) -> list[dict]:
    """What an operator is warned of."""
    return [entry for entry in logs if entry["log_level"] == "warning"]


@pytest.mark.parametrize(
    ("context_length", "reason"),
    [
        (0, "verify block position 1 differs from the single-token chain in "),
        (5, "exactness probe did not run: a context of 5 tokens leaves no room"),
    ],
)
@pytest.mark.usefixtures("inexact")
def test_a_veto_is_one_warning_and_plain_decode_for_everything(
    tiny_checkpoint: Path, tmp_path: Path, context_length: int, reason: str
) -> None:
    """Whether blocks differ or the probe cannot run: the log says it once, the facts keep the sentence."""
    item = request(prompt="hi", speculative=True)
    with capture_logs() as logs:
        started = session(
            tiny_checkpoint, tmp_path, draft_model=str(tiny_checkpoint), context_length=context_length
        )
        finishes = [finish_of(run(started.engine, item)["r"]) for _ in range(2)]
    assert [finish.timings.draft for finish in finishes] == [None, None]
    (warning,) = warnings_of(logs)
    assert (warning["event"], warning["override"]) == ("mtp_declined", "MLXCEL_MTP_ALLOW_INEXACT=1")
    assert warning["reason"] == started.facts.drafter.probed.detail
    assert warning["reason"].startswith(reason)


@pytest.mark.usefixtures("inexact")
def test_allowing_inexactness_speculates_after_a_warning(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """One warning names the switch, and that no other kernels helped: those are tried first."""
    with capture_logs() as logs:
        started = session(
            tiny_checkpoint, tmp_path, draft_model=str(tiny_checkpoint), allow_inexact=True, audit_share=0.0
        )
    (warning,) = warnings_of(logs)
    assert (warning["event"], warning["allowed_by"]) == ("mtp_inexact", "MLXCEL_MTP_ALLOW_INEXACT")
    assert warning["reason"].endswith(" did not make it exact either.")
    assert not started.facts.drafter.probed.is_exact
    assert finish_of(run(started.engine, request())["r"]).timings.draft is not None


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that needs other kernels than the default ones once its window is full."""
    layers = ["sliding_attention", "full_attention"]
    folder = tmp_path_factory.mktemp("sliding")
    return tiny.write_checkpoint(folder, layer_types=layers, sliding_window=16)


def test_other_kernels_that_help_are_used_and_logged(sliding: Path, tmp_path: Path) -> None:
    """Then allowing inexactness is of no consequence, and the log says what the kernels cost per row."""
    with capture_logs() as logs:
        started = session(sliding, tmp_path, draft_model=str(sliding), allow_inexact=True)
    (passed,) = [entry for entry in logs if entry["event"] == "exactness_probe_passed"]
    probed = started.facts.drafter.probed
    assert probed.is_exact
    assert (passed["selection"], passed["rows_ms"]) == ("row_invariant", probed.rows_ms)
    assert len(probed.rows_ms) >= 4
    assert warnings_of(logs) == []


def test_the_probes_times_set_the_scale_of_measurements(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plain step costs with the kernels in force is known to whoever measures speed-ups."""
    monkeypatch.setattr(Probed, "plain_scale", 0.5)
    assert session(tiny_checkpoint, tmp_path, draft_model=str(tiny_checkpoint))._speculator.plain_scale == 0.5


def test_an_operators_pin_forbids_other_kernels(sliding: Path, tmp_path: Path) -> None:
    """Differs from the original in that a pin keeps MLX's kernels as they are, whichever value it has."""
    for pin in (True, False):
        probed = session(sliding, tmp_path, draft_model=str(sliding), qmv_wide=pin).facts.drafter.probed
        assert not probed.is_exact
        assert probed.detail.endswith(" retry was skipped because MLXCEL_QMV_WIDE is pinned.")


def test_requests_are_served_plainly_while_the_probe_is_pending(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differs from the original, which takes no request before its probe has answered: a long context takes
    longer than a start should, so it waits only so long, and requests that come meanwhile decode plainly."""
    text = text_of(run(session(tiny_checkpoint, tmp_path, draft_model="none").engine, request())["r"])
    monkeypatch.setattr("engine.session._BOOT_PROBE_S", 0.0)
    config = EngineConfig(
        model=str(tiny_checkpoint), cache_root=str(tmp_path), draft_model=str(tiny_checkpoint)
    )
    started = Session(config, IDENTITY, NO_BLAS, lambda text: None)
    for _ in range(3):
        assert started.has_idle_work
        assert started.facts.drafter.probed is None
        events = run(started.engine, request(speculative=True))["r"]
        assert (finish_of(events).timings.draft, text_of(events)) == (None, text)
        for _ in range(5):
            assert not started.idle_step()
    assert started.engine.counts.fallbacks == ()
    while not started.idle_step():
        pass
    assert not started.has_idle_work
    events = run(started.engine, request())["r"]
    assert finish_of(events).timings.draft is not None
    assert text_of(events) == text


def test_a_drafter_is_loaded_at_the_start(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Differs from the original, which loads one for the first request that wants it: here a drafter that
    cannot be loaded stops the start, and no request pays for the loading or fails by it."""
    folder = tiny.write_head(tmp_path / "head")
    started = session(tiny_checkpoint, tmp_path, draft_model=str(folder))
    shutil.rmtree(folder)
    events = run(started.engine, request(speculative=True))["r"]
    assert finish_of(events).timings.draft is not None


def test_a_mismatch_refutes_the_probe_for_good(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """What the audit found is told once, closes the pairing, and a restart does not forget it."""
    settings = {"draft_model": str(tiny_checkpoint), "audit_share": 1.0}
    started = session(tiny_checkpoint, tmp_path, **settings)
    run(started.engine, request())
    assert not started.heed_audit()
    corrupt(started)
    run(started.engine, request(max_tokens=30))
    assert started.heed_audit()
    assert not started.heed_audit()
    probed = started.facts.drafter.probed
    assert not probed.is_exact
    assert probed.detail.startswith(
        "a live audit found that verify block position 1 differs from the single-token"
    )
    assert probed.detail.endswith(" logit bytes.")
    again = session(tiny_checkpoint, tmp_path, **settings)
    assert again.facts.drafter.probed.detail == probed.detail
    assert finish_of(run(again.engine, request())["r"]).timings.draft is None


def test_allowed_inexactness_outlives_a_mismatch(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Rounds go on, but the pairing no longer counts as exact."""
    settings = {"draft_model": str(tiny_checkpoint), "audit_share": 1.0, "allow_inexact": True}
    started = session(tiny_checkpoint, tmp_path, **settings)
    corrupt(started)
    draft = finish_of(run(started.engine, request(max_tokens=30))["r"]).timings.draft
    assert draft.draft_rounds > 1
    assert started.heed_audit()
    assert not started.facts.drafter.probed.is_exact
    run(started.engine, request())
    assert not started.heed_audit()


def test_pinned_kernels_have_a_probe_of_their_own(tiny_checkpoint: Path, tmp_path: Path, head: Path) -> None:
    """An answer found with a choice of kernels does not serve a start without one."""
    prints = {
        session(tiny_checkpoint, tmp_path, draft_model=str(head), qmv_wide=pin).facts.drafter.fingerprint
        for pin in (None, True, False)
    }
    assert len(prints) == len(list((tmp_path / "mtp-probe").iterdir())) == 2


def test_how_drafts_are_made_is_the_operators_choice(
    tiny_checkpoint: Path, tmp_path: Path, head: Path
) -> None:
    """Copies and the confidence stop take effect as configured, and each choice is measured for itself."""
    letters = request(prompt="aaaa", max_tokens=30, logit_bias=((LETTERS[0], 100.0),))
    fingerprints: set[str] = set()
    choices: list[dict[str, object]] = [{}, {"draft_lookup": False}, {"draft_confidence_stop": 0.4}]
    for settings in choices:
        started = session(tiny_checkpoint, tmp_path, draft_model=str(head), **settings)
        started.set_gate(Gate(enabled=True, version=1))
        draft = finish_of(run(started.engine, letters)["r"]).timings.draft
        assert (draft.copy_rounds > 0) == settings.get("draft_lookup", True)
        assert started.speculation.drafter.confidence_stop == settings.get("draft_confidence_stop", 0.0)
        fingerprints.add(started.speculation.fingerprint)
    assert len(fingerprints) == 3


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_confidence_stop_that_means_nothing_is_refused(value: float) -> None:
    """No draft is likelier than 1, so nothing would ever be drafted beyond the first."""
    with pytest.raises(ValueError, match=r"draft_confidence_stop .* is .*, legal: 0 \(off\) to below 1"):
        EngineConfig(draft_confidence_stop=value)
