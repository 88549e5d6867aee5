"""Prompts the target makes up itself: it is given the opening of a user's turn and goes on from there.

A model that was fine-tuned on chats has learned what users ask, so such prompts are as varied as those were,
where templates repeat themselves (Magpie, Xu et al. 2024, arXiv 2406.08464). Owns how a turn is opened and
taken up; knows neither decoding nor training.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from speculative.fitting.corpus import SYSTEM, Message
from speculative.fitting.generate import Row

# No template and no text holds it, so what surrounds a user's turn can be told apart.
_MARK = "\u241f"
# Tokens a turn needs, its end included, to ask for anything.
_SHORTEST_TURN = 4
# The first words of three turns in four: left alone, a small model mostly asks for advice.
_OPENERS = """
    Write a story; Write a short story about; Tell me a story; Tell us about the day; Write a fairy tale;
    Write a scene in which; Write a science fiction story; Write the first chapter; Imagine; Once upon a
    time; Make up a story; Create a character; Continue this story:; Write an adventure; Write a funny
    story; Invent a legend; A young; An old; Write a dialogue; Write a conversation between; Write a scene
    from a play; Two friends; Write an argument between; Pretend you are; Act as; Write an interview;
    Write a debate between; What is; What are; Why do; Why is; How does; How do; How are; Describe;
    Describe the; Tell me about; Explain; Explain how; Give me facts about; Who was; When did; Where do;
    Which; What happens when; What makes; What do we know about; For a school project; Teach me about;
    What causes; How was; How big; The history of; Is it true that; Define; Write a Python; Write a Python
    function; Write a Python class; Write a JavaScript function; Using JavaScript,; Using Python,; Write a
    SQL query; Write a program; Implement; Write code that; Create a function; Create a class; Write a C++
    program; Write a Java class; Fix this code; Write a shell script; Write an HTML; Write a regular
    expression; Write a test; List; List the; Make a list; Give me ten; Give me five; Name; Name some;
    What should I bring; What do I need; Recommend; Create a checklist; Ideas for; Plan a; Create a
    schedule; Outline; Five ways to; Steps to; How to; Brainstorm; Rank; Write a poem; Write a letter;
    Write an email; Write an essay; Write a speech; Write a review; Summarize; Rewrite; Translate;
    Compare; Help me; I need; I want to; I have; My; Should I; Could you; Please; Please write; Please
    explain; Do you; Are there; Is; If; Solve; Calculate; Convert; Design; Draft; Generate; Compose;
    Classify; Correct; Let us; Write a blog post; Write a recipe; Write instructions; Write a news
    article; What would; What if; Given; You are; Here is; Can you; Discuss; Analyze; Hello; In
"""


class UserTurn(NamedTuple):
    """Token ids before a user's words, and those after them up to where the answer begins."""

    before: list[int]
    after: list[int]


def user_turn(tokenizer: Any, opener: str, system: str | None) -> UserTurn:
    """How the chat template surrounds a user's turn whose first words are `opener`.

    Raises ValueError for a template that does not show a user's words as they are.
    """
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": f"{opener}{_MARK}"})
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, mark, after = text.partition(_MARK)
    if not mark or not after:
        raise ValueError("this chat template does not show where a user's turn ends; ask no prompts of it")
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in (before, after))
    return UserTurn(before, after)


def openings(tokenizer: Any, seed: int) -> Iterator[Row]:
    """Beginnings of user turns, more and more of them, each to be gone on from."""
    rng = random.Random(seed)
    openers = [" ".join(opener.split()) for opener in _OPENERS.split(";")]
    while True:
        system = rng.choice(SYSTEM) if rng.random() < 0.25 else None
        opener = rng.choice(openers) if rng.random() < 0.75 else ""
        yield Row(user_turn(tokenizer, opener, system).before, "opening")


def finished(shards: Iterable[dict[str, mx.array]], after: Sequence[int]) -> Iterator[list[int]]:
    """Whole prompts, as token ids, of the turns in `generate`'s shards that came to an end."""
    for shard in shards:
        columns = (np.array(shard[name]).tolist() for name in ("tokens", "prompts", "lengths"))
        for row, opening, length in zip(*columns, strict=True):
            if row[length - 1] == after[0] and length - opening > _SHORTEST_TURN:
                yield [*row[: length - 1], *after]


def mixed(built_in: Iterable[Row], asked: Iterable[Row], share: float, seed: int) -> Iterator[Row]:
    """Both kinds in a seeded order, `share` of them asked while neither is used up; then the rest."""
    rng = random.Random(seed)
    sources = (iter(built_in), iter(asked))
    while True:
        first, second = sources if rng.random() >= share else sources[::-1]
        row = next(first, None) or next(second, None)
        if row is None:
            return
        yield row
