"""The trained pair through a whole session: load, probe, engine, with drafts kept and refused in turn."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine import solo_lane
from engine.session import Session
from speculative.round import Burst, Round
from tests.engine.conftest import NO_BLAS
from tests.fixtures.pair import asking, files
from tests.fixtures.pair.asking import BLOCK_SIZE, Reply, ask, request

# Another BLAS or processor rounds otherwise, and a greedy text that turns elsewhere has other rounds.
TOLERANCE = 0.12


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    """The held-out prompts as token ids."""
    return [files.tokenizer().encode(text).ids for text in files.prompts()]


@pytest.fixture(scope="module", params=[2, BLOCK_SIZE, 6], ids="K={}".format)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The pair as a server loads it, at each block size."""
    return asking.start(files.FOLDER, NO_BLAS, tmp_path_factory.mktemp("session"), request.param)


@pytest.fixture(scope="module")
def greedy(session: Session, rows: list[list[int]]) -> list[Reply]:
    """Greedy answers in rounds."""
    return asking.answers(session, rows, True)


as_recorded = pytest.mark.parametrize("session", [BLOCK_SIZE], ids=["K=4"], indirect=True)


def test_some_kernels_make_the_pair_exact(session: Session) -> None:
    """The probe finds block and chain byte-equal for trained weights too."""
    facts = session.facts.drafter
    assert facts is not None
    assert facts.probed is not None
    assert facts.probed.is_exact, facts.probed.detail


def test_greedy_answers_do_not_depend_on_speculation(
    session: Session, rows: list[list[int]], greedy: list[Reply]
) -> None:
    """Text, ids, finish reason and length are those of plain decode, over drafts kept and refused in turn."""
    drafts = [reply.draft for reply in greedy]
    assert all(draft is not None and 0 < draft.draft_n_accepted < draft.draft_n for draft in drafts)
    plain = asking.answers(session, rows, False)
    assert [reply.answer for reply in greedy] == [reply.answer for reply in plain]


def test_a_seed_draws_the_same_text_with_and_without_rounds(session: Session, rows: list[list[int]]) -> None:
    """A draw's key depends on seed and position alone; another seed changes the text."""
    some = rows[:3]
    fast, plain = (asking.samples(session, some, speculative) for speculative in (True, False))
    assert sum(reply.draft.draft_n_accepted for reply in fast if reply.draft) > 0
    assert [reply.answer for reply in fast] == [reply.answer for reply in plain]
    other = ask(session, request(some[0], True, temperature=asking.TEMPERATURE, seed=100))
    assert other.answer != plain[0].answer


def test_a_stop_string_within_drafts_ends_both_alike(
    session: Session, rows: list[list[int]], greedy: list[Reply]
) -> None:
    """Stopping inside accepted drafts gives the text, reason and length of stopping between steps."""
    cut = greedy[0].answer.text[30:33]
    fast, plain = (ask(session, request(rows[0], speculative, stop=(cut,))) for speculative in (True, False))
    assert plain.answer.reason == "stop"
    assert fast.answer == plain.answer


@as_recorded
def test_acceptance_is_what_it_was_when_the_pair_was_made(
    session: Session, rows: list[list[int]], greedy: list[Reply]
) -> None:
    """Drafting, priming and rewinding in order, every draft position keeps its share of the rounds."""
    recorded = files.recorded()
    assert asking.accepted(greedy) == pytest.approx(recorded.greedy, abs=TOLERANCE)
    sampled = asking.samples(session, rows, True)
    assert asking.accepted(sampled) == pytest.approx(recorded.sampled, abs=TOLERANCE)


@as_recorded
def test_drafts_chosen_with_the_noise_of_the_draws_are_kept_more_often(
    session: Session, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same answers more tokens come from drafts than where the likeliest ones are proposed."""
    coupled = asking.samples(session, rows, True)
    honest = solo_lane.run_round

    def without_noise(burst: Burst, *rest: object) -> Round:
        assert burst.noise is not None
        return honest(replace(burst, noise=None), *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(solo_lane, "run_round", without_noise)
    likeliest = asking.samples(session, rows, True)
    assert [reply.answer for reply in coupled] == [reply.answer for reply in likeliest]
    assert asking.accepted(coupled)[0] > asking.accepted(likeliest)[0] + 0.05


@as_recorded
def test_greedy_answers_are_no_single_token_repeated(greedy: list[Reply]) -> None:
    """What the pair is for: drafts that are right although the text goes on."""
    for reply in greedy:
        assert len(set(reply.answer.ids)) >= 8, reply.answer.text


@pytest.mark.parametrize("session", [BLOCK_SIZE], ids=["K=4"], indirect=True)
@pytest.mark.parametrize(("lookup", "stop"), [(True, 0.0), (False, 0.5), (True, 0.5)])
def test_copies_and_stopped_chains_change_no_answer(
    session: Session, rows: list[list[int]], tmp_path: Path, lookup: bool, stop: float
) -> None:
    """Greedy and drawn at 0.8, answers are those of plain decode, with fewer drafts asked of the head."""
    other = asking.start(files.FOLDER, NO_BLAS, tmp_path, lookup=lookup, stop=stop)
    some = rows[:4]
    for temperature in (0.0, 0.8):
        plain, whole, got = (
            [
                ask(one, request(row, fast, temperature=temperature, seed=seed))
                for seed, row in enumerate(some)
            ]
            for one, fast in ((session, False), (session, True), (other, True))
        )
        assert [reply.answer for reply in got] == [reply.answer for reply in plain]
        drafts = [reply.draft for reply in got if reply.draft is not None]
        assert sum(d.draft_n for d in drafts) < sum(r.draft.draft_n for r in whole if r.draft is not None)
        assert (sum(d.copy_n_accepted for d in drafts) > 0) == lookup
        assert any(d.draft_n < d.draft_rounds * (BLOCK_SIZE - 1) for d in drafts) or not stop
