"""Waits until a server knows whether it can speculate, and says why it cannot. Asks nothing of the model."""

import time
from collections.abc import Callable, Mapping

from bench.client import Client
from bench.errors import BenchError

# The exactness probe runs while the server is idle, on a slow machine for minutes.
PATIENCE_S: Mapping[str, float] = {"worker_not_ready": 20.0, "exactness_pending": 900.0}
_PERIOD_S = 0.5
_CANNOT_SPECULATE: Mapping[str, str] = {
    "no_mtp_dispatch": "it has no drafter (policy state unavailable, reason no_mtp_dispatch), so there is "
    "nothing to compare; give it one",
    "worker_not_ready": "its model is not ready yet; try again when it is",
    "exactness_pending": "its exactness probe has not finished yet; leave it idle for a while and try again",
}


def wait_for_drafter(
    client: Client, check: Callable[[], None], patience_s: Mapping[str, float] = PATIENCE_S
) -> None:
    """Return once requests can speculate; `patience_s` says how long to wait for each reason that may pass.

    `check` is called each time and may raise. Raises BenchError when the server cannot speculate.
    """
    started = time.monotonic()
    while (reason := client.policy()["reason"] or "") in patience_s:
        check()
        if time.monotonic() - started >= patience_s[reason]:
            break
        time.sleep(_PERIOD_S)
    require_drafter(client)


def require_drafter(client: Client) -> None:
    """Raise BenchError when the server's policy says that no request can speculate."""
    policy = client.policy()
    if (why := _CANNOT_SPECULATE.get(policy["reason"] or "")) is not None:
        raise BenchError(f"the server at {client.url} cannot speculate: {why}")
    if policy["state"] == "exactness_declined" and not policy["mtp_enabled"]:
        raise BenchError(
            f"the server at {client.url} cannot speculate: its exactness probe vetoed the pairing "
            f"({policy['decline_detail']})"
        )
