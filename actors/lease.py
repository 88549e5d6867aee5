"""A model's standing with the policy: attach once loaded, renew while alive, keep the last gate otherwise."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from actors.ports import PolicyPort
from messages.policy import Attach, Counts, Gate, GateReply, NotAttached, Renew, Sample

log = structlog.get_logger()

_RENEW_PERIOD_S = 1.0
_CALL_TIMEOUT_S = 5.0
# A sample that waits for the policy to come back longer than this is about a machine state long gone.
_SAMPLE_TRIES = 10


class Lease:
    """Keeps one attachment alive and hands every gate it is given to `on_gate`.

    The policy may be away or restarted at any time; the gate then stays as it was.
    """

    def __init__(self, policy: PolicyPort, attach: Attach, on_gate: Callable[[Gate], None]) -> None:
        """Nothing happens before `hold` runs."""
        self.counts = Counts()
        self._policy = policy
        self._attach = attach
        self._on_gate = on_gate
        self._is_attached = False
        self._changed = asyncio.Event()

    def renew_as(self, attach: Attach) -> None:
        """Attach anew, with what is known by now."""
        self._attach = attach
        self._is_attached = False
        self._changed.set()

    async def hold(self) -> None:
        """Attach and renew forever."""
        while True:
            attach = self._attach
            reply = await self._try(self._next_call())
            if isinstance(reply, NotAttached):
                self._is_attached = False
                continue
            if isinstance(reply, Gate):
                # What was attached may be outdated by the time the answer comes.
                self._is_attached = attach is self._attach
                self._on_gate(reply)
            await self._pause()

    async def record(self, sample: Sample) -> None:
        """Report a sample, once the policy can be reached; it is lost when that takes too long."""
        for _ in range(_SAMPLE_TRIES):
            reply = await self._try(self._policy.record(sample))
            if isinstance(reply, Gate):
                self._on_gate(reply)
                return
            await asyncio.sleep(_RENEW_PERIOD_S)
        log.warning("sample_lost", model=sample.model)

    def _next_call(self) -> Awaitable[GateReply]:
        if not self._is_attached:
            return self._policy.attach(self._attach)
        model, incarnation = self._attach.model, self._attach.incarnation
        return self._policy.renew(Renew(model=model, incarnation=incarnation, counts=self.counts))

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), _RENEW_PERIOD_S)
        except TimeoutError:
            return
        self._changed.clear()

    async def _try(self, call: Awaitable[GateReply]) -> GateReply | None:
        try:
            return await asyncio.wait_for(call, _CALL_TIMEOUT_S)
        except Exception as error:  # Ray raises many types for a peer that is restarting
            log.debug("policy_unreachable", error=type(error).__name__)
            return None
