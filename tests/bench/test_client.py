"""Asking servers: streams become replies, refusals and broken streams become sentences."""

import json
import threading
from typing import Any

import pytest

from bench.child import free_port
from bench.client import Client, StreamReader
from bench.errors import BenchError
from bench.reply import Draft
from messages.events import DraftTimings, Finished, Timings, TokensEmitted, Usage
from serve_app.responses import ChatWire, ReplyInfo
from tests.bench.fake_server import Answer, chat_events, serving, text_events

TIMINGS: dict[str, int | str] = {"draft_n": 6, "draft_n_accepted": 3, "draft_rounds": 2, "draft_kind": "mtp"}


def test_completions_come_back_in_the_order_of_their_prompts_and_run_together() -> None:
    """Eight requests are open at once: none is answered before all have arrived."""
    together = threading.Barrier(8, timeout=20)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        together.wait()
        assert path == "/v1/completions"
        assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 3, True)
        return 200, text_events([body["prompt"], "b", "c"])

    with serving(answer) as url:
        replies = Client(url).complete([f"p{i}" for i in range(8)], 3)
    assert [reply.text for reply in replies] == [f"p{i}bc" for i in range(8)]
    assert {(reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) for reply in replies} == {
        (4, 3, "length")
    }
    assert all(reply.sent_s < reply.first_s <= reply.end_s for reply in replies)


def test_a_chat_carries_the_switch_and_the_key_and_brings_back_the_counters() -> None:
    """Pieces keep their lengths, and draft counters come from the timings."""
    seen: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        seen.append(body)
        return 200, chat_events(["Hel", "lo"], timings=TIMINGS if body["speculative"] else {})

    with serving(answer) as url:
        client = Client(url + "/", api_key="sk-1")
        mtp, plain = client.chat("hi", 2, True), client.chat("hi", 2, False)
    assert (mtp.text, mtp.piece_chars) == ("Hello", (3, 2))
    assert mtp.draft == Draft(draft_n=6, draft_n_accepted=3, draft_rounds=2)
    assert plain.draft is None
    assert [body["speculative"] for body in seen] == [True, False]
    assert {body["auth"] for body in seen} == {"Bearer sk-1"}


def test_a_server_that_does_not_know_the_switch_is_explained() -> None:
    """The refusal of an unknown field becomes a sentence about what cannot be compared."""
    envelope = {"error": {"message": 'Unknown field "speculative".', "code": "unknown_field"}}
    with serving(lambda *_: (400, envelope)) as url, pytest.raises(BenchError, match="does not know"):
        Client(url).chat("hi", 2, True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"error": {"message": "too busy", "code": None}}, "answered 503: too busy"),
        ({"error": "plain words"}, "answered 503: plain words"),
        ({}, "answered 503: no reason given"),
    ],
)
def test_a_refusal_is_quoted(content: dict[str, Any], expected: str) -> None:
    """Whatever the shape of the error, the status and the server's words are shown."""
    with serving(lambda *_: (503, content)) as url, pytest.raises(BenchError, match=expected):
        Client(url).complete(["p"], 2)


def test_a_server_that_is_not_there_is_named() -> None:
    """No stack trace of the HTTP library, and not ready either."""
    client = Client(f"http://127.0.0.1:{free_port()}")
    assert not client.ready()
    with pytest.raises(BenchError, match="no server answers at"):
        client.policy()
    with pytest.raises(BenchError, match="ConnectError"):
        client.complete(["p"], 2)


def test_waiting_ends_when_the_check_raises() -> None:
    """A dead child is reported at once instead of after the time-out."""

    def check() -> None:
        raise BenchError("it died")

    with serving(lambda *_: (503, {})) as url, pytest.raises(BenchError, match="it died"):
        Client(url).wait_until_ready(60, check)


def test_waiting_gives_up_after_its_time() -> None:
    """The sentence says how long it waited."""
    with serving(lambda *_: (503, {})) as url, pytest.raises(BenchError, match="not ready within 0 s"):
        Client(url).wait_until_ready(0, lambda: None)


def test_an_error_inside_a_stream_is_not_an_answer() -> None:
    """A model that dies half way raises with the server's words."""
    with pytest.raises(BenchError, match="the worker is gone"):
        StreamReader(0.0).take({"error": {"message": "the worker is gone"}}, 1.0)


@pytest.mark.parametrize(
    ("events", "missing"),
    [(text_events(["a"])[:1], "finish reason"), (text_events(["a"])[:2], "token counts")],
)
def test_a_stream_that_was_cut_off_is_not_an_answer(events: list[Any], missing: str) -> None:
    """Half an answer is never measured."""
    reader = StreamReader(0.0)
    for event in events:
        reader.take(event, 1.0)
    with pytest.raises(BenchError, match=missing):
        reader.reply()


def test_times_are_those_of_the_first_text_and_of_the_finish_reason() -> None:
    """Neither the opening without text nor the usage event moves them."""
    reader = StreamReader(1.0)
    for now, event in enumerate(chat_events(["a", "b"]), 2):
        reader.take(event, float(now))
    reply = reader.reply()
    assert (reply.sent_s, reply.first_s, reply.end_s) == (1.0, 3.0, 5.0)


def test_what_this_server_sends_is_understood() -> None:
    """Counts per position, times of rounds and the server's own decode time come through its wire format."""
    wire = ChatWire(ReplyInfo(reply_id="c", created=1, model="m", include_usage=True))
    drafted = DraftTimings(
        draft_n=6,
        draft_n_accepted=3,
        draft_rounds=2,
        draft_kind="mtp",
        draft_accepted_per_position=(2, 1, 0),
        draft_ms=1.5,
        draft_verify_ms=8.0,
        draft_overhead_ms=0.5,
    )
    timings = Timings(prompt_n=4, prompt_ms=9.0, predicted_n=5, predicted_ms=12.5, draft=drafted)
    usage = Usage(prompt_tokens=4, completion_tokens=5)
    stream = b"".join(
        (
            wire.opening(),
            wire.delta(TokensEmitted(request_id="r", text="Hel", token_ids=(1, 2, 3))),
            wire.delta(TokensEmitted(request_id="r", text="lo", token_ids=(4, 5))),
            wire.ending(Finished(request_id="r", reason="length", usage=usage, timings=timings)),
        )
    )
    reader = StreamReader(0.0)
    for now, line in enumerate(filter(None, stream.decode().splitlines()), 1):
        if line != "data: [DONE]":
            reader.take(json.loads(line.removeprefix("data: ")), float(now))
    reply = reader.reply()
    assert (reply.text, reply.completion_tokens, reply.predicted_ms) == ("Hello", 5, 12.5)
    assert reply.draft == Draft(
        draft_n=6,
        draft_n_accepted=3,
        draft_rounds=2,
        draft_accepted_per_position=(2, 1, 0),
        draft_ms=1.5,
        draft_verify_ms=8.0,
        draft_overhead_ms=0.5,
    )
