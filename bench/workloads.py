"""What the policy benchmark asks: kinds of traffic on which speculation does well or badly. Plain data."""

import random
import string
from typing import Literal

from msgspec import Struct

Workload = Literal["chat", "code", "repetitive", "random"]
WORKLOADS: tuple[Workload, ...] = ("chat", "code", "repetitive", "random")
TEMPERATURES = (0.0, 0.8)
PROMPTS_PER_CELL = 6
_RANDOM_WORDS = 40

_CHAT = (
    "My neighbour plays the trombone at night. How do I raise the matter kindly?",
    "Explain how a canal lock lifts a barge, as if I were standing beside it.",
    "Tell me about a day in the life of a stagecoach driver.",
    "What should I look for when I choose a telescope tripod?",
    "Write a short speech for the opening of a village bakery museum.",
    "Why do cats knead blankets? Tell me what is known about it.",
)
_CODE = (
    "Write a Python class for a bounded least-recently-used cache and show how to use it.",
    "Write a C function that trims white space at both ends of a text in place, with comments.",
    "Show a Python script that resizes every picture of a directory, with argument parsing.",
    "Write a TypeScript function that debounces calls, and a small example.",
    "Write a Python generator that yields the nodes of a graph in breadth-first order.",
    "Write a shell script that backs up a directory and keeps the seven newest copies.",
)
_REPETITIVE = (
    "Repeat this line thirty times: the quick brown fox jumps over the lazy dog.",
    "Write the sentence I will not talk in class fifty times, each on its own line.",
    "Count from 1 to 100, one number per line, and write nothing else.",
    "Write the word banana again and again, a hundred times, separated by spaces.",
    "Write a table of 40 rows in which every row reads: item, 1, yes.",
    "Print the chorus la la la, sing along with me forty times.",
)


class Question(Struct, frozen=True, kw_only=True):
    """One request: a chat message, or the beginning of a text that the model goes on with."""

    workload: Workload
    temperature: float
    seed: int
    text: str

    @property
    def is_chat(self) -> bool:
        """Random text is not a message anybody answers: it is continued."""
        return self.workload != "random"


def questions(per_cell: int) -> list[Question]:
    """`per_cell` (1 to 6) seeded questions for every workload and temperature, the cells in turn."""
    return [
        Question(workload=workload, temperature=temperature, seed=1000 + number, text=_text(workload, number))
        for number in range(per_cell)
        for workload in WORKLOADS
        for temperature in TEMPERATURES
    ]


def _text(workload: Workload, number: int) -> str:
    match workload:
        case "chat":
            return _CHAT[number]
        case "code":
            return _CODE[number]
        case "repetitive":
            return _REPETITIVE[number]
        case "random":
            return _random_words(number)


def _random_words(seed: int) -> str:
    rng = random.Random(seed)
    words = ("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(_RANDOM_WORDS))
    return " ".join(words)
