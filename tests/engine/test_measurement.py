"""Measured requests: which ones are, which steps they take, and what counts as whose time."""

from collections.abc import Sequence

import mlx.core as mx
import msgspec
import pytest

from engine import solo_lane
from engine.drafting import Probed
from engine.engine import Engine
from engine.identity import Identity
from engine.measurement import Measurement, with_round
from engine.speculator import Speculator
from messages.events import DraftTimings, TokensEmitted
from messages.policy import Declined, Gate, Sample, Slice
from messages.scheduling import ModelName
from speculative import round as speculative_round
from speculative.round import Round
from tests.engine.conftest import LETTERS, Build, finish_of, forwards_of, request, run
from tests.engine.drafters import CheckedHistory, Script, ScriptedDrafter, following
from tests.engine.test_speculation import MEASURE, all_right, outcome, varying, whole

IDENTITY = Identity(ModelName("m"), "1")


def done(accepted: int, drafted: int = 3, depth: int = 3, is_copy: bool = False) -> Round:
    """A round of these counts that took 6 ms."""
    return Round(
        emitted=tuple(range(accepted + 1)),
        accepted=accepted,
        drafted=drafted,
        depth=depth,
        is_copy=is_copy,
        logits=mx.zeros((accepted + 1, 2)),
        draft_ms=1.0,
        verify_ms=4.0,
        overhead_ms=1.0,
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_every_nth_request_is_measured_and_the_others_follow_the_gate(enabled: bool) -> None:
    """Under a decline the measured ones are the tries that may overturn it; no other request speculates."""
    speculator = Speculator(ScriptedDrafter(lambda told, depth: [0] * depth), 4, IDENTITY)
    speculator.is_exact = True
    speculator.gate = Gate(enabled=enabled, measure_every=3, slice_rounds=2, slice_plain_tokens=3)
    courses = [speculator.plan(request()) for _ in range(7)]
    assert [course.is_measured for course in courses] == [False, False, True, False, False, True, False]
    assert [course.speculates for course in courses] == [enabled or i in {2, 5} for i in range(7)]
    assert speculator.counts.attempts == sum(course.speculates for course in courses)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_probe_step_emits_one_token_of_the_request_s_own(
    engine: Engine, speculating: Build, temperature: float
) -> None:
    """Probe steps come first and belong to no round. Differs from the original, where they emit the likeliest
    token: measuring must not change the distribution a client asked for."""
    item = request(max_tokens=20, temperature=temperature, seed=5)
    plain = run(engine, item)["r"]
    probing = msgspec.structs.replace(MEASURE, probe_rounds=2)
    fast = speculating(following([whole(item, plain)], all_right), probing)
    got = run(fast, item)["r"]
    assert outcome(got)[:4] == outcome(plain)[:4]
    sizes = [len(event.token_ids) for event in got if isinstance(event, TokensEmitted)]
    # Two probe steps, a slice of two rounds and three plain steps, two rounds, and what is left.
    assert sizes[:7] == [1, 1, 4, 4, 1, 1, 1]
    (sample,) = fast.samples
    draft = finish_of(got).timings.draft
    assert (sample.probe_rounds, sample.rounds) == (2, draft.draft_rounds)
    assert sample.emitted == sample.accepted + sample.rounds
    assert draft.draft_n_accepted == sample.accepted


def test_a_request_that_ends_in_its_probe_steps_has_no_round(engine: Engine, speculating: Build) -> None:
    """Its sample holds the probe steps alone, its answer no draft counters, and it counts as too short."""
    item = request(max_tokens=4)
    probing = msgspec.structs.replace(MEASURE, probe_rounds=4)
    fast = speculating(following([whole(item, run(engine, item)["r"])], all_right), probing)
    assert finish_of(run(fast, item)["r"]).timings.draft is None
    (sample,) = fast.samples
    assert (sample.rounds, sample.proposed, sample.emitted, sample.probe_rounds) == (0, 0, 0, 3)
    assert sample.probe_ms > 0
    assert sample.counts.declines == (Declined("too_short", 1),)


def test_plain_steps_of_a_slice_are_those_of_plain_decode(
    engine: Engine, speculating: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forward is under way before the token before it is read, but for the first after rounds; a
    baseline of steps that wait for each other, as probe steps do, would flatter the rounds."""
    item = request(max_tokens=60)
    fast = speculating(following([whole(item, run(engine, item)["r"])], all_right), MEASURE)
    forwards = forwards_of(monkeypatch)
    fast.submit(item)
    fast.step()
    per_step: list[int] = []
    for _ in range(11):
        forwards.clear()
        fast.step()
        per_step.append(len(forwards))
    # A probe step, then two slices of two rounds and three plain steps.
    assert per_step == [1, *[0, 0, 2, 1, 0] * 2]


class Clock:
    """Stands still until somebody takes their time."""

    now = 0.0

    def perf_counter(self) -> float:
        """Seconds."""
        return self.now


class SlowLearner(ScriptedDrafter):
    """Takes a second to take in what was emitted."""

    def __init__(self, script: Script, clock: Clock) -> None:
        super().__init__(script)
        self._clock = clock

    def extend(self, state: CheckedHistory, tokens: Sequence[int], features: mx.array) -> None:
        """As ever, later."""
        self._clock.now += 1
        super().extend(state, tokens, features)


def test_what_a_drafter_does_after_a_round_is_charged_to_it(
    engine: Engine, speculating: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catching up on the emitted tokens is neither drafting nor verifying, and still time the round took;
    what it takes after plain steps falls into the round that needed it."""
    item = request(max_tokens=60)
    text, clock = whole(item, run(engine, item)["r"]), Clock()
    for module in (solo_lane, speculative_round):
        monkeypatch.setattr(module, "time", clock)
    learner = SlowLearner(lambda told, depth: text[len(told) : len(told) + depth], clock)
    fast = speculating(learner, MEASURE)
    run(fast, item)
    (sample,) = fast.samples
    assert len(sample.slices) >= 3
    assert [part.mtp_ms for part in sample.slices] == [3000.0] * len(sample.slices)
    assert [part.plain_ms for part in sample.slices] == [0.0] * len(sample.slices)
    assert (sample.draft_ms, sample.verify_ms) == (0.0, 0.0)


def test_a_sample_tells_nothing_of_its_request(engine: Engine, speculating: Build) -> None:
    """Neither id, client, prompt nor text are among what is reported, stored and traced."""
    item = msgspec.structs.replace(
        request("own-id", prompt="zebra crossing", max_tokens=40), client="own-client"
    )
    events = run(engine, item)["own-id"]
    fast = speculating(following([whole(item, events)], varying), MEASURE)
    run(fast, item)
    written = msgspec.json.encode(fast.samples)
    assert len(msgspec.json.decode(written, type=list[Sample])) == 1
    for private in ("own-id", "own-client", "zebra", outcome(events)[0]):
        assert private.encode() not in written
    for ids in (item.prompt, outcome(events)[1]):
        assert msgspec.json.encode(ids)[1:-1] not in written


def test_a_slice_is_whole_or_left_out() -> None:
    """A short round, one that is nobody's, and a plain part that never came spoil their own slice only."""
    measured = Measurement(3)
    for rounds, plain_steps in (
        ([done(3), done(0)], 2),
        ([done(3), done(1, drafted=1, depth=1)], 2),
        ([done(2), done(2)], 1),
        ([done(1), done(1)], 2),
    ):
        for each in rounds:
            measured.add_round(each, 10.0)
        for _ in range(plain_steps):
            measured.add_single("plain", 4.0, 2)
    measured.add_round(done(3), 10.0)
    measured.skip_round()
    for _ in range(2):
        measured.add_single("plain", 4.0, 2)
    assert measured.slices == [Slice(2, 5, 20.0, 2, 8.0), Slice(2, 4, 20.0, 2, 8.0)]
    assert measured.totals.per_position == [8, 5, 3]


def test_chains_and_copies_that_end_early_are_whole_rounds() -> None:
    """What was asked for counts, not what was proposed: doubt and short copies are part of the method."""
    measured = Measurement(3)
    measured.add_round(done(1, drafted=1), 10.0)
    measured.add_round(done(2, drafted=2, is_copy=True), 6.0)
    measured.add_single("plain", 4.0, 1)
    assert measured.slices == [Slice(2, 5, 16.0, 1, 4.0)]


def test_copies_count_in_slices_and_not_in_the_drafters_totals() -> None:
    """Time and tokens are the request's; rounds, drafts and their parts of the time are the drafter's."""
    measured, alone = Measurement(3), Measurement(3)
    for each in (done(2), done(3, is_copy=True), done(0, drafted=2, is_copy=True), done(1)):
        measured.add_round(each, 10.0)
        if not each.is_copy:
            alone.add_round(each, 10.0)
    measured.add_single("plain", 4.0, 1)
    assert measured.totals == alone.totals
    assert measured.slices == [Slice(4, 10, 40.0, 1, 4.0)]


def test_a_requests_counters_keep_copies_apart() -> None:
    """Under names of their own, and the drafter's are those of a request without copies."""
    mixed = alone = DraftTimings(draft_n=0, draft_n_accepted=0, draft_rounds=0, draft_kind="mtp")
    for each in (done(2), done(3, is_copy=True), done(0, drafted=2, is_copy=True), done(1, drafted=1)):
        mixed = with_round(mixed, each)
        alone = alone if each.is_copy else with_round(alone, each)
    copies = msgspec.structs.replace(alone, copy_n=5, copy_n_accepted=3, copy_rounds=2, copy_ms=12.0)
    assert mixed == copies
    assert (alone.draft_n, alone.draft_n_accepted, alone.draft_rounds) == (4, 3, 2)


def test_a_request_served_by_copies_alone_reports_its_slices(engine: Engine, speculating: Build) -> None:
    """A text of one letter needs no draft; what it gained is measured and nothing is said of the drafter."""
    item = request(prompt="aaaa", max_tokens=60, logit_bias=((LETTERS[0], 100.0),))
    texts = [whole(item, run(engine, item)["r"])]
    gate = msgspec.structs.replace(MEASURE, probe_rounds=0)
    # Its first tokens are the prompt's letter too, or there would be nothing to copy at first.
    fast = speculating(following(texts, all_right), gate, copies=True)
    run(fast, item)
    (sample,) = fast.samples
    assert (sample.rounds, sample.proposed, sample.accepted, sample.emitted) == (0, 0, 0, 0)
    assert (sample.draft_ms, sample.verify_ms, sample.accepted_per_position) == (0.0, 0.0, (0, 0, 0))
    assert len(sample.slices) >= 3
    assert all(part.rounds == 2 and part.emitted > 2 and part.mtp_ms > 0 for part in sample.slices)
    assert (sample.counts.attempts, sample.counts.bursts, sample.counts.declines) == (1, 1, ())


def test_padded_plain_steps_are_reckoned_as_ordinary_ones() -> None:
    """Where kernels are padded to be exact the baseline is scaled to what decode costs without them."""
    probed = Probed(is_exact=True, selection="row_invariant", detail="", plain_ms=9.0, rows_ms=(12.0, 13.0))
    assert probed.plain_scale == 0.75
    assert msgspec.structs.replace(probed, plain_ms=15.0).plain_scale == 1.0
    assert msgspec.structs.replace(probed, rows_ms=()).plain_scale == 1.0
    # Without a padding there is nothing to scale, whatever the two timings of one thing happened to be.
    assert msgspec.structs.replace(probed, selection="default").plain_scale == 1.0
    speculator = Speculator(ScriptedDrafter(lambda told, depth: [0] * depth), 4, IDENTITY)
    speculator.is_exact, speculator.gate, speculator.plain_scale = True, MEASURE, probed.plain_scale
    measured = speculator.measurement(speculator.plan(request()))
    assert measured is not None
    measured.add_round(done(3), 10.0)
    measured.add_single("plain", 8.0, 1)
    assert measured.slices[0].plain_ms == 6.0


def test_a_request_that_insists_is_nobodys_attempt(engine: Engine, speculating: Build) -> None:
    """It would otherwise look as if what the policy decided got through, or was turned away."""
    item = request(max_tokens=30, speculative=True)
    fast = speculating(following([whole(item, run(engine, item)["r"])], varying), MEASURE)
    assert finish_of(run(fast, item)["r"]).timings.draft is not None
    run(fast, request(max_tokens=1, speculative=True))
    counts = fast.counts
    assert counts is not None
    assert (counts.attempts, counts.bursts, counts.declines) == (0, 0, ())
    assert fast.samples == []
