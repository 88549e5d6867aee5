"""Prompts a head is fitted on: built-in templates over the built-in topics, split into fitting and held-out.

Owns what is asked and what is held out; knows neither models nor tokenizers.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec import Struct

from speculative.fitting.topics import CODE_TASKS, TOPICS

Message = dict[str, str]

_GENERAL = ("nature", "science", "technology", "history", "places", "society", "art")
_EVERYDAY = ("food", "work", "hobbies", "life", "places")
_ANY = tuple(TOPICS)
_CODE = ("code",)

# kind -> (fields its topics come from, phrasings); the last phrasing is held out with the held-out topics.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "story": (
        ("fantasy", "work", "nature", "life"),
        (
            "Write a short story about {t}.",
            "Tell me a story about {t}.",
            "Tell a bedtime story for children about {t}.",
            "Write the opening paragraph of a novel about {t}.",
            "Write a short story with a surprising end. It is about {t}.",
            "Can you write a story of two paragraphs about {t}?",
        ),
    ),
    "facts": (
        (*_GENERAL, "food"),
        (
            "Give me three interesting facts about {t}.",
            "What should everyone know about {t}?",
            "Tell me about {t}.",
            "What is special about {t}?",
            "Write an encyclopedia entry on {t}.",
            "What are some surprising facts about {t}?",
        ),
    ),
    "explanation": (
        (*_GENERAL, "food", "hobbies"),
        (
            "Explain {t} to a ten year old.",
            "Explain {t} in simple words.",
            "Why does {t} matter?",
            "How would you explain {t} to a beginner?",
            "Give a detailed explanation of {t}.",
            "Could you explain the main ideas behind {t}?",
        ),
    ),
    "code": (
        _CODE,
        (
            "Write a Python function that {t}.",
            "Write a program in Python that {t}. Add comments.",
            "Show me JavaScript code that {t}.",
            "Write a function that {t}, then explain how it works.",
            "Write unit tests for a Python function that {t}.",
            "I need Python code that {t}. Please give an example of its use.",
        ),
    ),
    "list": (
        _ANY,
        (
            "List ten things related to {t}.",
            "Give me a numbered list of five ideas about {t}.",
            "What are the advantages and disadvantages of {t}? Use bullet points.",
            "Make a checklist for someone interested in {t}.",
            "Name seven questions one could ask about {t}.",
            "Please list eight words connected with {t} and say what each means.",
        ),
    ),
    "dialogue": (
        _ANY,
        (
            "Write a dialogue between two friends about {t}.",
            "Write a conversation between a teacher and a student about {t}.",
            "Write a short play in which three people argue about {t}.",
            "Invent an interview with an expert on {t}.",
            "Write a phone call between a mother and her son about {t}.",
        ),
    ),
    "letter": (
        _EVERYDAY,
        (
            "Write a letter to a friend about {t}.",
            "Write a polite email to a colleague about {t}.",
            "Write a thank-you note that mentions {t}.",
            "Write a letter of complaint about {t}.",
            "Draft a short message inviting someone to talk about {t}.",
        ),
    ),
    "advice": (
        _EVERYDAY,
        (
            "I would like to know more about {t}. Where do I start?",
            "Give me some advice on {t}.",
            "What mistakes do people make with {t}?",
            "How can I get better at understanding {t}?",
            "What would you recommend to someone thinking about {t}?",
        ),
    ),
    "howto": (
        ("food", "hobbies", "technology"),
        (
            "Give step by step instructions for a beginner: {t}.",
            "What do I need for {t}, and what are the steps?",
            "Write a recipe or a guide for {t}.",
            "How does one begin with {t}? Answer in numbered steps.",
        ),
    ),
    "summary": (
        _GENERAL,
        (
            "Summarise what is known about {t} in one paragraph.",
            "Write a summary of the history of {t}.",
            "Give the key points about {t} in three sentences.",
            "Write an abstract for an article about {t}.",
        ),
    ),
    "essay": (
        (*_GENERAL, "life"),
        (
            "Write an essay about {t}.",
            "Write a blog post about {t}.",
            "Write a persuasive paragraph about {t}.",
            "Write the introduction of a school essay about {t}.",
        ),
    ),
    "poem": (
        _ANY,
        ("Write a poem about {t}.", "Write a song about {t}.", "Write a short rhyming poem about {t}."),
    ),
    "comparison": (
        _GENERAL,
        (
            "Compare {t} with {u}.",
            "What do {t} and {u} have in common?",
            "Which is more important, {t} or {u}? Give reasons.",
        ),
    ),
    "question": (
        _ANY,
        (
            "What is the best thing about {t}?",
            "In one sentence, what do you think of {t}?",
            "Answer briefly: why do people care about {t}?",
            "Who would enjoy {t}, and why?",
        ),
    ),
    "arithmetic": (
        ("food", "hobbies", "work"),
        (
            "Make up a word problem about {t} and solve it step by step.",
            "Anna has 12 coins and spends a third of them on {t}. How many are left? Explain.",
            "Invent a table of five rows with numbers about {t}.",
        ),
    ),
    "structured": (
        _ANY,
        (
            "Write a JSON object that describes {t}.",
            "Write a Markdown table about {t}.",
            "Write an HTML page about {t}.",
        ),
    ),
    "multi_turn": (
        _ANY,
        ("Tell me more.", "Why is that?", "Can you give an example?", "Put that in a list."),
    ),
}
# Never seen in fitting: they show how the head does on requests unlike its own.
HELD_OUT_KINDS = ("riddle", "product")
_UNSEEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "riddle": (_ANY, ("Make a quiz with three questions and answers about {t}.",)),
    "product": (_ANY, ("Write a product description for a poster that shows {t}.",)),
}
SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly teacher who answers in detail.",
    "Answer concisely.",
    "You are an expert programmer and writer.",
)
_FIRST_TURN = ("What can you tell me about {t}?", "I am curious about {t}.", "Let us talk about {t}.")
_FIRST_ANSWER = (
    "{T} is a rich subject. People have thought about it for a long time, and there is much to say.",
    "Of course! {T} can be seen from several sides: where it comes from, how it works and why it matters.",
    "Sure. The most important thing about {t} is that it changes with time and place.",
)
# Kinds that most chats consist of come twice as often.
_FREQUENT = ("story", "facts", "explanation", "code", "list", "dialogue", "multi_turn")
_HELD_OUT_SHARE = 10


class Prompt(Struct, frozen=True, kw_only=True):
    """One request: its kind, its topic and its chat messages."""

    kind: str
    topic: str
    messages: tuple[Message, ...]


def fitting_kinds() -> tuple[str, ...]:
    """Kinds of request a head is fitted on."""
    return tuple(_KINDS)


@cache
def is_held_out(topic: str) -> bool:
    """Whether a topic is kept for evaluation; decided by its text alone, so that it holds for every run."""
    return hashlib.sha256(topic.encode()).digest()[0] % _HELD_OUT_SHARE == 0


def fitting_prompts(seed: int, first: Iterable[str] = ()) -> Iterator[Prompt]:
    """Distinct prompts for fitting: those of the user, then the built-in ones in a seeded order.

    Kinds are taken in turn; ends when every kind is used up.
    """
    for text in first:
        yield Prompt(kind="user", topic="", messages=({"role": "user", "content": text},))
    rng = random.Random(seed)
    queues = {kind: _pairs(kind, rng, held_out=False) for kind in _KINDS}
    while queues:
        for kind in list(queues):
            for _ in range(2 if kind in _FREQUENT else 1):
                if queues[kind]:
                    yield _prompt(kind, *queues[kind].pop(), rng)
            if not queues[kind]:
                del queues[kind]


def held_out_prompts(seed: int, per_kind: int) -> list[Prompt]:
    """Up to `per_kind` prompts of every kind, unseen ones included, on held-out topics in held-out words."""
    rng = random.Random(seed)
    out: list[Prompt] = []
    for kind in (*_KINDS, *_UNSEEN):
        pairs = _pairs(kind, rng, held_out=True)
        out.extend(_prompt(kind, *pair, rng) for pair in pairs[:per_kind])
    return out


def _topics(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(t for field in fields for t in (CODE_TASKS if field == "code" else TOPICS[field]))


def _pairs(kind: str, rng: random.Random, *, held_out: bool) -> list[tuple[str, str]]:
    fields, phrasings = {**_KINDS, **_UNSEEN}[kind]
    chosen = phrasings[-1:] if held_out else phrasings[:-1]
    pairs = [(t, p) for t in _topics(fields) if is_held_out(t) == held_out for p in chosen]
    rng.shuffle(pairs)
    return pairs


def _prompt(kind: str, topic: str, phrasing: str, rng: random.Random) -> Prompt:
    fields = {**_KINDS, **_UNSEEN}[kind][0]
    side = is_held_out(topic)
    other = rng.choice([t for t in _topics(fields) if is_held_out(t) == side])
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    if kind == "multi_turn":
        first, answer = rng.choice(_FIRST_TURN), rng.choice(_FIRST_ANSWER)
        messages.append({"role": "user", "content": first.format(t=topic)})
        capital = topic[:1].upper() + topic[1:]
        messages.append({"role": "assistant", "content": answer.format(t=topic, T=capital)})
    messages.append({"role": "user", "content": phrasing.format(t=topic, u=other)})
    return Prompt(kind=kind, topic=topic, messages=tuple(messages))
