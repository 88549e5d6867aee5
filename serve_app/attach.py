"""Reaching the policy of a running server from another process: a notebook, a command."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serve_app import cluster
from serve_app.names import APP_NAME, NAMESPACE, POLICY

_TIMEOUT_S = 30.0


class NoServerError(Exception):
    """There is no running server to attach to; the message says where was looked."""


def policy_call(address: str, method: str, *arguments: object) -> Any:
    """Call one method of the running policy actor and return its answer. Raises NoServerError."""
    for name, value in cluster.environment(address).items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 - after its environment
    from ray import serve  # noqa: PLC0415

    try:
        if not ray.is_initialized():
            ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        handle = serve.get_deployment_handle(POLICY, APP_NAME)
    except Exception as error:  # Ray and Serve raise half a dozen types for "not there"
        raise NoServerError(f"no running server was found at Ray address {address!r}") from error
    # This process has no event loop of its own for the handle's router to run in.
    # Serve hands out the same handle again on a second call.
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    remote = getattr(handle.options(_by_reference=False), method)
    # A notebook's own thread runs an event loop, in which Serve refuses to wait.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: remote.remote(*arguments).result(timeout_s=_TIMEOUT_S)).result()
