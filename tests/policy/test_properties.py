"""Whatever happens in whatever order, the published contract holds and verdicts do not flap."""

import math
import os
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from messages.policy import (
    Attach,
    Counts,
    Declined,
    Detach,
    Dispatch,
    Exactness,
    ExactnessFound,
    Message,
    MtpDispatch,
    NoMtpDispatch,
    PolicySnapshot,
    Renew,
    Sample,
    Slice,
)
from messages.scheduling import ModelName
from policy.cluster import Cluster, dispatch_to_load, gate_of, reply, rules_of
from policy.config import SAMPLES_REQUIRED, PolicyConfig
from policy.effects import ProfileGrew, VerdictReached, effects
from policy.evidence import qualifies
from policy.fold import expire, forget, observe
from policy.hint import hint_of
from policy.hint_store import HintStore
from policy.machine import NOTHING, Remembered, visible_samples
from policy.report import publish
from policy.states import Profiling, Settled, uncovered
from policy.switches import Switches
from policy.wire import body, health_mirror, worker_not_ready
from tests.policy.builders import CPU, M5, dispatch, sample
from tests.policy.test_wire import Body

MODELS = st.sampled_from([ModelName("a"), ModelName("b")])
INCARNATIONS = st.sampled_from(["1", "2"])
COUNTS = st.builds(
    Counts,
    attempts=st.integers(0, 50),
    bursts=st.integers(0, 50),
    declines=st.lists(
        st.builds(Declined, st.sampled_from(["concurrent", "grammar"]), st.integers(0, 50)), max_size=2
    ).map(tuple),
)
EXACTNESS = st.builds(
    Exactness, exact=st.sampled_from([True, True, True, False, None]), detail=st.none() | st.text(max_size=5)
)
DISPATCHES: st.SearchStrategy[Dispatch] = st.sampled_from(
    [dispatch(), dispatch(), dispatch(block_size=5), dispatch(hardware=CPU, fingerprint="x"), NoMtpDispatch()]
)
WILD_SLICES = st.lists(
    st.builds(Slice, st.integers(), st.integers(), st.floats(), st.integers(), st.floats()), max_size=3
).map(tuple)
SAMPLES = st.builds(
    sample,
    speedup=st.floats(0.4, 3.0),
    rounds=st.sampled_from([0, 1, 8, 16, 64, 200]),
    accepted=st.integers(0, 3),
    cancelled=st.booleans(),
    block_size=st.sampled_from([4, 4, 4, 5]),
)
WILD_SAMPLES = st.builds(
    lambda base, slices, ms: msgspec.structs.replace(base, slices=slices, verify_ms=ms, probe_ms=ms),
    SAMPLES,
    WILD_SLICES,
    st.floats(),
)
SWITCHES = st.sampled_from(
    [
        *[Switches()] * 4,
        Switches(pin=True),
        Switches(pin=False),
        Switches(adaptive=False, pin=True),
        Switches(allow_inexact=True),
    ]
)
# Ids of writers: one that no process has, no id at all, one that lives, and this process's own, used again.
DEAD, NOBODY, ALIVE, OWN = 2**31 - 1, "x", os.getppid(), os.getpid()
CONFIGS = st.builds(PolicyConfig, estimator=st.sampled_from(["paired", "paired", "measured", "upper_bound"]))


