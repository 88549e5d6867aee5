"""Ranges, defaults and the context limit."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.model import ModelCard
from messages.requests import RequestId, SamplingParams
from serve_app.errors import ClientError
from serve_app.openai_schema import ChatBody, CompletionBody
from serve_app.translate import build_request, clipped_tokens, generation_settings, text_or_ids

VOCAB = 258


def chat(**fields: Any) -> ChatBody:
    """A chat body with a message."""
    return msgspec.convert({"messages": [{"role": "user", "content": "x"}], **fields}, ChatBody)


def completion(**fields: Any) -> CompletionBody:
    """A completion body with a prompt."""
    return msgspec.convert({"prompt": "x", **fields}, CompletionBody)


def sampling(**fields: Any) -> SamplingParams:
    """Sampling settings of a chat body."""
    return generation_settings(chat(**fields), VOCAB, fresh_seed=99).sampling


def test_defaults_are_openais_with_a_drawn_seed() -> None:
    """Nothing given means plain sampling at temperature 1."""
    assert sampling() == SamplingParams(temperature=1.0, seed=99)


def test_given_values_arrive() -> None:
    """Every sampling field reaches the engine unchanged."""
    assert sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=-5,
        presence_penalty=1.5,
        frequency_penalty=-2,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "3": 2.5},
    ) == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=-5,
        presence_penalty=1.5,
        frequency_penalty=-2.0,
        repetition_penalty=1.1,
        logit_bias=((3, 2.5), (5, -100.0)),
    )


@pytest.mark.parametrize("seed", [None, -1])
def test_no_seed_and_minus_one_draw_one(seed: int | None) -> None:
    """Both mean random."""
    assert sampling(seed=seed).seed == 99


@pytest.mark.parametrize("top_k", [0, -1, VOCAB, 10**30])
def test_a_top_k_that_keeps_everything_is_off(top_k: int) -> None:
    """The engine sees one spelling of "off"."""
    assert sampling(top_k=top_k).top_k == 0


@pytest.mark.parametrize("temperature", [0, 1e-6, 5e-324])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    """It would overflow where logits are divided by it."""
    assert sampling(temperature=temperature).temperature == 0.0


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("temperature", -0.1, "between 0 and 2"),
        ("temperature", 2.1, "between 0 and 2"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_k", -2, "at least -1"),
        ("min_p", -0.1, "between 0 and 1"),
        ("min_p", 1.1, "between 0 and 1"),
        ("seed", 2**63, "between -9223372036854775808 and 9223372036854775807"),
        ("seed", -(2**63) - 1, "between -9223372036854775808 and 9223372036854775807"),
        ("presence_penalty", 2.1, "between -2 and 2"),
        ("frequency_penalty", -2.1, "between -2 and 2"),
        ("repetition_penalty", 0, "between 0.01 and 100"),
        ("repetition_penalty", -1, "between 0.01 and 100"),
        ("max_tokens", 0, "at least 1"),
        ("max_completion_tokens", -1, "at least 1"),
    ],
)
def test_values_out_of_range_are_named_with_the_range(name: str, value: float, legal: str) -> None:
    """A client can repair its request from the message alone."""
    with pytest.raises(ClientError) as caught:
        generation_settings(chat(**{name: value}), VOCAB, fresh_seed=1)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert legal in caught.value.message
    assert str(value) in caught.value.message


@pytest.mark.parametrize(
    "biases",
    [{"258": 1}, {"-1": 1}, {"05": 1}, {"five": 1}, {"": 1}, {"9" * 5000: 1}, {"\u0665": 1}, {"5": 100.5}],
)
def test_bad_logit_biases_are_refused(biases: dict[str, float]) -> None:
    """Keys are canonical ids of the vocabulary, values lie between -100 and 100."""
    with pytest.raises(ClientError, match="between") as caught:
        sampling(logit_bias=biases)
    assert caught.value.param is not None
    assert caught.value.param.startswith("logit_bias")


def test_too_many_biases_are_refused() -> None:
    """Each costs work at every token."""
    with pytest.raises(ClientError, match="at most 1024"):
        sampling(logit_bias={str(index): 1.0 for index in range(1025)})


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, ()), ("a", ("a",)), ([], ()), (["b", "a", "b"], ("b", "a"))]
)
def test_stop_strings_keep_their_order_without_repeats(stop: Any, strings: tuple[str, ...]) -> None:
    """One string or a list."""
    assert generation_settings(chat(stop=stop), VOCAB, 1).stop == strings


@pytest.mark.parametrize("stop", ["", ["a", ""], ["x"] * 17])
def test_empty_and_too_many_stop_strings_are_refused(stop: Any) -> None:
    """An empty one would end every reply at once."""
    with pytest.raises(ClientError, match="stop must hold"):
        generation_settings(chat(stop=stop), VOCAB, 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_chat_logprobs(fields: dict[str, Any], expected: int | None) -> None:
    """A switch and a number."""
    assert generation_settings(chat(**fields), VOCAB, 1).top_logprobs == expected


@pytest.mark.parametrize(("given_value", "expected"), [(None, None), (0, 0), (5, 5)])
def test_completion_logprobs(given_value: int | None, expected: int | None) -> None:
    """One number."""
    assert generation_settings(completion(logprobs=given_value), VOCAB, 1).top_logprobs == expected


@pytest.mark.parametrize(
    "body",
    [
        chat(logprobs=True, top_logprobs=21),
        chat(logprobs=True, top_logprobs=-1),
        chat(top_logprobs=3),
        completion(logprobs=6),
        completion(logprobs=-1),
    ],
)
def test_bad_logprobs_are_refused(body: ChatBody | CompletionBody) -> None:
    """Out of range, or alternatives without the switch."""
    with pytest.raises(ClientError, match="logprobs"):
        generation_settings(body, VOCAB, 1)


def test_stream_options_need_a_stream() -> None:
    """Otherwise the client expects something that will not come."""
    with pytest.raises(ClientError, match="stream: true"):
        generation_settings(chat(stream_options={"include_usage": True}), VOCAB, 1)


def test_either_name_of_the_token_limit_counts() -> None:
    """The same number twice is no contradiction, two numbers are."""
    assert generation_settings(chat(max_tokens=5), VOCAB, 1).max_tokens == 5
    assert generation_settings(chat(max_completion_tokens=6), VOCAB, 1).max_tokens == 6
    assert generation_settings(chat(max_tokens=5, max_completion_tokens=5), VOCAB, 1).max_tokens == 5
    with pytest.raises(ClientError, match="max_tokens 5 and max_completion_tokens 6 differ"):
        generation_settings(chat(max_tokens=5, max_completion_tokens=6), VOCAB, 1)


@given(st.integers(1, 300), st.integers(1, 256) | st.none(), st.integers(2, 256))
def test_a_request_never_exceeds_the_context(num_prompt: int, wanted: int | None, context: int) -> None:
    """What is asked for is given, or all that is left; a prompt without room for a token is refused."""
    if num_prompt > context - 1:
        with pytest.raises(ClientError) as caught:
            clipped_tokens(wanted, num_prompt, context)
        assert caught.value.code == "context_length_exceeded"
        assert str(num_prompt) in caught.value.message
        assert str(context) in caught.value.message
    else:
        granted = clipped_tokens(wanted, num_prompt, context)
        assert granted == (context - num_prompt if wanted is None else min(wanted, context - num_prompt))
        assert num_prompt + granted <= context


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to continue."""
    with pytest.raises(ClientError, match="at least one token"):
        clipped_tokens(None, 0, 10)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), ("", ""), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ([257], (257,))],
)
def test_prompts_are_text_or_ids(prompt: Any, expected: Any, card: ModelCard) -> None:
    """One prompt, however it is wrapped."""
    assert text_or_ids(completion(prompt=prompt), card) == expected


@pytest.mark.parametrize(
    "prompt", [[], [[]], ["a", "b"], ["a", 1], [1, "a"], [[1], [2]], [1, [2]], [-1], [0, 258], [10**30]]
)
def test_other_prompts_are_refused(prompt: Any, card: ModelCard) -> None:
    """Several prompts, mixed lists and ids outside the vocabulary."""
    with pytest.raises(ClientError, match="must be") as caught:
        text_or_ids(completion(prompt=prompt), card)
    assert caught.value.status == 400


def test_the_request_carries_everything() -> None:
    """Ids, limits and switches end up where the engine reads them."""
    body = chat(max_tokens=9, stop="x", logprobs=True, top_logprobs=2, ignore_eos=True, seed=4)
    settings = generation_settings(body, VOCAB, 1)
    request = build_request(settings, (1, 2, 3), 10, request_id=RequestId("r"), client="c")
    assert (request.request_id, request.client, request.prompt) == ("r", "c", (1, 2, 3))
    assert (request.max_tokens, request.stop, request.top_logprobs) == (7, ("x",), 2)
    assert request.ignore_eos
    assert request.sampling.seed == 4
