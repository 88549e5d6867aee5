"""Golden bodies: every byte a client sees."""

import json

from messages.events import (
    DraftTimings,
    Finished,
    Timings,
    TokenLogprob,
    TokensEmitted,
    TopLogprob,
    Usage,
)
from messages.requests import RequestId
from serve_app.responses import ChatWire, ReplyInfo, TextWire, timings_object

RID = RequestId("r1")
USAGE = (
    '{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}'
)
TIMINGS = (
    '{"prompt_n":2,"prompt_ms":4.0,"prompt_per_token_ms":2.0,"prompt_per_second":500.0,'
    '"predicted_n":2,"predicted_ms":8.0,"predicted_per_token_ms":4.0,"predicted_per_second":250.0}'
)
FINISHED = Finished(
    request_id=RID,
    reason="length",
    usage=Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3),
    timings=Timings(prompt_n=2, prompt_ms=4.0, predicted_n=2, predicted_ms=8.0),
)
TOKENS = (
    TokenLogprob(
        token_id=1,
        text="H",
        raw=b"H",
        logprob=-0.25,
        top=(TopLogprob(token_id=1, text="H", raw=b"H", logprob=-0.25),),
    ),
    TokenLogprob(
        token_id=2,
        text="é",
        raw=b"\xc3\xa9",
        logprob=float("-inf"),
        top=(TopLogprob(token_id=3, text="e", raw=b"e", logprob=-0.5),),
    ),
)
EMITTED = TokensEmitted(request_id=RID, text='H"é\n', token_ids=(1, 2))
EMITTED_LOGPROBS = TokensEmitted(request_id=RID, text="Hé", token_ids=(1, 2), logprobs=TOKENS)
CHAT_HEAD = '{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",'
TEXT_HEAD = '{"id":"c1","object":"text_completion","created":7,"model":"m",'
CHAT_LOGPROBS = (
    '{"content":[{"token":"H","logprob":-0.25,"bytes":[72],'
    '"top_logprobs":[{"token":"H","logprob":-0.25,"bytes":[72]}]},'
    '{"token":"é","logprob":-9999.0,"bytes":[195,169],'
    '"top_logprobs":[{"token":"e","logprob":-0.5,"bytes":[101]}]}],"refusal":null}'
)


def info(*, include_usage: bool = False, top_logprobs: int | None = None) -> ReplyInfo:
    """The fixed part of the replies below."""
    return ReplyInfo(
        reply_id="c1", created=7, model="m", include_usage=include_usage, top_logprobs=top_logprobs
    )


def test_chat_opening() -> None:
    """The role comes first, with empty content."""
    assert ChatWire(info()).opening().decode() == (
        f'data: {CHAT_HEAD}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
    )


def test_chat_delta() -> None:
    """Text is escaped as JSON and nothing else."""
    assert ChatWire(info()).delta(EMITTED).decode() == (
        f'data: {CHAT_HEAD}"choices":[{{"index":0,"delta":{{"content":"H\\"é\\n"}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
    )


def test_chat_delta_with_logprobs() -> None:
    """Every token of the burst with its alternatives; minus infinity is shown as -9999."""
    assert ChatWire(info(top_logprobs=1)).delta(EMITTED_LOGPROBS).decode() == (
        f'data: {CHAT_HEAD}"choices":[{{"index":0,"delta":{{"content":"Hé"}},'
        f'"logprobs":{CHAT_LOGPROBS},"finish_reason":null}}]}}\n\n'
    )


def test_chat_ending() -> None:
    """The chunk with the finish reason carries the timings; the end marker follows."""
    assert ChatWire(info()).ending(FINISHED).decode() == (
        f'data: {CHAT_HEAD}"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"length"}}],'
        f'"timings":{TIMINGS}}}\n\ndata: [DONE]\n\n'
    )


