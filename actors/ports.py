"""What actors may ask of each other, and those ports over Ray Serve handles.

The protocols keep the actors testable without Ray. Calls go by value over gRPC: the object store would cost
several milliseconds each.
"""

from collections.abc import Awaitable
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from messages.policy import Attach, Detach, ExactnessFound, GateReply, Renew, Sample
from messages.scheduling import LoadReport, Released


class SchedulerPort(Protocol):
    """What a model tells the scheduler."""

    def report(self, message: LoadReport) -> Awaitable[None]:
        """Deliver a load report."""
        ...

    def released(self, message: Released) -> Awaitable[None]:
        """Deliver a release."""
        ...


class PolicyPort(Protocol):
    """What a model tells the policy; every answer carries the gate in force."""

    def attach(self, message: Attach) -> Awaitable[GateReply]:
        """Announce a loaded model."""
        ...

    def renew(self, message: Renew) -> Awaitable[GateReply]:
        """Keep the lease."""
        ...

    def record(self, message: Sample) -> Awaitable[GateReply]:
        """Report a finished measured request."""
        ...

    def exactness_found(self, message: ExactnessFound) -> Awaitable[GateReply]:
        """Report what a late probe or a live audit found."""
        ...

    def detach(self, message: Detach) -> Awaitable[GateReply]:
        """Leave."""
        ...


class RemoteScheduler:
    """The scheduler port over its deployment handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(_by_reference=False)

    def report(self, message: LoadReport) -> Awaitable[None]:
        """Deliver a load report."""
        return self._handle.report.remote(message)

    def released(self, message: Released) -> Awaitable[None]:
        """Deliver a release."""
        return self._handle.released.remote(message)


class RemotePolicy:
    """The policy port over its deployment handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(_by_reference=False)

    def attach(self, message: Attach) -> Awaitable[GateReply]:
        """Announce a loaded model."""
        return self._handle.attach.remote(message)

    def renew(self, message: Renew) -> Awaitable[GateReply]:
        """Keep the lease."""
        return self._handle.renew.remote(message)

    def record(self, message: Sample) -> Awaitable[GateReply]:
        """Report a finished measured request."""
        return self._handle.record.remote(message)

    def exactness_found(self, message: ExactnessFound) -> Awaitable[GateReply]:
        """Report what a late probe or a live audit found."""
        return self._handle.exactness_found.remote(message)

    def detach(self, message: Detach) -> Awaitable[GateReply]:
        """Leave."""
        return self._handle.detach.remote(message)
