"""Which model is served, under which names, and whether it can serve now. Pure reads of the newest status."""

from typing import Any

from messages.model import ModelCard, ModelStatus
from serve_app.config import HttpConfig
from serve_app.errors import ClientError, ServerError


def served_id(config: HttpConfig, card: ModelCard) -> str:
    """The name responses carry."""
    return config.served_model_name or card.model_id


def served_names(config: HttpConfig, card: ModelCard) -> tuple[str, ...]:
    """Every name a request may use, the one responses carry first."""
    return tuple(dict.fromkeys((served_id(config, card), card.model_id, *config.model_aliases)))


def require_ready(config: HttpConfig, status: ModelStatus | None) -> ModelCard:
    """The card of a model that can serve. Raises ServerError 503 otherwise."""
    if status is not None and status.state == "ready" and status.card is not None:
        return status.card
    if status is not None and status.state == "draining":
        raise ServerError(
            "The server is shutting down.",
            status=503,
            code="shutting_down",
            retry_after_s=config.loading_retry_s,
        )
    failed = status is not None and status.state == "failed"
    raise ServerError(
        "The model could not be loaded." if failed else "The model is loading.",
        status=503,
        code="worker_not_ready",
        retry_after_s=config.loading_retry_s,
    )


def require_name(config: HttpConfig, card: ModelCard, name: str | None) -> None:
    """Raises ClientError 404 for a model that is not served here; no name means the one there is."""
    if name is not None and name not in served_names(config, card):
        raise ClientError(
            f"The model {name[:200]!r} does not exist here; this server serves {served_id(config, card)!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )


def model_object(name: str, card: ModelCard) -> dict[str, Any]:
    """One entry of `/v1/models`; `max_model_len` is the context in tokens, in the name other servers use."""
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": "mtp-serve",
        "max_model_len": card.context_length,
    }


def health_status(status: ModelStatus | None) -> str:
    """`ok` when requests are served, otherwise the state that prevents it."""
    if status is None:
        return "loading"
    return "ok" if status.state == "ready" and status.card is not None else status.state
