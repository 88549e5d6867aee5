"""Speculation in the engine never changes what is emitted, on any lane, however drafts turn out."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import LoadedModel
from messages.events import Cancelled, Event, Finished, TokensEmitted
from messages.policy import BailOut, FellBack, Gate
from messages.requests import GenerateRequest
from speculative.target import Target
from tests.engine.conftest import Build, finish_of, forwards_of, request, run, run_joined, text_of
from tests.engine.drafters import RecordingHead, ScriptedDrafter, following

LONG = "a prompt of more than three whole chunks of sixteen characters"
MEASURE = Gate(enabled=True, version=1, measure_every=1, slice_rounds=2, slice_plain_tokens=3, probe_rounds=1)
OPEN = Gate(enabled=True, version=1)


def all_right(length: int, depth: int) -> int:
    """Every draft is right."""
    return depth


def all_wrong(length: int, depth: int) -> int:
    """No draft is right."""
    return 0


def varying(length: int, depth: int) -> int:
    """Every number of right drafts occurs."""
    return (length * 5 + 1) % (depth + 1)


def outcome(events: list[Event]) -> tuple:
    """What a client can tell apart: text, ids, finish reason, usage, log-probabilities."""
    emitted = [e for e in events if isinstance(e, TokensEmitted)]
    finish = finish_of(events)
    return (
        text_of(events),
        [i for e in emitted for i in e.token_ids],
        finish.reason,
        finish.usage,
        [d for e in emitted for d in e.logprobs],
    )


def whole(item: GenerateRequest, plain: list[Event]) -> list[int]:
    """Prompt and plain continuation, the text a perfect drafter knows (with slack beyond the end)."""
    return [*item.prompt, *outcome(plain)[1]]


REQUESTS = {
    "length": {"max_tokens": 13},
    "penalties": {
        "max_tokens": 20,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
    },
    "bias": {"max_tokens": 12, "logit_bias": ((7, 3.0), (9, -100.0))},
    "logprobs": {"max_tokens": 12, "top_logprobs": 2},
    "sampled": {"max_tokens": 30, "temperature": 0.8, "top_p": 0.9, "seed": 11},
    "sampled with filters": {"max_tokens": 30, "temperature": 1.2, "top_k": 20, "min_p": 0.02, "seed": 3},
    "sampled with penalties": {
        "max_tokens": 20,
        "temperature": 0.9,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.2,
        "logit_bias": ((7, 3.0), (9, -100.0)),
        "seed": 4,
    },
    "long prompt": {"max_tokens": 10, "prompt": LONG},
    "one-token prompt": {"max_tokens": 10, "prompt": "x"},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
}


@pytest.mark.parametrize("block_size", [2, 4, 6])
@pytest.mark.parametrize("right", [all_right, all_wrong, varying])
@pytest.mark.parametrize("name", REQUESTS)
def test_speculation_equals_plain_decode(
    engine: Engine, speculating: Build, name: str, right: Callable[[int, int], int], block_size: int
) -> None:
    """Text, ids, finish reason, usage and log-probabilities are those of plain decode."""
    item = request(**REQUESTS[name])
    plain = run(engine, item)["r"]
    drafter = following([whole(item, plain)], right)
    for gate in (OPEN, MEASURE):
        fast = speculating(drafter, gate, block_size)
        got = run(fast, item)["r"]
        assert fast._speculator.counts.fallbacks == ()
        assert (finish_of(got).timings.draft is None) == (item.max_tokens < 4)
        assert outcome(got)[:4] == outcome(plain)[:4]
        for mine, theirs in zip(outcome(got)[4], outcome(plain)[4], strict=True):
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_perfect_drafts_take_few_rounds(engine: Engine, speculating: Build) -> None:
    """With block size 4 and perfect drafts, 13 tokens take three rounds and one plain step."""
    item = request(max_tokens=13)
    drafter = following([whole(item, run(engine, item)["r"])], all_right)
    draft = finish_of(run(speculating(drafter), item)["r"]).timings.draft
    assert draft is not None
    assert (draft.draft_rounds, draft.draft_n_accepted, draft.draft_n, draft.draft_kind) == (3, 9, 9, "mtp")
    assert draft.draft_accepted_per_position == (3, 3, 3)
    assert min(draft.draft_ms, draft.draft_verify_ms, draft.draft_overhead_ms) > 0


def test_a_round_is_one_event(engine: Engine, speculating: Build) -> None:
    """What a round emits leaves in the step that ran it, all of it and together."""
    item = request(max_tokens=13)
    fast = speculating(following([whole(item, run(engine, item)["r"])], varying))
    fast.submit(item)
    sizes: list[int] = []
    while fast.active:
        draft = fast._sequences["r"].draft
        rounds, accepted = (draft.draft_rounds, draft.draft_n_accepted) if draft else (0, 0)
        emitted = [event for event in fast.step() if isinstance(event, TokensEmitted)]
        draft = fast._sequences["r"].draft if fast.active else None
        if draft is not None and draft.draft_rounds > rounds:
            (event,) = emitted
            assert len(event.token_ids) == draft.draft_n_accepted - accepted + 1
            sizes.append(len(event.token_ids))
    assert len(set(sizes)) > 2


def test_what_waits_is_held_up_by_one_round_a_tick(
    engine: Engine, speculating: Build, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another prompt is read every tick runs one round and one chunk; then no rounds until it ends.

    Differs from the original, where rounds go on in turns with the other request's steps: decoding both in
    one forward is faster than either one after the other.
    """
    first, second = request("a", max_tokens=100), request("b", prompt=LONG, max_tokens=5)
    plain = run(engine, first)["a"], run(engine, second)["b"]
    fast = speculating(following([whole(first, plain[0]), whole(second, plain[1])], varying))
    verified: list[int] = []
    honest = target.verify
    monkeypatch.setattr(target, "verify", lambda *args: verified.append(1) or honest(*args))
    fast.submit(first)
    fast.step()
    fast.step()
    fast.submit(second)
    rounds: list[int] = []
    seen: list[Event] = []
    while fast.active and not (seen and isinstance(seen[-1], Finished)):
        verified.clear()
        seen += [event for event in fast.step() if event.request_id == "b"]
        rounds.append(len(verified))
    # Four chunks are read beside rounds; from then on both decode in the batch.
    assert rounds[:4] == [1, 1, 1, 1]
    assert sum(rounds) == 4
    assert outcome(seen) == outcome(plain[1])


