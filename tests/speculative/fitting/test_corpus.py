"""What is asked, and what is kept for evaluation."""

from itertools import islice

from speculative.fitting.corpus import (
    HELD_OUT_KINDS,
    fitting_kinds,
    fitting_prompts,
    held_out_prompts,
    is_held_out,
)
from speculative.fitting.topics import CODE_TASKS, TOPICS


def test_there_are_several_hundred_distinct_topics() -> None:
    """No subject is listed twice, and there are more than four hundred."""
    every = [*CODE_TASKS, *(t for topics in TOPICS.values() for t in topics)]
    assert len(every) == len(set(every)) > 400


def test_held_out_prompts_share_neither_topic_nor_words_with_fitting() -> None:
    """Fitting prompts never ask a held-out topic, and no held-out request is asked in a fitting phrasing."""
    fitting = list(fitting_prompts(0))
    held_out = held_out_prompts(0, 100)
    assert not any(is_held_out(p.topic) for p in fitting)
    assert all(is_held_out(p.topic) for p in held_out)
    asked = {p.messages[-1]["content"].replace(p.topic, "{t}") for p in fitting}
    assert not asked & {p.messages[-1]["content"].replace(p.topic, "{t}") for p in held_out}


def test_every_kind_is_held_out_and_some_kinds_only_there() -> None:
    """Evaluation covers each fitted kind and the kinds a head has never seen."""
    kinds = {p.kind for p in held_out_prompts(3, 2)}
    assert kinds == {*fitting_kinds(), *HELD_OUT_KINDS}
    assert not set(HELD_OUT_KINDS) & set(fitting_kinds())


def test_the_same_seed_asks_the_same() -> None:
    """Prompts depend on the seed alone."""
    first, again, other = (list(islice(fitting_prompts(s), 50)) for s in (4, 4, 5))
    assert first == again != other


def test_a_users_prompts_come_first() -> None:
    """What the user brings is asked before the built-in prompts."""
    prompt = next(fitting_prompts(0, ["How is paper made?"]))
    assert (prompt.kind, prompt.messages[-1]["content"]) == ("user", "How is paper made?")
