"""Clusters of replicas for tests: built from a trace, looked at from outside."""

from collections.abc import Iterable

from messages.policy import (
    Attach,
    Counts,
    Declined,
    Message,
    NoMtpDispatch,
    PolicyReport,
)
from messages.scheduling import ModelName
from policy.cluster import Cluster
from policy.config import PolicyConfig
from policy.fold import observe
from policy.report import snapshot
from policy.switches import Switches
from tests.policy.builders import CPU


def cluster(
    *messages: Message, switches: Switches | None = None, config: PolicyConfig | None = None
) -> Cluster:
    """The value after these messages."""
    value = Cluster(config=config or PolicyConfig(), switches=switches or Switches())
    return fold(value, messages)


def fold(value: Cluster, messages: Iterable[Message]) -> Cluster:
    """`value` after more messages."""
    for message in messages:
        value = observe(value, message)
    return value


def top(value: Cluster) -> PolicyReport:
    """What stands at the top level."""
    return snapshot(value).top


def plain(model: str = "a") -> Attach:
    """A replica without a drafter."""
    return Attach(model=ModelName(model), incarnation="1", hardware=CPU, dispatch=NoMtpDispatch())


def counted(bursts: int = 0, **declines: int) -> Counts:
    """Counters in which every attempt had an outcome."""
    rows = tuple(Declined(reason, count) for reason, count in declines.items())
    return Counts(attempts=bursts + sum(declines.values()), bursts=bursts, declines=rows)
