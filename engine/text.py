"""Token ids to final text: incremental detokenising, and stop strings held back until decided."""

from collections.abc import Sequence

from mlx_lm.generate import TextStateMachine
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_NORMAL = "normal"


class TextStream:
    """The text of one sequence as it grows.

    Text that could still become a stop string, and bytes that do not yet form a character, are withheld.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        """`stop` strings end the text and are not part of it."""
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        # A transition to None is mlx-lm's word for "stop here".
        machine = TextStateMachine({_NORMAL: [(text, None) for text in stop]} if stop else None)
        self._state = machine.make_state(_NORMAL)
        self._has_stop = bool(stop)

    def push(self, token_id: int) -> tuple[str, bool]:
        """Add one token; returns (text that became final, whether a stop string was completed)."""
        text = self._decoder.step(self._tokenizer, token_id) or ""
        if not self._has_stop or not text:
            return text, False
        self._state, segments = TextStateMachine.split(self._state, text)
        return "".join(part for _, part in segments), self._state[0] is None

    def flush(self) -> str:
        """Text withheld for a stop string that never came; call once, when the sequence ends otherwise."""
        self._state, text, _ = TextStateMachine.flush(self._state)
        return text


def token_text(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    """One token on its own as (text, bytes), special tokens included; used for log-probabilities."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return text, text.encode()