@pytest.mark.parametrize("cut", [5, 6, 7, 8, 9])
def test_a_stop_string_inside_an_accepted_block(engine: Engine, speculating: Build, cut: int) -> None:
    """Nothing is emitted after a stop string, wherever in a block it ends."""
    item = request(max_tokens=20)
    plain = run(engine, item)["r"]
    stop = text_of(plain)[cut : cut + 2]
    stopped = request(max_tokens=20, stop=(stop,))
    drafter = following([whole(item, plain)], all_right)
    assert outcome(run(speculating(drafter), stopped)["r"]) == outcome(run(engine, stopped)["r"])


@pytest.mark.parametrize("at", [3, 4, 5, 6])
def test_eos_inside_an_accepted_block(
    engine: Engine, loaded: LoadedModel, speculating: Build, at: int
) -> None:
    """An end-of-sequence token in mid-block ends the request there."""
    item = request(max_tokens=20)
    ids = outcome(run(engine, item)["r"])[1]
    ended = replace(loaded, card=replace(loaded.card, eos_token_ids=(ids[at],)))
    asked = request(max_tokens=20, ignore_eos=False)
    plain_engine = Engine(ended, EngineConfig(model="tiny"))
    plain_engine.warmup(lambda text: None)
    plain = run(plain_engine, asked)["r"]
    assert finish_of(plain).reason == "stop"
    drafter = following([[*item.prompt, *ids]], all_right)
    fast = speculating(drafter)
    fast._loaded = ended
    assert outcome(run(fast, asked)["r"]) == outcome(plain)
    assert fast._speculator.counts.fallbacks == ()


def test_accepted_counts_only_what_was_emitted(
    engine: Engine, loaded: LoadedModel, speculating: Build
) -> None:
    """Differs from the original, which counts drafts that were confirmed past the end of the answer too:
    those saved nobody anything. The budget never cuts a round, because no more is drafted than it allows."""
    item = request(max_tokens=20)
    ids = outcome(run(engine, item)["r"])[1]
    drafter = following([[*item.prompt, *ids]], all_right)
    budget = finish_of(run(speculating(drafter), request(max_tokens=11))["r"]).timings.draft
    assert (budget.draft_rounds, budget.draft_n_accepted, budget.draft_n) == (3, 8, 8)
    # Rounds emit four tokens, so this one is the second of the second round.
    assert ids.index(ids[5]) == 5
    fast = speculating(drafter)
    fast._loaded = replace(loaded, card=replace(loaded.card, eos_token_ids=(ids[5],)))
    finish = finish_of(run(fast, request(max_tokens=20, ignore_eos=False))["r"])
    draft = finish.timings.draft
    assert (finish.reason, finish.usage.completion_tokens) == ("stop", 6)
    assert (draft.draft_rounds, draft.draft_n_accepted, draft.draft_n) == (2, 5, 6)
    assert draft.draft_accepted_per_position == (2, 2, 1)


