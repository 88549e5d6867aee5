"""`mtp-serve generate`: one prompt, in this process, without Ray or HTTP."""

import os
import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.console import Console

from engine.blas import preload
from engine.config import EngineConfig
from engine.identity import Identity
from messages.events import Finished, TokensEmitted
from messages.policy import Gate
from messages.requests import GenerateRequest, RequestId, SamplingParams
from messages.scheduling import ModelName
from serve_app.tokenizer import build_encoder

if TYPE_CHECKING:
    from engine.session import Session


class Prompt(Struct, frozen=True, kw_only=True):
    """What to generate; `speculative` as in `GenerateRequest`."""

    text: str
    max_tokens: int
    temperature: float
    seed: int
    is_chat: bool
    speculative: bool | None


def generate(config: EngineConfig, prompt: Prompt, write: Callable[[str], None]) -> Finished:
    """Load, probe to the end, and generate; text goes to `write` as it becomes final.

    The policy is not consulted: speculation runs when it is exact, unless the prompt forbids it. Raises
    ModelLoadError.
    """
    blas = preload(config.cache_path(), config.threads or os.cpu_count() or 1)
    # MLX must not be imported before the BLAS is in place.
    from engine.session import Session  # noqa: PLC0415

    session = Session(config, Identity(ModelName("offline"), "0"), blas, _progress)
    with Console(stderr=True).status("probing exactness (once per model, drafter and machine)"):
        while session.has_idle_work:
            session.idle_step()
    session.set_gate(Gate(enabled=True))
    session.engine.submit(_request(session, prompt))
    while session.engine.active:
        events = session.engine.step()
        session.heed_audit()
        for event in events:
            match event:
                case TokensEmitted(text=text):
                    write(text)
                case Finished():
                    return event
                case _:
                    pass
    raise RuntimeError("the generation ended without a closing event")


def summary(finished: Finished) -> str:
    """Speed and speculation of a generation in one line."""
    timings = finished.timings
    rate = timings.predicted_n / max(timings.predicted_ms, 1e-3) * 1e3
    said = f"{timings.predicted_n} tokens at {rate:.1f} tokens/s, finish reason {finished.reason}"
    if (draft := timings.draft) is None:
        return f"{said}, no speculation"
    said += f", {draft.draft_n_accepted} of {draft.draft_n} drafts accepted in {draft.draft_rounds} rounds"
    if draft.copy_rounds:
        said += f", {draft.copy_n_accepted} of {draft.copy_n} copied tokens in {draft.copy_rounds}"
    return said


def _request(session: "Session", prompt: Prompt) -> GenerateRequest:
    card = session.facts.card
    encoder = build_encoder(card.tokenizer_files)
    messages = [{"role": "user", "content": prompt.text}]
    tokens = encoder.encode_chat(messages) if prompt.is_chat else encoder.encode_text(prompt.text)
    return GenerateRequest(
        request_id=RequestId(uuid.uuid4().hex),
        client="offline",
        prompt=tokens,
        max_tokens=min(prompt.max_tokens, card.context_length - len(tokens)),
        sampling=SamplingParams(temperature=prompt.temperature, seed=prompt.seed),
        speculative=prompt.speculative,
    )


def _progress(text: str) -> None:
    sys.stderr.write(f"  {text} ...\n")
