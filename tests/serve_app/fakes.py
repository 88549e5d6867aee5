"""Hand-written stand-ins: a scripted backend, a tiny byte tokenizer and a bare ASGI client."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from messages.events import (
    DraftTimings,
    Event,
    Finished,
    FinishReason,
    Timings,
    TokenLogprob,
    TokensEmitted,
    TopLogprob,
    Usage,
)
from messages.model import ModelCard, ModelStatus
from messages.policy import PolicyReport
from messages.requests import GenerateRequest
from messages.scheduling import Admit, SchedulerLoad

CONTEXT_LENGTH = 256
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('tool messages are not supported') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_files(template: str | None = TEMPLATE) -> dict[str, bytes]:
    """A tokenizer with one token per UTF-8 byte and two special tokens; ids 0-255 are not in byte order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def model_card(**changes: Any) -> ModelCard:
    """The card of the fake model."""
    card = ModelCard(
        model_id="tiny",
        created=1_700_000_000,
        context_length=CONTEXT_LENGTH,
        vocab_size=258,
        eos_token_ids=(257,),
        tokenizer_files=tokenizer_files(),
    )
    return msgspec.structs.replace(card, **changes)


def ready(card: ModelCard) -> ModelStatus:
    """The status of a replica that serves `card`."""
    return ModelStatus(model="Model-0", incarnation="1", state="ready", card=card)


class Hang:
    """A step of a script at which the model says nothing until it is cancelled."""


HANG = Hang()
Step = str | Event | Exception | Hang


class FakeBackend:
    """Plays a script for every request and notes what it was asked and how it ended.

    Strings become one token each; unless the script ends by itself, a normal finish follows.
    """

    client_id = "ingress-1"

    def __init__(self, status: ModelStatus | None) -> None:
        self.state = status
        self.script: Sequence[Step] = ("Hello", " world")
        self.draft: DraftTimings | None = None
        self.reason: FinishReason = "stop"
        self.books: SchedulerLoad | None = SchedulerLoad(
            queue_depth=1, max_queue_depth=32, slots_used=2, num_slots=4
        )
        self.reports: tuple[PolicyReport, ...] = ()
        self.requests: list[GenerateRequest] = []
        self.admits: list[Admit] = []
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    def status(self) -> ModelStatus | None:
        return self.state

    def load(self) -> SchedulerLoad | None:
        return self.books

    def pairings(self) -> tuple[PolicyReport, ...]:
        return self.reports

    def policy_body(self) -> dict[str, Any]:
        return {"schema_version": 1, "state": "unavailable", "reason": "no_mtp_dispatch"}

    def policy_mirror(self) -> dict[str, Any]:
        return {"status": "unavailable", "reason": "no_mtp_dispatch"}

    async def generate(self, request: GenerateRequest, admit: Admit) -> AsyncGenerator[Event]:
        self.requests.append(request)
        self.admits.append(admit)
        self.started.set()
        is_over = False
        num_tokens = 0
        try:
            for step in self.script:
                match step:
                    case Hang():
                        await asyncio.Event().wait()
                    case Exception():
                        is_over = True
                        raise step
                    case str():
                        yield emitted(request, step, num_tokens)
                        num_tokens += 1
                    case _:
                        is_over = not isinstance(step, TokensEmitted)
                        yield step
            if not is_over:
                is_over = True
                yield self._finished(request, num_tokens)
        finally:
            if not is_over:
                self.cancelled.set()

    def _finished(self, request: GenerateRequest, num_tokens: int) -> Finished:
        return Finished(
            request_id=request.request_id,
            reason=self.reason,
            usage=Usage(prompt_tokens=len(request.prompt), completion_tokens=num_tokens, cached_tokens=3),
            timings=Timings(
                prompt_n=8, prompt_ms=4.0, predicted_n=num_tokens, predicted_ms=10.0, draft=self.draft
            ),
        )


def emitted(request: GenerateRequest, text: str, token_id: int = 7) -> TokensEmitted:
    """One token of text, with log-probabilities when the request wants them."""
    logprobs: tuple[TokenLogprob, ...] = ()
    if request.top_logprobs is not None:
        top = tuple(
            TopLogprob(token_id=rank, text=f"{text}{rank}", raw=f"{text}{rank}".encode(), logprob=-1.0 - rank)
            for rank in range(request.top_logprobs)
        )
        logprobs = (TokenLogprob(token_id=token_id, text=text, raw=text.encode(), logprob=-0.5, top=top),)
    return TokensEmitted(request_id=request.request_id, text=text, token_ids=(token_id,), logprobs=logprobs)


class Exchange:
    """One request spoken to an ASGI app in process, whose client may leave at any moment.

    A `window` above 0 is how many messages fit on the line while the client does not read.
    """

    def __init__(self, app: Any, path: str, body: bytes, *, window: int = 0) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue(window)
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": [],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8080),
        }
        self.task = asyncio.create_task(app(self.scope, self._incoming.get, self.sent.put))

    def leave(self) -> None:
        """Close the connection from the client's side."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def next_message(self) -> dict[str, Any]:
        """The next thing the app sends."""
        return await asyncio.wait_for(self.sent.get(), 5)

    async def finish(self) -> None:
        """Wait for the app to return."""
        await asyncio.wait_for(self.task, 5)


def sse_events(body: bytes) -> list[Any]:
    """The decoded data of a stream, the end marker as the string "[DONE]", comments left out."""
    events: list[Any] = []
    for block in body.decode().split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events
