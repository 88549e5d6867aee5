"""From a parsed body to the request the engine takes: ranges, defaults and the context limit.

Pure: the seed to fall back on and the ids come in as values; tokenising happens elsewhere.
"""

from typing import TypeVar

from msgspec import Struct

from messages.model import ModelCard
from messages.requests import GenerateRequest, RequestId, SamplingParams
from serve_app.errors import ClientError
from serve_app.openai_schema import ChatBody, CommonBody, CompletionBody, shown

MAX_STOP_STRINGS = 16
MAX_BIASED_TOKENS = 1024
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
# Below this, dividing logits by the temperature overflows float32 and only the best token is left anyway.
GREEDY_BELOW = 1e-5


class GenerationSettings(Struct, frozen=True, kw_only=True):
    """What a body asks of the generation, checked, before its prompt is known in tokens.

    `max_tokens` is None for "as many as fit"; `top_logprobs` is None without log-probabilities.
    """

    sampling: SamplingParams
    stop: tuple[str, ...]
    max_tokens: int | None
    top_logprobs: int | None
    ignore_eos: bool
    speculative: bool | None


def generation_settings(
    body: ChatBody | CompletionBody, vocab_size: int, fresh_seed: int
) -> GenerationSettings:
    """Checked settings with defaults filled in. Raises ClientError 400 naming value and legal range."""
    if body.stream_options is not None and not body.stream:
        raise ClientError("stream_options is legal only with stream: true.", param="stream_options")
    return GenerationSettings(
        sampling=sampling_params(body, vocab_size, fresh_seed),
        stop=stop_strings(body),
        max_tokens=wanted_tokens(body),
        top_logprobs=top_logprobs(body),
        ignore_eos=bool(body.ignore_eos),
        speculative=body.speculative,
    )


def build_request(
    settings: GenerationSettings,
    prompt: tuple[int, ...],
    context_length: int,
    *,
    request_id: RequestId,
    client: str,
) -> GenerateRequest:
    """The engine's request. Raises ClientError 400 for a prompt that does not fit the context."""
    return GenerateRequest(
        request_id=request_id,
        client=client,
        prompt=prompt,
        max_tokens=clipped_tokens(settings.max_tokens, len(prompt), context_length),
        sampling=settings.sampling,
        stop=settings.stop,
        top_logprobs=settings.top_logprobs,
        ignore_eos=settings.ignore_eos,
        speculative=settings.speculative,
    )


def sampling_params(body: CommonBody, vocab_size: int, fresh_seed: int) -> SamplingParams:
    """Sampling settings of a body, defaults filled in. `seed` null or -1 takes `fresh_seed`.

    A temperature below 1e-5 is greedy; a `top_k` of 0, -1 or at least the vocabulary is off.
    """
    temperature = _in_range("temperature", body.temperature, 1.0, 0, 2)
    top_k = _in_range("top_k", body.top_k, 0, -1)
    seed = _in_range("seed", body.seed, -1, MIN_SEED, MAX_SEED)
    top_p = 1.0 if body.top_p is None else body.top_p
    if not 0 < top_p <= 1:
        raise ClientError(f"top_p must be above 0 and at most 1; got {top_p}.", param="top_p")
    return SamplingParams(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p,
        top_k=0 if top_k < 0 or top_k >= vocab_size else top_k,
        min_p=_in_range("min_p", body.min_p, 0.0, 0, 1),
        seed=fresh_seed if seed == -1 else seed,
        presence_penalty=_in_range("presence_penalty", body.presence_penalty, 0.0, -2, 2),
        frequency_penalty=_in_range("frequency_penalty", body.frequency_penalty, 0.0, -2, 2),
        repetition_penalty=_in_range("repetition_penalty", body.repetition_penalty, 1.0, 0.01, 100),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
    )


def stop_strings(body: CommonBody) -> tuple[str, ...]:
    """Stop strings without repeats, in the given order. Raises ClientError 400 for empty or too many."""
    given = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(given) > MAX_STOP_STRINGS:
        raise ClientError(
            f"stop must hold at most {MAX_STOP_STRINGS} strings; got {len(given)}.", param="stop"
        )
    if "" in given:
        raise ClientError(f"stop must hold non-empty strings; got {shown(body.stop)}.", param="stop")
    return tuple(dict.fromkeys(given))


