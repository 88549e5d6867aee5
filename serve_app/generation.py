"""Both generating endpoints, from a request's bytes to a running generation; of the backend, its protocol."""

import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from messages.model import ModelCard
from messages.requests import GenerateRequest, RequestId
from messages.scheduling import Admit
from serve_app.backend import Backend
from serve_app.catalog import require_name, require_ready, served_id
from serve_app.chat_messages import template_messages
from serve_app.config import HttpConfig
from serve_app.context import RequestContext, context_of
from serve_app.disconnect import read_body, until_disconnect
from serve_app.metrics import Metrics
from serve_app.openai_schema import ChatBody, CompletionBody, parse_chat, parse_completion
from serve_app.reply import Meter, stream_reply, whole_reply
from serve_app.responses import ChatWire, ReplyInfo, TextWire, Wire
from serve_app.sse import SseResponse
from serve_app.tokenizer import Encoders, encode_chat, encode_text
from serve_app.translate import build_request, generation_settings, text_or_ids

_Body = TypeVar("_Body", ChatBody, CompletionBody)


class Dialect(Struct, Generic[_Body], frozen=True, kw_only=True):
    """What distinguishes the two endpoints: parsing, tokenising, writing, and the prefix of reply ids."""

    id_prefix: str
    parse: Callable[[bytes], _Body]
    tokens: Callable[[_Body, ModelCard, Encoders], Awaitable[tuple[int, ...]]]
    wire: Callable[[ReplyInfo], Wire]


async def _chat_tokens(body: ChatBody, card: ModelCard, encoders: Encoders) -> tuple[int, ...]:
    messages = template_messages(body.messages)
    return await encode_chat(await encoders.get(card), messages)


async def _completion_tokens(body: CompletionBody, card: ModelCard, encoders: Encoders) -> tuple[int, ...]:
    prompt = text_or_ids(body, card)
    if isinstance(prompt, str):
        return await encode_text(await encoders.get(card), prompt)
    return prompt


CHAT = Dialect(id_prefix="chatcmpl-", parse=parse_chat, tokens=_chat_tokens, wire=ChatWire)
COMPLETION = Dialect(id_prefix="cmpl-", parse=parse_completion, tokens=_completion_tokens, wire=TextWire)


class GenerationEndpoint(Generic[_Body]):
    """An ASGI app that serves one dialect from one backend."""

    def __init__(
        self,
        dialect: Dialect[_Body],
        backend: Backend,
        config: HttpConfig,
        encoders: Encoders,
        metrics: Metrics,
    ) -> None:
        self._dialect = dialect
        self._backend = backend
        self._config = config
        self._encoders = encoders
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(scope, receive, self._config.max_body_bytes)
        context = context_of(scope)
        await until_disconnect(context, receive, self._serve(raw, context, send))

    async def _serve(self, raw: bytes, context: RequestContext, send: Send) -> None:
        body = self._dialect.parse(raw)
        card = require_ready(self._config, self._backend.status())
        require_name(self._config, card, body.model)
        request = await self._request(body, card, self._dialect.id_prefix + context.unique)
        context.reply_id = request.request_id
        context.prompt_tokens = len(request.prompt)
        wire = self._dialect.wire(
            ReplyInfo(
                reply_id=request.request_id,
                created=int(time.time()),
                model=served_id(self._config, card),
                include_usage=bool(body.stream_options and body.stream_options.include_usage),
                top_logprobs=request.top_logprobs,
            )
        )
        admit = Admit(request_id=request.request_id, client_key=context.client_key)
        meter = Meter(context, self._metrics)
        async with aclosing(self._backend.generate(request, admit)) as events:
            if body.stream:
                await stream_reply(events, wire, SseResponse(send, self._config.keep_alive_s), meter)
            else:
                await whole_reply(events, wire, send, meter)

    async def _request(self, body: _Body, card: ModelCard, reply_id: str) -> GenerateRequest:
        # Cheap checks first: a bad value must not cost the tokenising of a long prompt.
        settings = generation_settings(body, card.vocab_size, fresh_seed=secrets.randbits(63))
        prompt = await self._dialect.tokens(body, card, self._encoders)
        return build_request(
            settings,
            prompt,
            card.context_length,
            request_id=RequestId(reply_id),
            client=self._backend.client_id,
        )
