"""Admission as values: who holds a slot, who waits, who is next. No clock, no Ray, no tasks.

The books follow the replicas' load reports: a lost message can delay a slot, never leak it.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from messages.requests import RequestId
from messages.scheduling import Admit, LoadReport, ModelName, Released, SchedulerLoad, Ticket, TicketId


class Replica(Struct, frozen=True, kw_only=True):
    """One model replica as last reported: its slots and the requests seen working there."""

    model: ModelName
    incarnation: str
    num_slots: int
    active: frozenset[RequestId]
    reported_at_s: float


class Issued(Struct, frozen=True, kw_only=True):
    """A ticket no load report has confirmed yet."""

    ticket: Ticket
    client_key: str
    issued_at_s: float


class Waiting(Struct, frozen=True, kw_only=True):
    """A request in the queue; `order` is its arrival number."""

    admit: Admit
    order: int


class Books(Struct, frozen=True, kw_only=True):
    """Everything the scheduler knows. `owners` maps active requests to their fairness key."""

    replicas: dict[ModelName, Replica] = {}
    issued: dict[RequestId, Issued] = {}
    waiting: tuple[Waiting, ...] = ()
    owners: dict[RequestId, str] = {}
    next_order: int = 0


def enqueue(books: Books, admit: Admit, max_queue_depth: int) -> Books | None:
    """Add a request to the queue; None when it would have to wait and the queue is full."""
    must_wait = bool(books.waiting) or not _free_replicas(books)
    if must_wait and len(books.waiting) >= max_queue_depth:
        return None
    entry = Waiting(admit=admit, order=books.next_order)
    return replace(books, waiting=(*books.waiting, entry), next_order=books.next_order + 1)


def dispatch(books: Books, now_s: float) -> tuple[Books, tuple[Ticket, ...]]:
    """Issue tickets while there are free slots and waiting requests."""
    tickets: list[Ticket] = []
    while books.waiting and (free := _free_replicas(books)):
        chosen = _next_in_line(books)
        admit = chosen.admit
        ticket = Ticket(
            ticket_id=TicketId(f"{admit.request_id}.{chosen.order}"),
            request_id=admit.request_id,
            model=free[0],
        )
        issued = Issued(ticket=ticket, client_key=admit.client_key, issued_at_s=now_s)
        books = replace(
            books,
            waiting=tuple(entry for entry in books.waiting if entry is not chosen),
            issued={**books.issued, admit.request_id: issued},
            owners={**books.owners, admit.request_id: admit.client_key},
        )
        tickets.append(ticket)
    return books, tuple(tickets)


def withdraw(books: Books, request_id: RequestId) -> Books:
    """Forget a request that was waiting or whose ticket was never used."""
    books = replace(books, waiting=tuple(w for w in books.waiting if w.admit.request_id != request_id))
    return _forget(books, [request_id])


def release(books: Books, message: Released) -> Books:
    """A replica says that a request left its slot."""
    replica = books.replicas.get(message.model)
    if replica is not None and replica.incarnation == message.incarnation:
        replica = replace(replica, active=replica.active - {message.request_id})
        books = replace(books, replicas={**books.replicas, message.model: replica})
    return _forget(books, [message.request_id])


def reconcile(books: Books, report: LoadReport, now_s: float) -> Books:
    """Take a load report as the truth about its replica."""
    previous = books.replicas.get(report.model)
    active = frozenset(report.active)
    gone = (previous.active - active) if previous else frozenset[RequestId]()
    replica = Replica(
        model=report.model,
        incarnation=report.incarnation,
        num_slots=report.num_slots,
        active=active,
        reported_at_s=now_s,
    )
    claimed = {rid: entry for rid, entry in books.issued.items() if rid not in active}
    books = replace(books, replicas={**books.replicas, report.model: replica}, issued=claimed)
    return _forget(books, gone)


def expire(books: Books, now_s: float, claim_timeout_s: float, report_timeout_s: float) -> Books:
    """Drop tickets nobody claimed and replicas that stopped reporting."""
    late = [rid for rid, entry in books.issued.items() if now_s - entry.issued_at_s > claim_timeout_s]
    books = _forget(books, late)
    dead = [name for name, r in books.replicas.items() if now_s - r.reported_at_s > report_timeout_s]
    for name in dead:
        lost = books.replicas[name].active
        books = replace(books, replicas={k: v for k, v in books.replicas.items() if k != name})
        books = _forget(books, lost)
    return books


def load(books: Books, max_queue_depth: int) -> SchedulerLoad:
    """The books in four numbers."""
    return SchedulerLoad(
        queue_depth=len(books.waiting),
        max_queue_depth=max_queue_depth,
        slots_used=sum(_used(books, replica) for replica in books.replicas.values()),
        num_slots=sum(replica.num_slots for replica in books.replicas.values()),
    )


def _used(books: Books, replica: Replica) -> int:
    unconfirmed = sum(1 for entry in books.issued.values() if entry.ticket.model == replica.model)
    return len(replica.active) + unconfirmed


def _free_replicas(books: Books) -> list[ModelName]:
    """Replicas with a free slot, the least loaded first (ties by name)."""
    ranked = sorted((_used(books, replica), name) for name, replica in books.replicas.items())
    return [name for used, name in ranked if used < books.replicas[name].num_slots]


def _next_in_line(books: Books) -> Waiting:
    """Lowest priority number first, then the client holding fewest slots, then arrival order."""
    held = Counter(books.owners.values())
    return min(books.waiting, key=lambda w: (w.admit.priority, held[w.admit.client_key], w.order))


def _forget(books: Books, request_ids: Iterable[RequestId]) -> Books:
    gone = set(request_ids)
    return replace(
        books,
        issued={rid: entry for rid, entry in books.issued.items() if rid not in gone},
        owners={rid: key for rid, key in books.owners.items() if rid not in gone},
    )
