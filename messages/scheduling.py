"""Admission: what the ingress asks of the scheduler, what it answers, and how models report their load."""

from typing import NewType

from msgspec import Struct

from messages.requests import RequestId

TicketId = NewType("TicketId", str)
ModelName = NewType("ModelName", str)


class Admit(Struct, frozen=True, kw_only=True):
    """A request for a slot. `client_key` is an opaque fairness key; lower `priority` lanes go first."""

    request_id: RequestId
    client_key: str = ""
    priority: int = 1


class Ticket(Struct, frozen=True, tag=True, kw_only=True):
    """The right to use one slot of one model replica until released."""

    ticket_id: TicketId
    request_id: RequestId
    model: ModelName


class Busy(Struct, frozen=True, tag=True, kw_only=True):
    """No slot and no room in the queue; the client may come back after `retry_after_s` seconds."""

    queue_depth: int
    retry_after_s: int


AdmitReply = Ticket | Busy


class LoadReport(Struct, frozen=True, kw_only=True):
    """What a model replica is working on right now; the scheduler's books follow these reports.

    `incarnation` changes whenever the replica process restarts. `num_slots` is 0 while it cannot serve.
    """

    model: ModelName
    incarnation: str
    num_slots: int
    active: tuple[RequestId, ...]


class Released(Struct, frozen=True, kw_only=True):
    """One request left its slot on a model replica."""

    model: ModelName
    incarnation: str
    request_id: RequestId


class SchedulerLoad(Struct, frozen=True, kw_only=True):
    """The scheduler's own books, for status pages and metrics."""

    queue_depth: int
    max_queue_depth: int
    slots_used: int
    num_slots: int
