"""Drafts copied from the text itself: they save rounds where it repeats and never change what is emitted."""

from collections.abc import Sequence
from itertools import pairwise, product, takewhile

import mlx.core as mx
import pytest
from msgspec.structs import replace

from engine import solo_lane
from engine.copying import Copying
from engine.engine import Engine
from engine.loading import LoadedModel
from messages.policy import FellBack
from speculative.round import Round
from speculative.target import Target
from tests.engine.conftest import LETTERS, Build, finish_of, request, run, run_joined
from tests.engine.drafters import CheckedHistory, RecordingHead, ScriptedDrafter, following
from tests.engine.test_speculation import LONG, MEASURE, OPEN, all_right, all_wrong, outcome, varying, whole

ONE_LETTER = {"logit_bias": ((LETTERS[0], 100.0),)}
THREE_LETTERS = {"logit_bias": tuple((letter, 100.0) for letter in LETTERS)}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """Every round of the solo lane from now on."""
    seen: list[Round] = []
    honest = solo_lane.run_round

    def noting(*args: object) -> Round:
        seen.append(honest(*args))  # pyright: ignore[reportArgumentType]
        return seen[-1]

    monkeypatch.setattr(solo_lane, "run_round", noting)
    return seen


REQUESTS = {
    "one letter": {"max_tokens": 40, **ONE_LETTER},
    "greedy": {"max_tokens": 60, **THREE_LETTERS},
    "sampled": {"max_tokens": 60, "temperature": 0.8, "seed": 11, **THREE_LETTERS},
    "sampled anew": {"max_tokens": 60, "temperature": 0.8, "seed": 12, "top_p": 0.9, **THREE_LETTERS},
    "penalties": {"max_tokens": 40, "presence_penalty": 1.5, "repetition_penalty": 1.2, **THREE_LETTERS},
    "repetitive prompt": {"max_tokens": 40, "prompt": "abcabcabcabcabcabc", **THREE_LETTERS},
    "one-token prompt": {"max_tokens": 40, "prompt": "a", **ONE_LETTER},
    "any letters": {"max_tokens": 40, "prompt": LONG},
}


@pytest.mark.parametrize("right", [all_right, all_wrong, varying])
@pytest.mark.parametrize("name", REQUESTS)
def test_copies_equal_plain_decode(
    engine: Engine, speculating: Build, rounds: list[Round], name: str, right: object
) -> None:
    """Text, ids, finish reason and usage are those of plain decode, measured or not, whoever is right."""
    item = request(**REQUESTS[name])
    plain = run(engine, item)["r"]
    drafter = following([whole(item, plain)], right)  # pyright: ignore[reportArgumentType]
    for gate, block_size in ((OPEN, 3), (MEASURE, 4), (OPEN, 6)):
        fast = speculating(drafter, gate, block_size, copies=True)
        assert outcome(run(fast, item)["r"])[:4] == outcome(plain)[:4]
        assert fast._speculator.counts.fallbacks == ()
    assert any(done.is_copy for done in rounds) or name == "any letters"


def test_draws_are_copied_right_and_wrong(engine: Engine, speculating: Build, rounds: list[Round]) -> None:
    """Three letters drawn at random repeat and do not: whole copies, cut ones and misses all occur."""
    for seed in range(4):
        item = request(max_tokens=80, temperature=0.8, seed=seed, **THREE_LETTERS)
        plain = run(engine, item)["r"]
        fast = speculating(following([whole(item, plain)], varying), copies=True)
        assert outcome(run(fast, item)["r"]) == outcome(plain)
    copies = [done for done in rounds if done.is_copy]
    assert any(0 < done.accepted < done.drafted for done in copies)
    assert any(done.accepted == 0 for done in copies)
    assert any(1 < done.accepted == done.drafted for done in copies)


