"""The engine end to end on a tiny model: batches, stops, cancels, faults, caches."""

from collections.abc import Callable

import pytest

from engine.engine import Engine, prefill_chunk
from messages.events import Cancelled, Failed, TokensEmitted
from messages.requests import RequestId
from tests.engine.conftest import finish_of, request, run, text_of

LONG = "a prompt of more than three whole chunks of sixteen bytes, so it is cached"


def ids_of(events: list) -> tuple[int, ...]:
    """Token ids that became visible."""
    return tuple(i for event in events if isinstance(event, TokensEmitted) for i in event.token_ids)


def test_length_ends_a_request_and_usage_counts_it(engine: Engine) -> None:
    """A request ends with `length` after exactly max_tokens tokens."""
    finish = finish_of(run(engine, request(max_tokens=7))["r"])
    assert finish.reason == "length"
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (11, 7)


def test_eos_ends_a_request_without_text(engine: Engine, loaded: object) -> None:
    """The end-of-sequence token counts as a token, ends with `stop` and adds no text."""
    biased = request(ignore_eos=False, logit_bias=((2, 100.0),))
    events = run(engine, biased)["r"]
    assert finish_of(events).reason == "stop"
    assert finish_of(events).usage.completion_tokens == 1
    assert text_of(events) == ""


def test_stop_string_cuts_the_text_before_it(engine: Engine) -> None:
    """Text ends right before a stop string, even one that spans several tokens."""
    free = text_of(run(engine, request(max_tokens=12, logit_bias=()))["r"])
    stop = free[4:6]
    events = run(engine, request(max_tokens=12, stop=(stop,)))["r"]
    assert text_of(events) == free[: free.index(stop)]
    assert finish_of(events).reason == "stop"


def test_text_withheld_for_a_stop_string_is_flushed_at_the_end(engine: Engine) -> None:
    """Text that might have become a stop string is not lost when the length ends the request."""
    free = text_of(run(engine, request(max_tokens=12))["r"])
    events = run(engine, request(max_tokens=12, stop=(free[-1] + "\x00never",)))["r"]
    assert text_of(events) == free


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_batch_equals_single(make_engine: Callable[..., Engine], temperature: float) -> None:
    """A greedy or seeded request gives the same tokens alone and among others that come and go."""
    alone = run(make_engine(), request("x", temperature=temperature, seed=5))["x"]
    others = [request(f"o{i}", prompt="z" * (i + 1), max_tokens=3 + 4 * i) for i in range(5)]
    together = run(make_engine(), *others[:2], request("x", temperature=temperature, seed=5), *others[2:])
    assert ids_of(together["x"]) == ids_of(alone)


def test_different_seeds_differ(engine: Engine) -> None:
    """Two seeds give two texts, the same seed the same text."""
    texts = [text_of(run(engine, request(temperature=1.0, seed=seed))["r"]) for seed in (1, 2, 1)]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]


def test_more_requests_than_slots_all_finish(make_engine: Callable[..., Engine]) -> None:
    """Requests beyond the slots wait inside the engine and still finish."""
    events = run(make_engine(num_slots=2), *(request(f"r{i}") for i in range(5)))
    assert all(finish_of(e).usage.completion_tokens == 12 for e in events.values())


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_abort_ends_a_request_at_any_stage(engine: Engine, steps: int) -> None:
    """An abort before prefill, in prefill or while decoding gives one Cancelled event and a free engine."""
    engine.submit(request("r", prompt=LONG))
    for _ in range(steps):
        engine.step()
    assert engine.abort(RequestId("r")) == [Cancelled(request_id=RequestId("r"))]
    assert engine.active == ()
    assert engine.abort(RequestId("r")) == []


def test_abort_leaves_the_others_alone(make_engine: Callable[..., Engine]) -> None:
    """Taking one row out of the batch changes nothing for the rest."""
    alone = ids_of(run(make_engine(), request("x"))["x"])
    engine = make_engine()
    engine.submit(request("gone"))
    engine.submit(request("x"))
    seen: list = []
    for step in range(40):
        if step == 6:
            engine.abort(RequestId("gone"))
        seen += [e for e in engine.step() if e.request_id == "x"]
    assert ids_of(seen) == alone


def test_logprobs_belong_to_the_chosen_token(engine: Engine) -> None:
    """Greedy choices are the best alternative, and log-probabilities are ordered and at most zero."""
    events = run(engine, request(top_logprobs=3))["r"]
    details = [d for e in events if isinstance(e, TokensEmitted) for d in e.logprobs]
    assert len(details) == 12
    for detail in details:
        assert detail.top[0].token_id == detail.token_id
        assert 0 >= detail.logprob == detail.top[0].logprob >= detail.top[1].logprob >= detail.top[2].logprob


def test_prompt_cache_hit_gives_the_same_text(make_engine: Callable[..., Engine]) -> None:
    """A second request with the same long prefix skips its chunks and says the same."""
    engine = make_engine()
    first = run(engine, request("a", prompt=LONG))["a"]
    second = run(engine, request("b", prompt=LONG))["b"]
    assert ids_of(first) == ids_of(second)
    assert finish_of(first).usage.cached_tokens == 0
    assert finish_of(second).usage.cached_tokens == (len(LONG) - 1) // 16 * 16
    longer = run(engine, request("c", prompt=LONG + " and more"))["c"]
    fresh = run(make_engine(), request("c", prompt=LONG + " and more"))["c"]
    assert ids_of(longer) == ids_of(fresh)
    assert finish_of(longer).usage.cached_tokens == finish_of(second).usage.cached_tokens


def test_prompt_cache_can_be_switched_off(make_engine: Callable[..., Engine]) -> None:
    """With 0 bytes nothing is kept."""
    engine = make_engine(prompt_cache_bytes=0)
    run(engine, request("a", prompt=LONG))
    assert finish_of(run(engine, request("b", prompt=LONG))["b"]).usage.cached_tokens == 0


def test_presence_penalty_stops_repetition(engine: Engine) -> None:
    """With the largest penalty on generated tokens, none comes twice in a short text."""
    ids = ids_of(run(engine, request(presence_penalty=100.0, max_tokens=20))["r"])
    assert len(set(ids)) == 20


def test_fail_all_answers_everybody_and_the_engine_goes_on(engine: Engine) -> None:
    """After a failed step every request gets one Failed event and new requests are served."""
    engine.submit(request("a"))
    engine.step()
    engine.submit(request("b"))
    failed = engine.fail_all("boom")
    assert {e.request_id for e in failed if isinstance(e, Failed)} == {"a", "b"}
    assert finish_of(run(engine, request("c"))["c"]).reason == "length"


@pytest.mark.parametrize(("speed", "chunk"), [(1.0, 32), (130.0, 64), (1e9, 2048)])
def test_prefill_chunk_is_half_a_second_of_work(speed: float, chunk: int) -> None:
    """Chunks are powers of two between 32 and 2048 that fit the time."""
    assert prefill_chunk(speed, 0.5) == chunk