def top_logprobs(body: ChatBody | CompletionBody) -> int | None:
    """Alternatives per token, None without log-probabilities (chat 0-20, completions 0-5)."""
    if isinstance(body, CompletionBody):
        return None if body.logprobs is None else _in_range("logprobs", body.logprobs, 0, 0, 5)
    if not body.logprobs:
        if body.top_logprobs:
            raise ClientError(
                f"top_logprobs {body.top_logprobs} needs logprobs to be true.", param="top_logprobs"
            )
        return None
    return _in_range("top_logprobs", body.top_logprobs, 0, 0, 20)


def wanted_tokens(body: ChatBody | CompletionBody) -> int | None:
    """The number of tokens asked for under either name, None for "as many as fit". Raises ClientError 400."""
    wanted = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if wanted is not None and wanted != body.max_completion_tokens:
            raise ClientError(
                f"max_tokens {wanted} and max_completion_tokens {body.max_completion_tokens} differ.",
                param="max_tokens",
            )
        return _in_range("max_completion_tokens", body.max_completion_tokens, 1, 1)
    return None if wanted is None else _in_range("max_tokens", wanted, 1, 1)


def clipped_tokens(wanted: int | None, num_prompt: int, context_length: int) -> int:
    """Tokens a request may emit: what it asks for, but no more than the context has left.

    Asking for more than fits is not an error, as clients often send a large constant. Raises ClientError 400
    for a prompt that is empty or leaves no room for a single token.
    """
    if num_prompt == 0:
        raise ClientError("The prompt must hold at least one token; got 0.", param="prompt")
    room = context_length - num_prompt
    if room < 1:
        raise ClientError(
            f"The prompt has {num_prompt} tokens; this model's context of {context_length} tokens allows "
            f"a prompt of at most {context_length - 1}.",
            code="context_length_exceeded",
        )
    return room if wanted is None else min(wanted, room)


def text_or_ids(body: CompletionBody, card: ModelCard) -> str | tuple[int, ...]:
    """The single prompt of a completion: text, or token ids checked against the vocabulary."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    ids = tuple(item for item in prompt if isinstance(item, int))
    if not ids or len(ids) != len(prompt):
        raise ClientError(
            "prompt must be one string, a list of one string, or a non-empty list of token ids; "
            f"got {shown(body.prompt)}.",
            param="prompt",
        )
    foreign = next((index for index, token in enumerate(ids) if not 0 <= token < card.vocab_size), None)
    if foreign is not None:
        raise ClientError(
            f"prompt[{foreign}] must be between 0 and {card.vocab_size - 1}; got {ids[foreign]}.",
            param=f"prompt[{foreign}]",
        )
    return ids


_Number = TypeVar("_Number", int, float)


def _in_range(
    name: str, value: _Number | None, default: _Number, low: float, high: float | None = None
) -> _Number:
    if value is None:
        return default
    if value < low or (high is not None and value > high):
        legal = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ClientError(f"{name} must be {legal}; got {shown(value)}.", param=name)
    return value


def _logit_bias(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_BIASED_TOKENS:
        raise ClientError(
            f"logit_bias must hold at most {MAX_BIASED_TOKENS} tokens; got {len(biases)}.", param="logit_bias"
        )
    return tuple(sorted(_bias(key, bias, vocab_size) for key, bias in biases.items()))


def _bias(key: str, bias: float, vocab_size: int) -> tuple[int, float]:
    # Only the canonical spelling, so that no token is biased twice; the length bound keeps int() cheap.
    is_id = len(key) <= 10 and key.isascii() and key.isdigit() and key == str(int(key))
    if not is_id or int(key) >= vocab_size:
        raise ClientError(
            f"logit_bias keys must be token ids between 0 and {vocab_size - 1}; got {shown(key)}.",
            param="logit_bias",
        )
    _in_range(f"logit_bias[{key}]", bias, 0.0, -100, 100)
    return int(key), bias
