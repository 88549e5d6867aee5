"""A model's standing with the policy: attach once loaded, renew while alive, keep the last gate when it is gone."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from actors.ports import PolicyPort
from messages.policy import Attach, Gate, GateReply, NotAttached, Renew

log = structlog.get_logger()

_RENEW_PERIOD_S = 1.0
_CALL_TIMEOUT_S = 5.0


class Lease:
    """Keeps one attachment alive and hands every newer gate to `on_gate`."""

    def __init__(self, policy: PolicyPort, attach: Attach, on_gate: Callable[[Gate], None]) -> None:
        """Nothing happens before `hold` runs."""
        self._policy = policy
        self._attach = attach
        self._on_gate = on_gate
        self._attached = False

    async def hold(self) -> None:
        """Run forever. The policy may be away or restarted at any time; the gate then stays as it was."""
        while True:
            reply = await self._try(self._next_call())
            if isinstance(reply, Gate):
                self._attached = True
                self._on_gate(reply)
            elif isinstance(reply, NotAttached):
                self._attached = False
                continue
            await asyncio.sleep(_RENEW_PERIOD_S)

    def _next_call(self) -> Awaitable[GateReply]:
        if not self._attached:
            return self._policy.attach(self._attach)
        return self._policy.renew(Renew(model=self._attach.model, incarnation=self._attach.incarnation))

    async def _try(self, call: Awaitable[GateReply]) -> GateReply | None:
        try:
            return await asyncio.wait_for(call, _CALL_TIMEOUT_S)
        except Exception as error:  # Ray raises many types for a peer that is restarting
            log.debug("policy_unreachable", error=type(error).__name__)
            return None
