"""The scheduler's books: order, fairness, limits, and slots that never leak."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors import admission
from actors.admission import Books
from messages.requests import RequestId
from messages.scheduling import Admit, LoadReport, ModelName, Released

MODEL = ModelName("m")


def admit(name: str, key: str = "", priority: int = 1) -> Admit:
    """A request for admission."""
    return Admit(request_id=RequestId(name), client_key=key, priority=priority)


def report(slots: int, *active: str, model: str = "m", incarnation: str = "1") -> LoadReport:
    """A load report."""
    return LoadReport(
        model=ModelName(model),
        incarnation=incarnation,
        num_slots=slots,
        active=tuple(RequestId(a) for a in active),
    )


def enqueue_all(books: Books, *admits: Admit, limit: int = 100) -> Books:
    """Queue several; all must fit."""
    for item in admits:
        queued = admission.enqueue(books, item, limit)
        assert queued is not None
        books = queued
    return books


def tickets(books: Books) -> tuple[Books, list[str]]:
    """Dispatch and name who got a ticket."""
    books, issued = admission.dispatch(books, 0.0)
    return books, [t.request_id for t in issued]


def test_without_a_ready_replica_requests_wait() -> None:
    """No slots, no tickets."""
    books, got = tickets(enqueue_all(Books(), admit("a")))
    assert got == []
    assert admission.load(books, 8).queue_depth == 1


def test_slots_are_given_in_arrival_order_up_to_the_limit() -> None:
    """Two slots serve the first two of three."""
    books = admission.reconcile(Books(), report(2), 0.0)
    books, got = tickets(enqueue_all(books, admit("a"), admit("b"), admit("c")))
    assert got == ["a", "b"]
    assert admission.load(books, 8).slots_used == 2


def test_lower_priority_numbers_go_first() -> None:
    """A priority lane overtakes arrival order."""
    books = enqueue_all(Books(), admit("slow", priority=2), admit("fast", priority=0))
    _, got = tickets(admission.reconcile(books, report(1), 0.0))
    assert got == ["fast"]


def test_a_client_holding_slots_yields_to_one_without() -> None:
    """Fairness: a client with running requests waits behind one that has none."""
    books = admission.reconcile(Books(), report(2), 0.0)
    books = enqueue_all(books, *(admit(f"a{i}", "A") for i in range(4)))
    books, got = tickets(books)
    assert got == ["a0", "a1"]
    books = enqueue_all(books, admit("b0", "B"))
    books = admission.release(books, Released(model=MODEL, incarnation="1", request_id=RequestId("a0")))
    assert tickets(books)[1] == ["b0"]


def test_a_full_queue_refuses_and_an_empty_slot_does_not() -> None:
    """The queue limit counts waiting requests only; with a free slot even a limit of 0 admits."""
    assert admission.enqueue(Books(), admit("a"), 0) is None
    books = admission.reconcile(Books(), report(1), 0.0)
    assert admission.enqueue(books, admit("a"), 0) is not None


def test_an_unclaimed_ticket_expires() -> None:
    """A ticket whose request never reached the model gives its slot back."""
    books = admission.reconcile(Books(), report(1), 0.0)
    books, _ = tickets(enqueue_all(books, admit("lost")))
    books = admission.reconcile(books, report(1), 20.0)
    assert admission.load(books, 8).slots_used == 1
    books = admission.expire(books, 20.0, claim_timeout_s=15.0, report_timeout_s=5.0)
    assert admission.load(books, 8).slots_used == 0


def test_a_lost_release_is_made_up_by_the_next_report() -> None:
    """A request seen active and then no longer reported has left."""
    books = admission.reconcile(Books(), report(1), 0.0)
    books, _ = tickets(enqueue_all(books, admit("a")))
    books = admission.reconcile(books, report(1, "a"), 0.5)
    assert admission.load(books, 8).slots_used == 1
    books = admission.reconcile(books, report(1), 1.0)
    assert admission.load(books, 8).slots_used == 0


def test_requests_unknown_to_a_restarted_scheduler_occupy_their_slots() -> None:
    """Fresh books learn what runs from the reports."""
    books = admission.reconcile(Books(), report(2, "x", "y"), 0.0)
    assert tickets(enqueue_all(books, admit("a")))[1] == []


def test_a_silent_replica_loses_its_slots() -> None:
    """A replica that stops reporting is not given requests."""
    books = admission.reconcile(Books(), report(2), 0.0)
    books = admission.expire(books, 6.0, claim_timeout_s=15.0, report_timeout_s=5.0)
    assert tickets(enqueue_all(books, admit("a")))[1] == []


def test_the_less_loaded_replica_is_chosen() -> None:
    """Placement picks the replica with fewer requests, ties by name."""
    books = admission.reconcile(Books(), report(2, "x", model="a"), 0.0)
    books = admission.reconcile(books, report(2, model="b"), 0.0)
    _, issued = admission.dispatch(enqueue_all(books, admit("r"), admit("s")), 0.0)
    assert [t.model for t in issued] == ["b", "a"]


def test_a_stale_release_of_an_earlier_process_changes_no_slot() -> None:
    """A release from an incarnation that is gone does not free a slot of the new one."""
    books = admission.reconcile(Books(), report(1, "a", incarnation="2"), 0.0)
    books = admission.release(books, Released(model=MODEL, incarnation="1", request_id=RequestId("a")))
    assert admission.load(books, 8).slots_used == 1


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)), min_size=1, max_size=12))
def test_everybody_queued_is_served_exactly_once(who: list[tuple[str, int]]) -> None:
    """However lanes and clients mix, every queued request gets one ticket in the end."""
    books = enqueue_all(Books(), *(admit(f"r{i}", key, lane) for i, (key, lane) in enumerate(who)))
    served: list[str] = []
    for _ in who:
        books = admission.reconcile(books, report(1), 0.0)
        books, got = tickets(books)
        served += got
        for name in got:
            books = admission.release(
                books, Released(model=MODEL, incarnation="1", request_id=RequestId(name))
            )
    assert sorted(served) == sorted(f"r{i}" for i in range(len(who)))


class SlotAccounting(RuleBasedStateMachine):
    """Random arrivals, claims, losses and restarts: slots are never over-used and never leak."""

    def __init__(self) -> None:
        super().__init__()
        self.books = admission.reconcile(Books(), report(3), 0.0)
        self.now = 0.0
        self.count = 0
        self.held: set[str] = set()
        self.running: set[str] = set()

    def _dispatch(self) -> None:
        self.books, issued = admission.dispatch(self.books, self.now)
        self.held |= {t.request_id for t in issued}

    @rule()
    def arrive(self) -> None:
        """A request arrives."""
        self.count += 1
        queued = admission.enqueue(self.books, admit(f"r{self.count}"), 4)
        self.books = queued or self.books
        self._dispatch()

    @precondition(lambda self: self.held)
    @rule(lost=st.booleans())
    def use_ticket(self, lost: bool) -> None:
        """A ticket holder submits, or vanishes."""
        name = sorted(self.held)[0]
        self.held.discard(name)
        if not lost:
            self.running.add(name)

    @precondition(lambda self: self.running)
    @rule(message_lost=st.booleans())
    def finish(self, message_lost: bool) -> None:
        """A request ends; its release may get lost."""
        name = sorted(self.running)[0]
        self.running.discard(name)
        if not message_lost:
            self.books = admission.release(
                self.books, Released(model=MODEL, incarnation="1", request_id=RequestId(name))
            )
        self._dispatch()

    @rule()
    def report_in(self) -> None:
        """A load report arrives."""
        self.now += 0.5
        self.books = admission.reconcile(self.books, report(3, *self.running), self.now)
        self._dispatch()

    @invariant()
    def never_more_tickets_than_slots(self) -> None:
        """What runs or may still run fits into the slots."""
        assert admission.load(self.books, 4).slots_used <= 3 or len(self.running) >= 3
        assert len(self.running | self.held) <= 3

    def teardown(self) -> None:
        """After silence and one honest report, the books show exactly what runs."""
        self.books = admission.expire(self.books, self.now + 100, 15.0, 1000.0)
        self.books = admission.reconcile(self.books, report(3, *self.running), self.now + 100)
        assert admission.load(self.books, 4).slots_used == len(self.running)


TestSlotAccounting = SlotAccounting.TestCase
