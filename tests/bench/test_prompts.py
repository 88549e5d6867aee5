"""The benchmarks' prompts: held out from fitting, of every kind, and none twice."""

import re
from collections import Counter

from bench.prompts import CHAT_PROMPTS, KINDS, WARM_UP_CHAT
from bench.workloads import PROMPTS_PER_CELL, TEMPERATURES, WORKLOADS, questions
from speculative.fitting.corpus import fitting_prompts, is_held_out
from speculative.fitting.topics import CODE_TASKS, TOPICS

TEXTS = [*(prompt.text for prompt in CHAT_PROMPTS), *(q.text for q in questions(PROMPTS_PER_CELL))]


def test_no_prompt_mentions_a_topic_that_heads_are_fitted_on() -> None:
    """A head that has seen the topic would be flattered."""
    topics = [*CODE_TASKS, *(topic for field in TOPICS.values() for topic in field)]
    fitted = [topic for topic in topics if not is_held_out(topic)]
    mentioned = [
        (topic, text)
        for topic in fitted
        for text in TEXTS
        if re.search(rf"\b{re.escape(topic)}\b", text, re.I)
    ]
    assert len(fitted) > 300
    assert mentioned == []


def test_no_prompt_is_one_that_heads_are_fitted_on() -> None:
    """Word for word, whatever the topic."""
    fitted = {prompt.messages[-1]["content"] for prompt in fitting_prompts(seed=0)}
    assert len(fitted) > 1000
    assert not fitted & {*TEXTS, WARM_UP_CHAT}


def test_kinds_come_in_turn_and_equally_often() -> None:
    """So the first five prompts already hold every kind."""
    assert [prompt.kind for prompt in CHAT_PROMPTS] == [*KINDS] * 4


def test_questions_fill_every_cell_alike_and_never_change() -> None:
    """Two a cell are sixteen, with seeds of their own, the same on every run."""
    asked = questions(2)
    cells = Counter((q.workload, q.temperature) for q in asked)
    assert cells == {(workload, temperature): 2 for workload in WORKLOADS for temperature in TEMPERATURES}
    assert asked == questions(2)
    assert len({(q.workload, q.temperature, q.text) for q in questions(PROMPTS_PER_CELL)}) == 48
    assert not {q.text for q in asked} & {prompt.text for prompt in CHAT_PROMPTS}
