"""A tiny target, a tokenizer of its size and a few examples, all random and made in milliseconds."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from speculative.fitting.data import Example
from speculative.fitting.taps import tapped

LAYERS, SIZE, VOCAB = 3, 32, 64


def make_model(**changes: Any) -> llama.Model:
    """A random llama of three layers."""
    mx.random.seed(1)
    fields: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": SIZE,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "rope_traditional": True,
    }
    return llama.Model(llama.ModelArgs(**(fields | changes)))


@pytest.fixture
def model() -> llama.Model:
    """A model that attends to everything."""
    return make_model()


@pytest.fixture
def sliding_model() -> llama.Model:
    """A model whose first and last layers attend to eight tokens."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return make_model(layer_types=kinds, sliding_window=8)


class TinyTokenizer:
    """Words hashed to ids; enough of a chat tokenizer for corpus generation."""

    eos_token_id = 1
    all_special_ids = (0, 1, 2)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [3 + sum(map(ord, word)) % (VOCAB - 3) for word in text.split()]

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool = True, **_: Any
    ) -> list[int] | str:
        text = " ".join(f"<turn> {m['content']} <end>" for m in messages) + " <answer>"
        return [2, *self.encode(text)] if tokenize else text


@pytest.fixture
def tokenizer() -> TinyTokenizer:
    """Token ids for the tiny target."""
    return TinyTokenizer()


@pytest.fixture
def examples(model: llama.Model) -> list[Example]:
    """Random token rows with the taps (1, final) the target has on them."""
    rng = np.random.default_rng(0)
    out: list[Example] = []
    with tapped(model, (1, LAYERS)) as taps:
        for length in (12, 14, 15, 17, 20):
            tokens = rng.integers(3, VOCAB, length).astype(np.int32)
            _, states = taps.run(mx.array(tokens[None, :-1]))
            kept = np.array(states[0].astype(mx.float16)).reshape(length - 1, 2, SIZE)
            out.append(Example(tokens, kept, 5, "facts", True))
    return out
