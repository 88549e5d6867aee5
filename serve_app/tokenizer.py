"""The served model's tokenizer and chat template, rebuilt from the files of its card; knows no checkpoint.

Everything here that blocks is marked so; `Encoders` moves it off the event loop.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2

from messages.model import ModelCard
from serve_app.errors import ClientError, ServerError

# Up to here encoding takes about a millisecond, less than a hop to a thread is worth.
INLINE_CHARS = 4096


class HfTokenizer(Protocol):
    """The two calls used of a transformers tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> Any: ...


class PromptEncoder:
    """Turns messages and text into token ids. Blocks for the time the tokenizer takes; safe to share."""

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._tokenizer = tokenizer
        # The first call switches off truncation inside the tokenizer; later calls only read, from any thread.
        tokenizer.encode("")

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a completion prompt, with the special tokens the tokenizer adds by itself."""
        return tuple(self._tokenizer.encode(text))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Ids of a conversation up to where the assistant's turn begins.

        Raises ClientError 400 when the model has no chat template or the template rejects the messages.
        """
        try:
            ids = self._tokenizer.apply_chat_template(
                list(messages), tokenize=True, add_generation_prompt=True, return_dict=False
            )
        # A template is a program run on the client's messages: it fails by its own rules (TemplateError), by
        # operations on unexpected text (the others), and transformers reports a missing one as ValueError.
        except (jinja2.TemplateError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ClientError(
                f"The model's chat template does not accept these messages: {error}",
                param="messages",
                code="chat_template_error",
            ) from None
        return tuple(ids)


def build_encoder(files: Mapping[str, bytes]) -> PromptEncoder:
    """An encoder from the files of a Hugging Face tokenizer folder; errors as `load_tokenizer`."""
    return PromptEncoder(load_tokenizer(files))


def load_tokenizer(files: Mapping[str, bytes]) -> HfTokenizer:
    """The tokenizer in the files of a Hugging Face folder. Blocks for seconds; needs no network.

    Raises ValueError for a name that is not a plain file name and whatever transformers raises for bad files.
    """
    # Read when transformers is imported: it would otherwise advise to install a deep-learning framework.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Imported here because it takes seconds, during which the first health checks must be answered.
    from transformers import AutoTokenizer  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="mtp-serve-tokenizer-") as folder:
        for name, content in files.items():
            if name in {"", ".."} or name != Path(name).name:
                raise ValueError(f"tokenizer_files must have plain file names; got {name!r}")
            (Path(folder) / name).write_bytes(content)
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


class Encoders:
    """Holds the encoder of the newest card, built once in a thread however many requests wait for it."""

    def __init__(self) -> None:
        self._card: ModelCard | None = None
        self._building: asyncio.Task[PromptEncoder] | None = None

    async def get(self, card: ModelCard) -> PromptEncoder:
        """The encoder of a card. Raises ServerError when its files do not make a tokenizer."""
        if self._building is None or not self._is_current(card):
            self._building = asyncio.create_task(asyncio.to_thread(build_encoder, card.tokenizer_files))
        self._card = card
        building = self._building
        try:
            # Shielded: the request that started the build may be gone before the others are served.
            return await asyncio.shield(building)
        # The Rust side of the tokenizer raises bare Exception for files it cannot read.
        except Exception as error:
            if self._building is building:
                self._building = None
            raise ServerError("The model's tokenizer cannot be built.", code="tokenizer_error") from error

    def _is_current(self, card: ModelCard) -> bool:
        # Identity first: the same card usually comes back as the same object and its files are large.
        return card is self._card or card == self._card


async def encode_chat(encoder: PromptEncoder, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """Encode off the event loop where it would hold it up."""
    if sum(len(message["content"]) for message in messages) <= INLINE_CHARS:
        return encoder.encode_chat(messages)
    return await asyncio.to_thread(encoder.encode_chat, messages)


async def encode_text(encoder: PromptEncoder, text: str) -> tuple[int, ...]:
    """Encode off the event loop where it would hold it up."""
    if len(text) <= INLINE_CHARS:
        return encoder.encode_text(text)
    return await asyncio.to_thread(encoder.encode_text, text)
