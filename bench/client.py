"""Asks OpenAI-compatible servers for streamed answers and takes the times. Knows no processes."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from bench.errors import BenchError
from bench.reply import Draft, Reply

_TIMEOUT = httpx.Timeout(10.0, read=300.0)
_DATA = "data: "
_DONE = "[DONE]"
_UNKNOWN_FIELD = "unknown_field"


class RefusedError(BenchError):
    """The server answered with an error; `code` is the OpenAI envelope's, where there is one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class StreamReader:
    """Collects one streamed answer, chat or text, from its decoded events."""

    def __init__(self, sent_s: float) -> None:
        """`sent_s` is when the request was sent."""
        self._sent_s = sent_s
        self._pieces: list[str] = []
        self._first_s: float | None = None
        self._end_s: float | None = None
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        """Note one event that arrived at `now_s`. Raises RefusedError for an error event."""
        if "error" in event:
            raise RefusedError(f"the stream ended with an error: {_message(event)}")
        self._usage = event.get("usage") or self._usage
        self._timings = event.get("timings") or self._timings
        for choice in event.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if piece:
                self._pieces.append(piece)
                self._first_s = self._first_s or now_s
            if choice.get("finish_reason"):
                self._finish_reason = choice["finish_reason"]
                self._end_s = now_s

    def reply(self) -> Reply:
        """The whole answer. Raises BenchError when the stream was cut off or counted no tokens."""
        if self._end_s is None or self._finish_reason is None:
            raise BenchError("the stream ended without a finish reason")
        if "completion_tokens" not in self._usage:
            raise BenchError("the stream ended without token counts")
        return Reply(
            text="".join(self._pieces),
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage["prompt_tokens"],
            completion_tokens=self._usage["completion_tokens"],
            piece_chars=tuple(map(len, self._pieces)),
            cached_tokens=(self._usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            sent_s=self._sent_s,
            first_s=self._first_s or self._end_s,
            end_s=self._end_s,
            draft=_draft(self._timings),
            predicted_ms=self._timings.get("predicted_ms"),
        )


class Client:
    """One server, asked through HTTP; every call starts its own connections, as separate clients would."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` is the server's base URL, with or without a slash at its end."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def complete(self, prompts: Sequence[str], max_tokens: int) -> tuple[Reply, ...]:
        """Greedy text completions of all prompts at the same time, in their order. Raises BenchError."""
        bodies = [{"prompt": prompt, **_greedy(max_tokens)} for prompt in prompts]
        return asyncio.run(self._stream_all("/v1/completions", bodies))

    def chat(self, prompt: str, max_tokens: int, speculative: bool | None, **sampling: float) -> Reply:
        """The answer to one user message, greedy unless `sampling` says otherwise.

        Speculates or not as told, None leaving it to the server. Raises BenchError.
        """
        body = {"messages": [{"role": "user", "content": prompt}]}
        return self._one("/v1/chat/completions", body, max_tokens, speculative, sampling)

    def text(self, prompt: str, max_tokens: int, speculative: bool | None, **sampling: float) -> Reply:
        """As `chat`, but the prompt is the beginning of a text to be continued."""
        return self._one("/v1/completions", {"prompt": prompt}, max_tokens, speculative, sampling)

    def policy(self) -> dict[str, Any]:
        """The body of GET /v1/internal/mtp-policy. Raises BenchError."""
        response = self._get("/v1/internal/mtp-policy")
        if response.status_code != HTTPStatus.OK:
            raise RefusedError(
                f"the server at {self.url} answered {response.status_code} to the policy request: "
                f"{_message(_decoded(response.content))}"
            )
        return response.json()

    def ready(self) -> bool:
        """Whether GET /health answers 200; no answer at all counts as not ready."""
        try:
            return self._get("/health").status_code == HTTPStatus.OK
        except BenchError:
            return False

    def wait_until_ready(self, timeout_s: float, check: Callable[[], None], period_s: float = 0.1) -> None:
        """Poll until the server is ready; `check` is called each time and may raise.

        Raises BenchError after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            check()
            if time.monotonic() > deadline:
                raise BenchError(f"the server at {self.url} was not ready within {timeout_s:.0f} s")
            time.sleep(period_s)

    def _one(
        self,
        path: str,
        prompt: Mapping[str, Any],
        max_tokens: int,
        speculative: bool | None,
        sampling: Mapping[str, float],
    ) -> Reply:
        choice = {} if speculative is None else {"speculative": speculative}
        body = {**prompt, **choice, **_greedy(max_tokens), **sampling}
        try:
            (reply,) = asyncio.run(self._stream_all(path, [body]))
        except RefusedError as error:
            if error.code == _UNKNOWN_FIELD and "speculative" in str(error):
                raise BenchError(
                    f'the server at {self.url} does not know the request field "speculative", so plain and '
                    f"speculative decoding cannot be compared on it ({error})"
                ) from error
            raise
        return reply

    def _get(self, path: str) -> httpx.Response:
        try:
            return httpx.get(self.url + path, headers=self._headers, timeout=_TIMEOUT)
        except httpx.HTTPError as error:
            raise BenchError(f"no server answers at {self.url} ({type(error).__name__})") from error

    async def _stream_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> tuple[Reply, ...]:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(headers=self._headers, timeout=_TIMEOUT, limits=limits) as http:
            return tuple(await asyncio.gather(*(self._stream(http, path, body) for body in bodies)))

    async def _stream(self, http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Reply:
        reader = StreamReader(time.perf_counter())
        try:
            async with http.stream("POST", self.url + path, json=body) as response:
                if response.status_code != HTTPStatus.OK:
                    envelope = _decoded(await response.aread())
                    raise RefusedError(
                        f"{self.url}{path} answered {response.status_code}: {_message(envelope)}",
                        _code(envelope),
                    )
                async for line in response.aiter_lines():
                    if line.startswith(_DATA) and line != _DATA + _DONE:
                        reader.take(msgspec.json.decode(line.removeprefix(_DATA)), time.perf_counter())
        except httpx.HTTPError as error:
            raise BenchError(
                f"{self.url}{path}: {type(error).__name__} while waiting for the answer"
            ) from error
        return reader.reply()


def _greedy(max_tokens: int) -> dict[str, Any]:
    return {
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _draft(timings: Mapping[str, Any]) -> Draft | None:
    if not (timings.get("draft_rounds") or timings.get("copy_rounds")):
        return None
    return msgspec.convert(
        {name: timings[name] for name in Draft.__struct_fields__ if name in timings}, Draft
    )


def _decoded(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"error": body[:200].decode(errors="replace")}


def _message(envelope: Mapping[str, Any]) -> str:
    error = envelope.get("error", "no reason given")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _code(envelope: Mapping[str, Any]) -> str | None:
    error = envelope.get("error")
    return error.get("code") if isinstance(error, dict) else None