def check_contract(snapshot: PolicySnapshot) -> None:
    """Every rule of the published contract on one snapshot."""
    decoded = msgspec.json.decode(msgspec.json.encode(body(snapshot)), type=Body)
    assert msgspec.json.encode(health_mirror(snapshot))
    assert (decoded.reason is not None) == (decoded.state == "unavailable")
    assert decoded.decline_detail is None or decoded.state == "exactness_declined"
    assert (decoded.verdict is not None) == (decoded.state == "settled")
    assert (decoded.mtp_enabled is None) == (decoded.reason == "worker_not_ready")
    assert (decoded.samples_remaining is not None) == (decoded.state == "profiling")
    if decoded.state == "profiling":
        assert 0 <= decoded.samples <= 3
        assert decoded.samples + (decoded.samples_remaining or 0) == 4
        assert decoded.mtp_enabled is True
    if decoded.state == "settled":
        assert decoded.samples == 4
        assert decoded.mtp_enabled is (decoded.verdict == "enable")
    if decoded.state not in {"settled", "profiling"}:
        assert decoded.samples == 0
        assert decoded.acceptance_rate is None
    if decoded.state == "exactness_declined":
        assert decoded.mtp_enabled is False
    identity = (decoded.target, decoded.drafter, decoded.hardware, decoded.block_size)
    assert all((part is None) == (decoded.state == "unavailable") for part in identity)


