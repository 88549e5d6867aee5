"""The scheduler actor's waiting, cancelling and giving back, on a plain event loop."""

import asyncio

import pytest

from actors.config import SchedulerConfig
from actors.scheduler_actor import SchedulerActor
from messages.requests import RequestId
from messages.scheduling import Admit, Busy, LoadReport, ModelName, Released, Ticket

MODEL = ModelName("m")


def admit(name: str) -> Admit:
    """A request for admission."""
    return Admit(request_id=RequestId(name))


async def scheduler(slots: int, max_queue_depth: int = 4) -> SchedulerActor:
    """A scheduler that knows one replica."""
    actor = SchedulerActor(SchedulerConfig(max_queue_depth=max_queue_depth))
    await actor.report(LoadReport(model=MODEL, incarnation="1", num_slots=slots, active=()))
    return actor


async def test_a_waiting_request_gets_the_slot_another_leaves() -> None:
    """A release wakes the next in line."""
    actor = await scheduler(slots=1)
    assert isinstance(await actor.admit(admit("a")), Ticket)
    waiting = asyncio.create_task(actor.admit(admit("b")))
    await asyncio.sleep(0)
    assert not waiting.done()
    await actor.released(Released(model=MODEL, incarnation="1", request_id=RequestId("a")))
    reply = await waiting
    assert isinstance(reply, Ticket)
    assert reply.request_id == "b"


async def test_a_full_queue_answers_busy_at_once() -> None:
    """Beyond slots and queue the answer is Busy with a positive Retry-After."""
    actor = await scheduler(slots=1, max_queue_depth=1)
    await actor.admit(admit("a"))
    waiting = asyncio.create_task(actor.admit(admit("b")))
    await asyncio.sleep(0)
    reply = await actor.admit(admit("c"))
    assert isinstance(reply, Busy)
    assert reply.queue_depth == 1
    assert reply.retry_after_s >= 1
    waiting.cancel()


async def test_a_cancelled_wait_leaves_the_queue() -> None:
    """A client that goes away while waiting takes no slot later."""
    actor = await scheduler(slots=1)
    await actor.admit(admit("a"))
    waiting = asyncio.create_task(actor.admit(admit("b")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await actor.load()).queue_depth == 0


async def test_a_cancel_that_races_the_ticket_gives_the_slot_back() -> None:
    """When the ticket was issued but its waiter is cancelled before it woke, the slot is free again."""
    actor = await scheduler(slots=1)
    await actor.admit(admit("a"))
    waiting = asyncio.create_task(actor.admit(admit("b")))
    await asyncio.sleep(0)
    await actor.released(Released(model=MODEL, incarnation="1", request_id=RequestId("a")))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await actor.load()).slots_used == 0


async def test_withdrawing_an_unused_ticket_frees_its_slot() -> None:
    """A ticket given back is given out again."""
    actor = await scheduler(slots=1)
    await actor.admit(admit("a"))
    await actor.withdraw(RequestId("a"))
    assert isinstance(await actor.admit(admit("b")), Ticket)
