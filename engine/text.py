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
        self._token_ids: list[int] = []
        self._num_decoded_chars = 0
        self._bytes_pending = False
        # A transition to None is mlx-lm's word for "stop here".
        machine = TextStateMachine({_NORMAL: [(text, None) for text in stop]} if stop else None)
        self._state = machine.make_state(_NORMAL)

    def push(self, token_id: int) -> tuple[str, bool]:
        """Add one token; returns (text that became final, whether a stop string was completed)."""
        self._token_ids.append(token_id)
        text = self._decoder.step(self._tokenizer, token_id)
        self._bytes_pending = text is None
        return self._split(text or "")

    def flush(self) -> tuple[str, bool]:
        """Give out what is withheld, as `push` does; call once, when the sequence ends for another reason.

        Bytes that never became a character come out as U+FFFD, as decoding the whole text would have it.
        """
        tail = ""
        if self._bytes_pending:
            whole = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)
            tail = whole[self._num_decoded_chars :]
        text, stopped = self._split(tail)
        if not stopped:
            self._state, rest, _ = TextStateMachine.flush(self._state)
            text += rest
        return text, stopped

    def _split(self, text: str) -> tuple[str, bool]:
        self._num_decoded_chars += len(text)
        self._state, segments = TextStateMachine.split(self._state, text)
        return "".join(part for _, part in segments), self._state[0] is None


def token_text(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    """One token on its own as (text, bytes), special tokens included; used for log-probabilities."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return text, text.encode()