@pytest.mark.parametrize("max_tokens", range(10, 20))
def test_a_budget_ends_in_the_middle_of_a_copied_block(
    engine: Engine, speculating: Build, rounds: list[Round], max_tokens: int
) -> None:
    """No more is copied than may still be emitted."""
    item = request(max_tokens=max_tokens, **ONE_LETTER)
    plain = run(engine, item)["r"]
    fast = speculating(following([whole(item, plain)], all_wrong), copies=True, block_size=6)
    got = run(fast, item)["r"]
    assert outcome(got) == outcome(plain)
    assert finish_of(got).usage.completion_tokens == max_tokens
    assert rounds[-1].is_copy


def test_a_stop_string_ends_a_copied_block(engine: Engine, speculating: Build, rounds: list[Round]) -> None:
    """Wherever in the block it ends, nothing after it is emitted or counted."""
    item = request(max_tokens=40, **ONE_LETTER)
    cut = 0
    for length in range(8, 16):
        stopped = replace(item, stop=("a" * length,))
        plain = run(engine, stopped)["r"]
        assert finish_of(plain).reason == "stop"
        fast = speculating(
            following([whole(item, run(engine, item)["r"])], all_wrong), copies=True, block_size=6
        )
        got = run(fast, stopped)["r"]
        assert outcome(got) == outcome(plain)
        assert rounds[-1].is_copy
        cut += len(rounds[-1].emitted) <= rounds[-1].drafted
        draft = finish_of(got).timings.draft
        assert draft.copy_n_accepted <= finish_of(got).usage.completion_tokens
    assert cut > 3


@pytest.mark.parametrize(("prompt", "at"), [("abababa", 1), ("bababab", 2)])
def test_an_end_of_sequence_in_a_copied_block_ends_the_request(
    loaded: LoadedModel, speculating: Build, rounds: list[Round], prompt: str, at: int
) -> None:
    """A text of two letters, one of which ends it, drawn after a prompt that suggests both in turn."""
    ended = replace(loaded, card=replace(loaded.card, eos_token_ids=(LETTERS[1],)))
    plainly = speculating(following([], all_wrong), copies=True, prompt_cache_bytes=0)
    plainly._loaded = ended
    ends: list[tuple[int, int, int]] = []
    for seed in range(12):
        item = request(
            prompt=prompt,
            max_tokens=8,
            temperature=0.8,
            seed=seed,
            ignore_eos=False,
            logit_bias=((LETTERS[0], 100.0), (LETTERS[1], 100.0)),
        )
        plain = run(plainly, replace(item, speculative=False))["r"]
        drafter = following([whole(item, plain)], all_right)
        fast = speculating(drafter, copies=True, block_size=6, prompt_cache_bytes=0)
        fast._loaded = ended
        got = run(fast, item)["r"]
        assert outcome(got) == outcome(plain)
        if finish_of(got).reason == "stop" and rounds and rounds[-1].is_copy:
            ends.append((len(rounds[-1].emitted), rounds[-1].accepted, rounds[-1].drafted))
        rounds.clear()
    assert (at, at, 2) in ends


@pytest.mark.parametrize("length", [len(LONG), 49])
def test_a_prompt_cache_hit_copies_as_before(
    engine: Engine, speculating: Build, target: Target, rounds: list[Round], length: int
) -> None:
    """The text that is searched is the whole prompt's, cached or not, and a head proposes the same."""
    item = request("a", prompt=(LONG * 2)[-length:], max_tokens=40, **THREE_LETTERS)
    fast = speculating(RecordingHead(target), copies=True)
    seen = []
    for _ in range(2):
        rounds.clear()
        events = run(fast, item)["a"]
        assert outcome(events)[:3] == outcome(run(engine, item)["a"])[:3]
        seen.append([(done.is_copy, done.drafted, done.emitted) for done in rounds])
    assert finish_of(events).usage.cached_tokens == 48
    assert seen[0] == seen[1]
    assert any(is_copy for is_copy, *_ in seen[0])