def test_a_request_that_meets_others_keeps_its_text_and_its_history(
    engine: Engine, speculating: Build
) -> None:
    """Alone, in a batch, alone again: the text stays, the drafter's history has no hole, rounds resume."""
    first, second = request("a", max_tokens=60), request("b", prompt="another one", max_tokens=8)
    plain = run(engine, first)["a"], run(engine, second)["b"]
    drafter = following([whole(first, plain[0]), whole(second, plain[1])], varying)
    fast = speculating(drafter)
    before: list[int] = []
    seen = run_joined(fast, first, second, 6, lambda: before.append(fast._sequences["a"].draft.draft_rounds))
    assert outcome(seen["a"]) == outcome(plain[0])
    assert outcome(seen["b"]) == outcome(plain[1])
    assert finish_of(seen["a"]).timings.draft.draft_rounds > before[0] > 0
    assert finish_of(seen["b"]).timings.draft is None
    assert fast._speculator.counts.fallbacks == ()


def test_requests_that_arrive_together_keep_their_texts_and_histories(
    engine: Engine, speculating: Build
) -> None:
    """Prompts whose ends run in one forward give the texts they give alone; the last one left speculates."""
    items = [
        request("a", prompt=LONG, max_tokens=60),
        request("b", prompt="short", max_tokens=5),
        request("c", prompt=LONG + " and a bit", max_tokens=9),
        request("d", prompt="x", max_tokens=7),
    ]
    plain = {item.request_id: run(engine, item)[item.request_id] for item in items}
    fast = speculating(following([whole(i, plain[i.request_id]) for i in items], varying))
    together = run(fast, *items)
    for item in items:
        assert outcome(together[item.request_id])[:3] == outcome(plain[item.request_id])[:3]
    assert finish_of(together["a"]).timings.draft.draft_rounds > 5
    assert fast._speculator.counts.fallbacks == ()


@pytest.mark.parametrize("length", [len(LONG), 49])
def test_a_prompt_cache_hit_keeps_the_drafters_history(
    engine: Engine, speculating: Build, target: Target, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what follows the cached chunks is run again, and a real head proposes what it proposes without a
    hit. Differs from the original, which decodes plainly when the whole prompt is cached (49 tokens here):
    the last token always runs, and the drafter's history lies in the cache beside it."""
    item = request("a", prompt=LONG[:length], max_tokens=20)
    fast = speculating(RecordingHead(target))
    texts, proposals, forwards = [], [], forwards_of(monkeypatch)
    for _ in range(2):
        RecordingHead.proposed = []
        forwards.clear()
        texts.append(run(fast, item)["a"])
        proposals.append([drafts.tolist() for drafts in RecordingHead.proposed])
    assert finish_of(texts[1]).usage.cached_tokens == 48
    assert sum(tokens for tokens in forwards if tokens > 1) == length - 1 - 48
    assert outcome(texts[0])[:3] == outcome(texts[1])[:3] == outcome(run(engine, item)["a"])[:3]
    assert proposals[0] == proposals[1] != []
    assert fast._speculator.counts.fallbacks == ()


def test_a_prompt_of_one_token_starts_plainly(engine: Engine, speculating: Build, target: Target) -> None:
    """A head has nothing to draft from before the first token; after it rounds run and nothing has failed."""
    item = request(prompt="x", max_tokens=20)
    fast = speculating(RecordingHead(target))
    got = run(fast, item)["r"]
    assert outcome(got) == outcome(run(engine, item)["r"])
    assert finish_of(got).timings.draft.draft_rounds > 0
    assert fast._speculator.counts.fallbacks == ()


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 7])
def test_an_abort_ends_a_burst_at_any_step(engine: Engine, speculating: Build, steps: int) -> None:
    """In prefill, in the probe step, between rounds or plain steps: one Cancelled event, nothing after it,
    and the next request finds a clean lane."""
    item = request(prompt=LONG, max_tokens=60)
    plain = run(engine, item)["r"]
    fast = speculating(following([whole(item, plain)], varying), MEASURE)
    fast.submit(item)
    for _ in range(steps):
        fast.step()
    assert fast.abort(item.request_id) == [Cancelled(request_id=item.request_id)]
    assert fast.active == ()
    assert fast.step() == []
    assert outcome(run(fast, item)["r"])[:3] == outcome(plain)[:3]


def test_a_drafter_that_fails_does_not_cut_the_answer(engine: Engine, speculating: Build) -> None:
    """An exception in the middle of a request means plain decode from there on, and is counted."""
    item = request(max_tokens=20)
    plain = run(engine, item)["r"]
    text = whole(item, plain)

    def script(told: list[int], depth: int) -> list[int]:
        if len(told) > len(item.prompt) + 6:
            raise RuntimeError("the drafter broke")
        return [*text[len(told) : len(told) + depth], 0, 0, 0][:depth]

    fast = speculating(ScriptedDrafter(script))
    assert outcome(run(fast, item)["r"]) == outcome(plain)
    assert fast._speculator.counts.fallbacks == (FellBack("drafter_failed", 1),)
    assert outcome(run(fast, item)["r"]) == outcome(plain)