def test_chat_stream_with_usage() -> None:
    """Usage is null in every chunk but one of its own before the end marker."""
    wire = ChatWire(info(include_usage=True))
    assert wire.opening().endswith(b'"finish_reason":null}],"usage":null}\n\n')
    assert wire.delta(EMITTED).endswith(b'"finish_reason":null}],"usage":null}\n\n')
    assert wire.ending(FINISHED).decode() == (
        f'data: {CHAT_HEAD}"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"length"}}],'
        f'"usage":null,"timings":{TIMINGS}}}\n\n'
        f'data: {CHAT_HEAD}"choices":[],"usage":{USAGE}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_chat_body() -> None:
    """The whole reply."""
    assert ChatWire(info()).body("Hi", (), FINISHED).decode() == (
        '{"id":"c1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,'
        '"message":{"role":"assistant","content":"Hi","refusal":null},"logprobs":null,'
        f'"finish_reason":"length"}}],"usage":{USAGE},"timings":{TIMINGS}}}'
    )


def test_chat_body_with_logprobs() -> None:
    """The same shape as in the stream."""
    body = json.loads(ChatWire(info(top_logprobs=1)).body("Hé", TOKENS, FINISHED))
    assert body["choices"][0]["logprobs"] == json.loads(CHAT_LOGPROBS)


def test_text_stream() -> None:
    """No opening, text in the choice, an empty text beside the finish reason."""
    wire = TextWire(info())
    assert wire.opening() == b""
    assert wire.delta(EMITTED).decode() == (
        f'data: {TEXT_HEAD}"choices":[{{"index":0,"text":"H\\"é\\n",'
        '"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert wire.ending(FINISHED).decode() == (
        f'data: {TEXT_HEAD}"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"length"}}],'
        f'"timings":{TIMINGS}}}\n\ndata: [DONE]\n\n'
    )


def test_text_delta_with_logprobs_counts_offsets_across_chunks() -> None:
    """Parallel lists; offsets are characters of the returned text."""
    wire = TextWire(info(top_logprobs=1))
    assert wire.delta(EMITTED_LOGPROBS).decode() == (
        f'data: {TEXT_HEAD}"choices":[{{"index":0,"text":"Hé","logprobs":{{"tokens":["H","é"],'
        '"token_logprobs":[-0.25,-9999.0],"top_logprobs":[{"H":-0.25},{"e":-0.5,"é":-9999.0}],'
        '"text_offset":[0,1]},"finish_reason":null}]}\n\n'
    )
    assert b'"text_offset":[2,3]' in wire.delta(EMITTED_LOGPROBS)


def test_text_body() -> None:
    """The whole reply; logprobs 0 gives the tokens without alternatives."""
    assert TextWire(info(top_logprobs=0)).body("Hé", TOKENS, FINISHED).decode() == (
        '{"id":"c1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"Hé",'
        '"logprobs":{"tokens":["H","é"],"token_logprobs":[-0.25,-9999.0],"top_logprobs":null,'
        f'"text_offset":[0,1]}},"finish_reason":"length"}}],"usage":{USAGE},"timings":{TIMINGS}}}'
    )


def test_speculation_shows_in_the_timings() -> None:
    """Counters and times of the rounds, absent when no verify round ran."""
    draft = DraftTimings(
        draft_n=9,
        draft_n_accepted=6,
        draft_rounds=3,
        draft_kind="mtp",
        draft_accepted_per_position=(3, 2, 1),
        draft_ms=1.23456,
        draft_verify_ms=5.0,
        draft_overhead_ms=0.5,
        copy_n=4,
        copy_n_accepted=3,
        copy_rounds=2,
        copy_ms=7.0,
    )
    shown = timings_object(Timings(prompt_n=2, prompt_ms=4.0, predicted_n=2, predicted_ms=8.0, draft=draft))
    plain = json.loads(TIMINGS)
    assert {name: shown[name] for name in plain} == plain
    assert {name: value for name, value in shown.items() if name not in plain} == {
        "draft_n": 9,
        "draft_n_accepted": 6,
        "draft_rounds": 3,
        "draft_kind": "mtp",
        "draft_accepted_per_position": (3, 2, 1),
        "draft_ms": 1.235,
        "draft_verify_ms": 5.0,
        "draft_overhead_ms": 0.5,
        "copy_n": 4,
        "copy_n_accepted": 3,
        "copy_rounds": 2,
        "copy_ms": 7.0,
    }


def test_timings_of_nothing_are_zero() -> None:
    """No division fails when no token or no time passed."""
    shown = timings_object(Timings(prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0))
    assert set(shown.values()) == {0}
