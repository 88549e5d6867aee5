"""From the events of one generation to one reply, streamed or whole; counts tokens on the way.

Knows no endpoint: the wire object decides what the bytes look like.
"""

import asyncio

from starlette.types import Send

from messages.events import Cancelled, Event, Failed, Finished, TokenLogprob, TokensEmitted
from serve_app.backend import EventStream
from serve_app.context import RequestContext
from serve_app.errors import ServeError, ServerError, generation_failed
from serve_app.logs import log_crash, log_failed_generation
from serve_app.metrics import Metrics
from serve_app.plain import send_json
from serve_app.responses import Wire
from serve_app.sse import SseResponse


class Meter:
    """Notes what a generation did, for the access log and the metrics."""

    def __init__(self, context: RequestContext, metrics: Metrics) -> None:
        self.context = context
        self._metrics = metrics
        self._has_token = False

    def emitted(self, event: TokensEmitted) -> None:
        """Count the tokens of one burst."""
        if not self._has_token:
            self._has_token = True
            self._metrics.first_token(self.context.elapsed_s)
        self.context.completion_tokens += len(event.token_ids)
        self._metrics.tokens_emitted(len(event.token_ids))

    def finished(self, event: Finished) -> None:
        """Note the final counts."""
        self.context.prompt_tokens = event.usage.prompt_tokens
        self._metrics.generation_finished(event)

    def failed(self, event: Failed | Cancelled) -> ServerError:
        """Log an unwanted end and give the error the client sees."""
        if isinstance(event, Cancelled):
            return ServerError("The generation was cancelled by the server.", status=503, code="cancelled")
        log_failed_generation(self.context, event.kind, event.message)
        return generation_failed(event.kind)


async def stream_reply(events: EventStream, wire: Wire, sse: SseResponse, meter: Meter) -> None:
    """Send the reply as server-sent events.

    Raises ServeError for a failure before anything was written; a later one becomes an error event.
    """
    keep_alive = asyncio.create_task(sse.keep_alive())
    try:
        await _stream(events, wire, sse, meter)
    # Whatever breaks here, a client that already reads the stream must be told.
    except Exception as error:
        if not sse.has_started:
            raise
        if not isinstance(error, ServeError):
            log_crash(meter.context, error)
            error = ServerError("The server made an error.")
        meter.context.error_code = error.code
        await sse.fail(error, meter.context.request_id)
    finally:
        keep_alive.cancel()
        await asyncio.gather(keep_alive, return_exceptions=True)


async def _stream(events: EventStream, wire: Wire, sse: SseResponse, meter: Meter) -> None:
    opening = wire.opening()
    async for event in events:
        match event:
            case TokensEmitted():
                meter.emitted(event)
                if event.text or event.logprobs:
                    await sse.write(opening + wire.delta(event))
                    opening = b""
            case Finished():
                meter.finished(event)
                await sse.write(opening + wire.ending(event), is_last=True)
                return
            case Failed() | Cancelled():
                raise meter.failed(event)
    raise _ended_early()


async def whole_reply(events: EventStream, wire: Wire, send: Send, meter: Meter) -> None:
    """Send the reply in one piece. Raises ServeError when the generation does not finish."""
    emitted: list[TokensEmitted] = []
    finished = await _collect(events, emitted, meter)
    text = "".join(event.text for event in emitted)
    logprobs: list[TokenLogprob] = [token for event in emitted for token in event.logprobs]
    await send_json(send, wire.body(text, logprobs, finished))


async def _collect(events: EventStream, emitted: list[TokensEmitted], meter: Meter) -> Finished:
    event: Event
    async for event in events:
        match event:
            case TokensEmitted():
                meter.emitted(event)
                emitted.append(event)
            case Finished():
                meter.finished(event)
                return event
            case Failed() | Cancelled():
                raise meter.failed(event)
    raise _ended_early()


def _ended_early() -> ServerError:
    return ServerError("The model stopped without finishing the reply.")