def test_a_closed_gate_means_plain_decode(engine: Engine, speculating: Build) -> None:
    """Without an open gate no round runs, and nothing counts as an attempt."""
    item = request(max_tokens=12)
    fast = speculating(following([], all_right), Gate())
    finish = finish_of(run(fast, item)["r"])
    assert finish.timings.draft is None
    assert fast._speculator.counts.attempts == 0


def test_a_request_may_choose_for_itself(engine: Engine, speculating: Build) -> None:
    """`speculative` true overrides a closed gate, false an open one."""
    item = request(max_tokens=12)
    drafter = following([whole(item, run(engine, item)["r"])], all_right)
    on = run(speculating(drafter, Gate()), request(max_tokens=12, speculative=True))["r"]
    off = run(speculating(drafter, OPEN), request(max_tokens=12, speculative=False))["r"]
    assert finish_of(on).timings.draft is not None
    assert finish_of(off).timings.draft is None


def test_a_measured_request_reports_its_slices(engine: Engine, speculating: Build) -> None:
    """Rounds and plain tokens alternate; the sample's totals add up and hold whole slices only."""
    item = request(max_tokens=60)
    drafter = following([whole(item, run(engine, item)["r"])], varying)
    fast = speculating(drafter, MEASURE)
    finish = finish_of(run(fast, item)["r"])
    (sample,) = fast.samples
    assert sample.rounds == finish.timings.draft.draft_rounds
    assert sample.accepted == sum(sample.accepted_per_position) == finish.timings.draft.draft_n_accepted
    assert sample.accepted_per_position == finish.timings.draft.draft_accepted_per_position
    assert sample.emitted == sample.accepted + sample.rounds
    assert len(sample.slices) >= 3
    assert all(
        s.rounds == 2 and s.plain_tokens == 3 and s.mtp_ms > 0 and s.plain_ms > 0 for s in sample.slices
    )
    assert (sample.probe_rounds, sample.cancelled, sample.temperature) == (1, False, "greedy")
    assert (sample.counts.attempts, sample.counts.bursts, sample.counts.declines) == (1, 1, ())


def test_a_cancelled_measurement_says_so(engine: Engine, speculating: Build) -> None:
    """The sample of an aborted request is marked."""
    item = request(max_tokens=60)
    fast = speculating(following([whole(item, run(engine, item)["r"])], all_right), MEASURE)
    fast.submit(item)
    for _ in range(5):
        fast.step()
    fast.abort(item.request_id)
    assert [s.cancelled for s in fast.samples] == [True]


def test_a_losing_burst_bails_out_and_comes_back(engine: Engine, speculating: Build) -> None:
    """Rounds without accepted drafts stop when they have lost too much and resume after the pause."""
    item = request(max_tokens=40)
    limits = BailOut(break_even_emitted=2.0, loss_tokens=3.5, pause_tokens=10)
    drafter = following([whole(item, run(engine, item)["r"])], all_wrong)
    fast = speculating(drafter, Gate(enabled=True, bail_out=limits))
    draft = finish_of(run(fast, item)["r"]).timings.draft
    # 4 rounds, 10 plain, 2 rounds, 20 plain, 2 rounds, and the last 2 of 40 tokens plainly.
    assert draft.draft_rounds == 4 + 2 + 2
    assert fast._speculator.counts.fallbacks == (FellBack("bail_out", 3),)


def test_a_padded_server_bails_out_later(engine: Engine, speculating: Build) -> None:
    """Where a plain step costs twice an ordinary one, a round of one token loses nothing beside it."""
    item = request(max_tokens=40)
    limits = BailOut(break_even_emitted=2.0, loss_tokens=3.5, pause_tokens=10)
    fast = speculating(following([whole(item, run(engine, item)["r"])], all_wrong))
    fast._speculator.gate = Gate(enabled=True, bail_out=limits)
    fast._speculator.plain_scale = 0.5
    assert finish_of(run(fast, item)["r"]).timings.draft.draft_rounds > 30
    assert fast._speculator.counts.fallbacks == ()


def test_requests_that_never_get_through_are_counted(engine: Engine, speculating: Build) -> None:
    """A request that never was alone is declined as concurrent, a short one as too short."""
    items = [request(f"r{i}", max_tokens=6) for i in range(3)]
    texts = [whole(item, run(engine, item)[item.request_id]) for item in items]
    fast = speculating(following(texts, all_wrong))
    run(fast, *items, request("short", max_tokens=2))
    reasons = {d.reason: d.count for d in fast._speculator.counts.declines}
    assert reasons["too_short"] == 1
    assert reasons["concurrent"] >= 1