def test_a_request_that_meets_others_goes_on_copying(
    engine: Engine, speculating: Build, rounds: list[Round]
) -> None:
    """Alone, in a batch, alone again: what the batch emitted is searched too."""
    first = request("a", max_tokens=90, **THREE_LETTERS)
    second = request("b", prompt="another one", max_tokens=8)
    plain = run(engine, first)["a"], run(engine, second)["b"]
    fast = speculating(following([whole(first, plain[0]), whole(second, plain[1])], varying), copies=True)
    before: list[int] = []
    seen = run_joined(fast, first, second, 8, lambda: before.append(sum(done.is_copy for done in rounds)))
    assert outcome(seen["a"]) == outcome(plain[0])
    assert outcome(seen["b"]) == outcome(plain[1])
    assert sum(done.is_copy for done in rounds) > before[0] + 1 > 1
    assert fast._speculator.counts.fallbacks == ()


def test_repetition_saves_forwards_though_no_draft_is_right(
    engine: Engine, speculating: Build, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of one letter takes a quarter of the forwards at block size 4, and none less without copies."""
    item = request(prompt="aaaa", max_tokens=61, **ONE_LETTER)
    drafter = following([whole(item, run(engine, item)["r"])], all_wrong)
    verified: list[int] = []
    honest = target.verify
    monkeypatch.setattr(target, "verify", lambda *args: verified.append(1) or honest(*args))
    forwards: dict[bool, int] = {}
    for copies in (False, True):
        verified.clear()
        draft = finish_of(run(speculating(drafter, copies=copies), item)["r"]).timings.draft
        assert draft.draft_rounds + draft.copy_rounds == len(verified)
        forwards[copies] = len(verified)
    assert forwards[False] >= 59
    assert forwards[True] <= 17


def test_copies_leave_the_drafters_counters_alone(
    engine: Engine, speculating: Build, rounds: list[Round]
) -> None:
    """Its counters are those of the rounds it was asked in; the copies' add up to the others."""
    item = request(max_tokens=80, temperature=0.8, seed=3, **THREE_LETTERS)
    texts = [whole(item, run(engine, item)["r"])]
    draft = finish_of(run(speculating(following(texts, varying), copies=True), item)["r"]).timings.draft
    drafted, copied = ([done for done in rounds if done.is_copy == is_copy] for is_copy in (False, True))
    assert min(len(drafted), len(copied)) > 3
    assert draft.draft_rounds == len(drafted)
    assert draft.draft_n == sum(done.drafted for done in drafted)
    assert draft.draft_n_accepted == sum(done.accepted for done in drafted)
    assert sum(draft.draft_accepted_per_position) == draft.draft_n_accepted
    assert draft.draft_verify_ms == pytest.approx(sum(done.verify_ms for done in drafted))
    assert draft.copy_rounds == len(copied)
    assert draft.copy_n == sum(done.drafted for done in copied)
    assert draft.copy_n_accepted == sum(done.accepted for done in copied)
    assert draft.copy_ms == pytest.approx(sum(done.wall_ms for done in copied))


def test_a_drafter_that_fails_between_copies_does_not_cut_the_answer(
    engine: Engine, speculating: Build, rounds: list[Round]
) -> None:
    """Nobody asks it while copies run; when somebody does, the rest is plain decode, without copies."""
    item = request(max_tokens=60, temperature=0.8, seed=11, **THREE_LETTERS)
    plain = run(engine, item)["r"]
    text = whole(item, plain)

    def script(told: list[int], depth: int) -> list[int]:
        if any(done.is_copy for done in rounds):
            raise RuntimeError("the drafter broke")
        return [*text[len(told) : len(told) + depth], 0, 0, 0][:depth]

    fast = speculating(ScriptedDrafter(script), copies=True)
    got = run(fast, item)["r"]
    assert outcome(got) == outcome(plain)
    assert fast._speculator.counts.fallbacks == (FellBack("drafter_failed", 1),)
    draft = finish_of(got).timings.draft
    assert draft.draft_rounds + draft.copy_rounds == len(rounds) < 40


def test_a_history_that_fails_after_a_copy_does_not_cut_the_answer(
    engine: Engine, speculating: Build, rounds: list[Round]
) -> None:
    """The copied tokens stand, and plain decode goes on from there."""

    class Forgetful(ScriptedDrafter):
        def extend(self, state: CheckedHistory, tokens: Sequence[int], features: mx.array) -> None:
            if len(tokens) > 2:
                raise RuntimeError("history is full")
            super().extend(state, tokens, features)

    item = request(max_tokens=40, **ONE_LETTER)
    plain = run(engine, item)["r"]
    fast = speculating(Forgetful(lambda told, depth: [0] * depth), copies=True)
    assert outcome(run(fast, item)["r"]) == outcome(plain)
    assert fast._speculator.counts.fallbacks == (FellBack("drafter_failed", 1),)
    assert rounds[-1].is_copy
    assert rounds[-1].accepted == 2


def walk(copying: Copying, text: Sequence[int], start: int, depth: int) -> list[Round]:
    """Rounds over a text decided beforehand; the drafter is right about nothing."""
    at, seen = start, []
    while at < len(text):
        copied = copying.propose(text[start:at], depth)
        ahead = zip(copied, text[at:], strict=False)
        kept = len(list(takewhile(lambda pair: pair[0] == pair[1], ahead)))
        emitted = tuple(text[at : at + kept + 1])
        done = Round(
            emitted=emitted,
            accepted=kept,
            drafted=len(copied) or depth,
            depth=depth,
            is_copy=bool(copied),
            logits=mx.zeros((1, 1)),
            draft_ms=0.0,
            verify_ms=0.0,
            overhead_ms=0.0,
        )
        copying.note(done)
        seen.append(done)
        at += kept + 1
    return seen


def test_copies_that_are_always_wrong_become_rare() -> None:
    """A text of new pairs, then each pair followed by something new: one round of nine at the most."""
    pairs = [(i, i + 1) for i in range(0, 100, 2)]
    prompt = [token for pair in pairs for token in pair]
    # Whatever pair is looked up was followed by the next pair's first token, and now is not.
    text = [*prompt, *(token for left, right in pairs for token in (left, right, 1000 + left))]
    seen = walk(Copying(prompt), text, len(prompt), depth=4)
    where = [i for i, done in enumerate(seen) if done.is_copy]
    assert all(done.accepted == 0 for done in seen if done.is_copy)
    gaps = [right - left for left, right in pairwise(where)]
    assert len(where) > 6
    assert gaps[:3] == sorted(gaps[:3])
    assert all(gap > 8 for gap in gaps[3:])


def test_copies_come_back_and_widen_where_the_text_repeats_again() -> None:
    """A loop after many misses is found, and its copies double up to the depth."""
    noise = [token for pair in product(range(6), repeat=2) for token in pair]
    text = [*noise, *[50, 51, 52, 53] * 30]
    seen = walk(Copying(noise[:20]), text, 20, depth=8)
    in_loop = [done for done in seen if done.emitted[0] >= 50]
    assert [done.drafted for done in in_loop if done.is_copy][-3:-1] == [8, 8]
    assert len(in_loop) < 30


def test_a_prompt_is_not_read_before_it_is_needed() -> None:
    """Nothing is indexed for a request that never comes to a round; reading goes on where it stopped."""

    class Unread(Sequence[int]):
        reads = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.reads += 1
            return (1, 2, 3, 1)[index]

    prompt = Unread()
    copying = Copying(prompt)
    assert prompt.reads == 0
    assert copying.propose([2], 4) == (3, 1)
    read = prompt.reads
    assert copying.propose([2, 3, 1], 4) == (2, 3)
    assert prompt.reads == read
