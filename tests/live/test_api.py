"""The live server through the official client and plain HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests import tiny
from tests.live.conftest import PARALLEL
from tests.live.server import LiveServer, eventually

pytestmark = pytest.mark.serve

HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def chat(client: openai.OpenAI, **changes: object) -> openai.types.chat.ChatCompletion:
    """A short greedy chat completion."""
    return client.chat.completions.create(
        **({"model": "tiny", "messages": HELLO, "max_tokens": 12} | GREEDY | changes)
    )


def test_chat_streaming_says_what_the_whole_reply_says(client: openai.OpenAI) -> None:
    """Streamed pieces add up to the unstreamed text; usage comes when asked for."""
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 12


def test_completions_with_logprobs(client: openai.OpenAI) -> None:
    """Legacy completions report one log-probability per token and the asked-for alternatives."""
    # Special tokens have a name but no text.
    plain = {"logit_bias": {str(token): -100 for token in range(len(tiny.SPECIAL))}}
    reply = client.completions.create(model="tiny", prompt="abc", max_tokens=6, logprobs=2, **plain, **GREEDY)
    logprobs = reply.choices[0].logprobs
    assert len(logprobs.tokens) == 6
    assert all(len(top) >= 2 for top in logprobs.top_logprobs)
    assert "".join(logprobs.tokens) == reply.choices[0].text


def test_chat_logprobs(client: openai.OpenAI) -> None:
    """Chat log-probabilities cover every token, the chosen one first at temperature 0."""
    content = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 12
    assert all(item.token == item.top_logprobs[0].token for item in content)


def test_stop_string(client: openai.OpenAI) -> None:
    """The text ends before the stop string with finish reason stop."""
    text = chat(client).choices[0].message.content
    stopped = chat(client, stop=[text[5:7]]).choices[0]
    assert stopped.message.content == text[: text.index(text[5:7])]
    assert stopped.finish_reason == "stop"


def test_models(client: openai.OpenAI) -> None:
    """The served model is listed and can be looked up."""
    assert "tiny" in [model.id for model in client.models.list()]
    assert client.models.retrieve("tiny").id == "tiny"


def test_eight_streams_at_once_each_as_if_alone(client: openai.OpenAI) -> None:
    """Concurrent greedy and seeded streams give the texts they give one after the other."""
    settings = [
        {"temperature": 0.0 if i % 2 else 0.9, "seed": i, "max_tokens": 20 + i} for i in range(PARALLEL)
    ]

    def text(changes: dict) -> str:
        chunks = chat(client, stream=True, **changes)
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    alone = [text(changes) for changes in settings]
    with ThreadPoolExecutor(PARALLEL) as pool:
        assert list(pool.map(text, settings)) == alone


def test_request_id_comes_back(server: LiveServer) -> None:
    """A client's request id is returned and logged."""
    reply = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "abc-123"})
    assert reply.headers["x-request-id"] == "abc-123"

    def logged() -> bool:
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        return any(line.get("request_id") == "abc-123" for line in lines)

    # Ray collects the replicas' logs every now and then.
    eventually(logged, 10)


def test_policy_without_a_drafter(server: LiveServer) -> None:
    """A server without a drafter says so, in the endpoint and in the health mirror."""
    body = httpx.get(f"{server.url}/v1/internal/mtp-policy").json()
    assert (body["state"], body["reason"], body["mtp_enabled"]) == ("unavailable", "no_mtp_dispatch", False)
    mirror = httpx.get(f"{server.url}/health").json()["observability"]["mtp_policy"]
    assert (mirror["status"], mirror["reason"]) == ("unavailable", "no_mtp_dispatch")


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"temperature": 3}, 400, "temperature must be between 0 and 2; got 3"),
        ({"top_p": 0}, 400, "top_p"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"n": 2}, 400, "n"),
        ({"stop": [""]}, 400, "stop"),
        ({"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs"),
        ({"model": "gpt-9"}, 404, "gpt-9"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "512"),
    ],
)
def test_bad_input_is_refused_in_words(server: LiveServer, changes: dict, status: int, words: str) -> None:
    """Every bad value gets a 4xx whose message names it."""
    reply = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "tiny", "messages": HELLO, "max_tokens": 4} | changes,
    )
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]


def test_malformed_json_is_refused(server: LiveServer) -> None:
    """A body that is not JSON gets a 400 envelope."""
    reply = httpx.post(f"{server.url}/v1/chat/completions", content=b"{not json")
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