class PolicyServer(RuleBasedStateMachine):
    """The shell's loop over the pure core, with kills and damaged files thrown in."""

    @initialize(config=CONFIGS, switches=SWITCHES)
    def start(self, config: PolicyConfig, switches: Switches) -> None:
        """An empty server with its store in memory of the test."""
        self.store = HintStore(self.root)
        self.now = 1000.0
        self.cluster = Cluster(config=config, switches=switches, version=1)
        self.published = worker_not_ready(version=1)
        self.settled: dict[str, Settled] = {}
        self.samples_since: dict[str, int] = {}
        self.damaged: set[str] = set()
        self.abandoned: set[Path] = set()
        self.being_written: set[Path] = set()

    root: Path

    def fold(self, message: Message) -> None:
        """What the actor does with a message."""
        stamped = msgspec.structs.replace(message, at_s=self.now)
        to_load = dispatch_to_load(self.cluster, stamped) if isinstance(stamped, Attach) else None
        remembered = NOTHING if to_load is None else self.load(to_load)
        before = self.cluster
        self.cluster = observe(before, stamped, remembered)
        for effect in effects(before, self.cluster):
            if isinstance(effect, VerdictReached):
                assert self.store.save(effect.hint) is None
                self.damaged.discard(effect.key)
            if isinstance(effect, ProfileGrew):
                assert self.store.save(effect.profile) is None
        assert reply(self.cluster, stamped) is not None
        self.track(before, stamped)

    def load(self, of: MtpDispatch) -> Remembered:
        """What the store knows; temporary files go when their writer is gone, and only then."""
        remembered = self.store.load(of)
        assert not any(path.exists() for path in self.abandoned)
        assert all(path.exists() for path in self.being_written)
        self.abandoned.clear()
        return remembered

    def track(self, before: Cluster, message: Message) -> None:
        """Count qualifying samples between verdicts, and check that none reverses too soon.

        Where the former verdict was lost, or never was, a whole profile must come before the next one.
        """
        replica = before.replicas.get(message.model)
        key = None if replica is None else replica.key
        if isinstance(message, Sample) and key is not None and qualifies(before.config, message):
            self.samples_since[key] = self.samples_since.get(key, 0) + 1
        for name, entry in self.cluster.entries.items():
            state = uncovered(entry.state)
            if isinstance(state, Profiling) and state.reopened is None:
                assert visible_samples(state.evidence) <= 3
                self.settled.pop(name, None)
                if name not in before.entries:
                    self.samples_since[name] = len(state.evidence.samples)
            if isinstance(state, Settled):
                self.check_verdict(name, state)

    def check_verdict(self, name: str, state: Settled) -> None:
        """A verdict is measured from enough samples since the one before, or is the one that was stored."""
        old, samples = self.settled.get(name), self.samples_since.get(name, 0)
        if state.source == "restored":
            assert old is not None
            assert (old.verdict, old.settled_at) == (state.verdict, state.settled_at)
        elif old is None:
            assert samples >= SAMPLES_REQUIRED
        elif old.verdict != state.verdict:
            assert self.cluster.config.estimator == "paired"
            assert samples > self.cluster.config.dwell_samples
        if old is None or (old.verdict, old.settled_at) != (state.verdict, state.settled_at):
            self.samples_since[name] = 0
        self.settled[name] = state

    @rule(model=MODELS)
    def attach_exact(self, model: ModelName) -> None:
        """A replica loads as it should."""
        self.attach(model, "1", dispatch(), Exactness(exact=True))

    @rule(model=MODELS, incarnation=INCARNATIONS, of=DISPATCHES, exactness=EXACTNESS)
    def attach(self, model: ModelName, incarnation: str, of: Dispatch, exactness: Exactness) -> None:
        """A replica reports."""
        self.fold(Attach(model=model, incarnation=incarnation, hardware=M5, dispatch=of, exactness=exactness))

    @rule(model=MODELS, incarnation=INCARNATIONS, counts=COUNTS)
    def renew(self, model: ModelName, incarnation: str, counts: Counts) -> None:
        """A replica lives."""
        self.fold(Renew(model=model, incarnation=incarnation, counts=counts))

    @rule(model=MODELS, incarnation=INCARNATIONS, exactness=EXACTNESS)
    def find(self, model: ModelName, incarnation: str, exactness: Exactness) -> None:
        """A probe or audit ends."""
        self.fold(ExactnessFound(model=model, incarnation=incarnation, exactness=exactness))

    @rule(model=MODELS, incarnation=INCARNATIONS)
    def detach(self, model: ModelName, incarnation: str) -> None:
        """A replica leaves."""
        self.fold(Detach(model=model, incarnation=incarnation))

    @rule(chosen=st.integers(0, 3), each=SAMPLES | WILD_SAMPLES, times=st.sampled_from([1, 2, 5, 9]))
    def record(self, chosen: int, each: Sample, times: int) -> None:
        """Measured requests of a live replica finish, or of one that is unknown."""
        live = [(model, replica.incarnation) for model, replica in sorted(self.cluster.replicas.items())]
        model, incarnation = [*live, (ModelName("gone"), "0")][chosen % (len(live) + 1)]
        for _ in range(times):
            self.now += 0.1
            self.fold(msgspec.structs.replace(each, model=model, incarnation=incarnation))

    @rule(model=MODELS, speedup=st.sampled_from([0.6, 2.5]))
    def settle(self, model: ModelName, speedup: float) -> None:
        """One kind of traffic, for long enough to reach a verdict or to reverse one."""
        self.attach_exact(model)
        for _ in range(9):
            self.now += 0.1
            self.fold(sample(speedup, model=model))

    @rule(seconds=st.floats(-5, 30))
    def wait(self, seconds: float) -> None:
        """Time passes, or the clock is set back."""
        self.now += seconds
        self.cluster = expire(self.cluster, self.now)

    @rule()
    def kill(self) -> None:
        """The policy dies and restarts from its files; verdicts survive unless their file is lost."""
        fresh = Cluster(
            config=self.cluster.config, switches=self.cluster.switches, version=self.cluster.version + 1000
        )
        before, self.cluster = self.cluster, fresh
        for name, entry in before.entries.items():
            state = uncovered(entry.state)
            remembered = self.load(entry.dispatch)
            if isinstance(state, Settled):
                verdict = None if remembered.hint is None else remembered.hint.verdict
                assert verdict in ({None, state.verdict} if name in self.damaged else {state.verdict})
                assert name in self.settled

    @rule(kept=st.integers(0, 2000), noise=st.binary(max_size=30))
    def damage(self, kept: int, noise: bytes) -> None:
        """Every file is cut somewhere, and rubbish follows."""
        folder = self.root / "mtp-policy"
        for path in folder.glob("*.json") if folder.exists() else []:
            path.write_bytes(path.read_bytes()[:kept] + noise)
            self.damaged.add(path.name.split(".")[0])

    @rule(kept=st.integers(0, 2000), noise=st.binary(max_size=30))
    def damage_and_kill(self, kept: int, noise: bytes) -> None:
        """The machine goes down and takes the files with it."""
        self.damage(kept, noise)
        self.kill()

    @rule(writer=st.sampled_from([DEAD, NOBODY, ALIVE, OWN]), age_s=st.sampled_from([0, 3600]))
    def leave_behind(self, writer: int | str, age_s: int) -> None:
        """A writer is killed before its rename; what it was about to say contradicts what is in force."""
        folder = self.root / "mtp-policy"
        folder.mkdir(exist_ok=True)
        for name in self.cluster.entries:
            path = folder / f"{name}.json.tmp.{writer}"
            path.write_bytes(self.contradiction(name))
            os.utime(path, (time.time() - age_s,) * 2)
            self.abandoned.discard(path)
            self.being_written.discard(path)
            if writer in {DEAD, NOBODY} or age_s:
                self.abandoned.add(path)
            # A file with this process's id is used up by the next save.
            elif writer == ALIVE:
                self.being_written.add(path)

    def contradiction(self, name: str) -> bytes:
        """The verdict file of a pairing with the opposite verdict, or half a file where there is none."""
        entry = self.cluster.entries[name]
        state = uncovered(entry.state)
        if not isinstance(state, Settled):
            return b"{"
        opposite = msgspec.structs.replace(
            state, verdict="decline" if state.verdict == "enable" else "enable", settled_at=0.0
        )
        return msgspec.json.encode(hint_of(rules_of(self.cluster, entry), opposite))

    @rule(writer=st.sampled_from([DEAD, OWN]))
    def kill_while_saving(self, writer: int) -> None:
        """The policy itself dies before its rename; its successor may get the same process id."""
        self.leave_behind(writer, 0)
        self.kill()

    @rule(of=DISPATCHES)
    def forget(self, of: Dispatch) -> None:
        """An operator drops what is known of one pairing."""
        for key, entry in self.cluster.entries.items():
            if entry.dispatch == of:
                self.store.forget(key)
                self.cluster = forget(self.cluster, key)
                self.settled.pop(key, None)
                self.samples_since[key] = 0
                return

    @invariant()
    def the_contract_holds(self) -> None:
        """Versions only rise, bodies are whole, and no gate is open on kernels that are not known exact."""
        published = publish(self.cluster, self.published)
        assert published is self.published or published.version == self.published.version + 1
        self.published = published
        check_contract(published)
        for model, replica in self.cluster.replicas.items():
            gate = gate_of(self.cluster, model)
            if gate.enabled or gate.measure_every:
                assert replica.exactness.exact is True or self.cluster.switches.allow_inexact
                assert replica.exactness.exact is not None
            assert gate.version == self.cluster.version


