"""What a client asked for, after parsing and tokenising: the slice of a request that crosses processes."""

from typing import NewType

from msgspec import Struct

RequestId = NewType("RequestId", str)


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How the next token is drawn from the target's logits; ranges are checked at the HTTP border.

    temperature 0 is greedy. `seed` is always set: the ingress draws one when the client gave none.
    `logit_bias` holds (token id, additive bias) pairs; a repetition penalty of 1.0 is off.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One generation: token ids in, events out.

    `top_logprobs` is None when log-probabilities were not asked for, otherwise how many alternatives (0-20)
    accompany each token. `client` is the stream over which this request's events travel. `speculative` None
    leaves it to the policy, False decodes plainly, True speculates whenever that is exact here.
    """

    request_id: RequestId
    client: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    ignore_eos: bool = False
    speculative: bool | None = None
