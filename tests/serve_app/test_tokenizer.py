"""The tokenizer rebuilt from a card."""

import asyncio

import pytest

import serve_app.tokenizer
from messages.model import ModelCard
from serve_app.errors import ClientError, ServerError
from serve_app.tokenizer import INLINE_CHARS, Encoders, build_encoder, encode_chat, encode_text
from tests.serve_app.fakes import model_card, tokenizer_files

HI = [{"role": "user", "content": "hi"}]


async def test_text_becomes_ids_of_the_vocabulary(card: ModelCard) -> None:
    """One token per byte in the fake model, also for characters of several bytes."""
    encoder = await Encoders().get(card)
    assert len(encoder.encode_text("aé")) == 3
    assert all(0 <= token < card.vocab_size for token in encoder.encode_text("aé"))


async def test_a_conversation_ends_where_the_assistant_begins(card: ModelCard) -> None:
    """The template's text is encoded with its special tokens as single ids."""
    encoder = await Encoders().get(card)
    expected = encoder.encode_text("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert encoder.encode_chat(HI) == expected
    assert expected.count(256) == 2
    assert expected.count(257) == 1


def test_a_model_without_a_template_cannot_chat() -> None:
    """The client is told, rather than given a made-up format."""
    encoder = build_encoder(tokenizer_files(template=None))
    with pytest.raises(ClientError) as caught:
        encoder.encode_chat(HI)
    assert (caught.value.status, caught.value.code) == (400, "chat_template_error")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content }}",
        "{{ messages[0].content + 1 }}",
        "{% for x in 5 %}{% endfor %}",
        "{{ messages[0].content.nothing.more }}",
    ],
)
def test_whatever_a_template_raises_is_the_clients_error(template: str) -> None:
    """Templates are programs of others, run on the client's messages."""
    with pytest.raises(ClientError, match="chat template"):
        build_encoder(tokenizer_files(template)).encode_chat(HI)


@pytest.mark.parametrize("name", ["../evil.json", "a/b.json", "/tmp/x", "..", ""])
def test_file_names_stay_inside_the_folder(name: str) -> None:
    """A card cannot write elsewhere on the ingress machine."""
    with pytest.raises(ValueError, match="plain file names"):
        build_encoder({name: b"{}"})


async def test_a_tokenizer_is_built_once_for_many_requests(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they all arrive before it is ready, and when the card arrives again as a copy."""
    built: list[object] = []

    def counting(files: dict[str, bytes]) -> object:
        built.append(files)
        return object()

    monkeypatch.setattr(serve_app.tokenizer, "build_encoder", counting)
    encoders = Encoders()
    got = await asyncio.gather(*(encoders.get(card) for _ in range(5)), encoders.get(model_card()))
    assert len(built) == 1
    assert len(set(map(id, got))) == 1
    await encoders.get(model_card(model_id="other"))
    assert len(built) == 2


async def test_a_request_that_leaves_does_not_stop_the_build(card: ModelCard) -> None:
    """Others wait for the same tokenizer."""
    encoders = Encoders()
    first = asyncio.create_task(encoders.get(card))
    second = asyncio.create_task(encoders.get(card))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is await encoders.get(card)
    assert first.cancelled()


async def test_unusable_files_are_our_fault_and_tried_again(card: ModelCard) -> None:
    """A later card or a second attempt may succeed."""
    encoders = Encoders()
    broken = model_card(tokenizer_files={"tokenizer.json": b"{", "tokenizer_config.json": b"{}"})
    for _ in range(2):
        with pytest.raises(ServerError) as caught:
            await encoders.get(broken)
        assert caught.value.code == "tokenizer_error"
    assert (await encoders.get(card)).encode_text("a")


async def test_long_texts_are_encoded_like_short_ones(card: ModelCard) -> None:
    """The thread changes nothing but where the work is done."""
    encoder = await Encoders().get(card)
    long = "ab" * INLINE_CHARS
    assert await encode_text(encoder, long) == encoder.encode_text(long)
    messages = [{"role": "user", "content": long}]
    assert await encode_chat(encoder, messages) == encoder.encode_chat(messages)
