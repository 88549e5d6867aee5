"""What a model replica says about itself: its life cycle, its card, and the stream that carries events."""

from typing import Literal

from msgspec import Struct

from messages.events import Event

ModelState = Literal["loading", "ready", "failed", "draining"]


class ModelCard(Struct, frozen=True, kw_only=True):
    """Everything an ingress needs to serve a model it cannot see.

    `tokenizer_files` maps file names of a Hugging Face tokenizer folder to their contents, so an ingress on
    another machine tokenises and templates without the checkpoint. `context_length` is in tokens.
    """

    model_id: str
    created: int
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    tokenizer_files: dict[str, bytes]


class ModelStatus(Struct, frozen=True, tag=True, kw_only=True):
    """Life-cycle state of one replica; `card` is set from `ready` on, `detail` says what is going on."""

    model: str
    incarnation: str
    state: ModelState
    detail: str = ""
    card: ModelCard | None = None


class EventBatch(Struct, frozen=True, tag=True, kw_only=True):
    """All events one engine step produced for one ingress."""

    events: tuple[Event, ...]


class Heartbeat(Struct, frozen=True, tag=True):
    """Says that the replica lives while there is nothing to report."""


ModelMessage = ModelStatus | EventBatch | Heartbeat
