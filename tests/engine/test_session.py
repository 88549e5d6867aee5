"""A session's start: drafters found or refused, probed once, and the gate's rules."""

from pathlib import Path

import mlx.core as mx
import pytest

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.identity import Identity
from engine.session import Session
from messages.policy import Gate
from messages.scheduling import ModelName
from speculative.rollback import OpenBlock
from speculative.target import Forward
from tests import tiny
from tests.engine.conftest import NO_BLAS, finish_of, request, run

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


def corrupt(started: Session) -> None:
    """Make the second row of every verify block differ by rounding from now on."""
    target = started.speculation.target
    honest = target.verify

    def verify(tokens: mx.array, block: OpenBlock) -> Forward:
        out = honest(tokens, block)
        noise = mx.zeros_like(out.logits)
        noise[:, 1:2] = 1e-3
        return out._replace(logits=out.logits + noise)

    target.verify = verify


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
