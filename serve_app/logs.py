"""Structured logs: one JSON object per line on stderr. Never prompt text, generated text or keys."""

import logging
import sys
import traceback
from typing import Any, TextIO

import msgspec
import structlog

from serve_app.context import RequestContext

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Send structlog and standard-library logs to `stream`. Raises ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}; got {level!r}")
    threshold = getattr(logging, level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                _shorten_exception,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                render,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)


def log_access(context: RequestContext, method: str, route: str) -> None:
    """One line per request, when its last byte is out."""
    log = structlog.get_logger("serve_app.access")
    write = log.warning if context.status >= 500 else log.info
    write(
        "request",
        request_id=context.request_id,
        reply_id=context.reply_id,
        method=method,
        route=route,
        status=context.status,
        duration_ms=round(context.elapsed_s * 1000, 2),
        prompt_tokens=context.prompt_tokens,
        completion_tokens=context.completion_tokens,
        error_code=context.error_code,
    )


def log_crash(context: RequestContext, error: BaseException) -> None:
    """A fault of ours: the kind of error and where it happened.

    The error's own text stays out, since it may quote the client's prompt.
    """
    structlog.get_logger("serve_app").error("crash", request_id=context.request_id, **_crash_fields(error))


def log_failed_generation(context: RequestContext, kind: str, message: str) -> None:
    """The engine's own account of a generation it could not finish."""
    structlog.get_logger("serve_app").warning(
        "generation_failed",
        request_id=context.request_id,
        reply_id=context.reply_id,
        kind=kind,
        detail=message[:500],
    )


def _crash_fields(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": type(error).__name__,
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _shorten_exception(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    exc_info = event.pop("exc_info", None)
    if isinstance(exc_info, tuple) and isinstance(exc_info[1], BaseException):
        event.update(_crash_fields(exc_info[1]))
    return event


def _to_json(event: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