def test_no_sequence_of_events_breaks_the_contract(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Messages, kills in the middle of a write, damaged and leftover files, wiped memory, in any order."""

    class Machine(PolicyServer):
        def __init__(self) -> None:
            super().__init__()
            self.root = tmp_path_factory.mktemp("store")

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.4, 3.0), min_size=12, max_size=120))
def test_verdicts_reverse_no_faster_than_the_dwell(speedups: list[float]) -> None:
    """However the measured speed-up jumps, more than `dwell_samples` samples lie between two verdicts."""
    cluster = Cluster(config=PolicyConfig(), switches=Switches())
    cluster = observe(
        cluster,
        Attach(
            model=ModelName("m"),
            incarnation="1",
            hardware=M5,
            dispatch=dispatch(),
            exactness=Exactness(exact=True),
        ),
    )
    verdicts: list[tuple[int, str]] = []
    for number, speedup in enumerate(speedups):
        cluster = observe(cluster, sample(speedup, at_s=0.0))
        (entry,) = cluster.entries.values()
        if isinstance(entry.state, Settled) and (not verdicts or verdicts[-1][1] != entry.state.verdict):
            verdicts.append((number, entry.state.verdict))
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(verdicts)]
    assert min(gaps, default=math.inf) > cluster.config.dwell_samples
