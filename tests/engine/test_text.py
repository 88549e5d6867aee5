"""Streaming text equals decoding at once, and stop strings cut exactly."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.text import TextStream


def byte_tokenizer() -> Tokenizer:
    """One token per byte; id 256 is special."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(sorted(alphabet))}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken("<end>", special=True)])
    return built


TOKENIZER = byte_tokenizer()


def stream(ids: list[int], stop: tuple[str, ...] = ()) -> tuple[str, bool]:
    """Push all tokens until a stop, then flush; returns (text, stopped)."""
    text_stream, pieces = TextStream(TOKENIZER, stop), []
    for token_id in ids:
        text, stopped = text_stream.push(token_id)
        pieces.append(text)
        if stopped:
            return "".join(pieces), True
    text, stopped = text_stream.flush()
    return "".join([*pieces, text]), stopped


@given(st.lists(st.integers(0, 256), max_size=40))
def test_streaming_equals_decoding_at_once(ids: list[int]) -> None:
    """Whatever the bytes, the pieces add up to the decoded whole."""
    assert stream(ids)[0] == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(
    st.text(alphabet="abc€", max_size=30),
    st.lists(st.text(alphabet="abc€", min_size=1, max_size=3), min_size=1),
)
def test_stop_strings_cut_at_the_first_completed_one(text: str, stop: list[str]) -> None:
    """The text ends before the stop string that is completed first; without one nothing is lost."""
    got, stopped = stream(TOKENIZER.encode(text).ids, tuple(stop))
    ends = [text.index(s) + len(s) for s in stop if s in text]
    assert stopped == bool(ends)
    if not ends:
        assert got == text
        return
    end = min(ends)
    assert got in {text[: end - len(s)] for s in stop if text[:end].endswith(s)}
