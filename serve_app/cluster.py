"""Starting, joining and leaving Ray: environment, addresses and the order of shutting down.

Everything here runs in the driver process. Ray is imported late, because it reads its environment at import.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from serve_app.names import NAMESPACE

# What Ray needs to know before it is imported or started; a value the operator has set wins.
_COMMON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    # gRPC between replicas and one event loop per replica ...
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # ... but without its direct ingress, whose port moves after a crash.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    # ... and with the replicas' own output, which holds our logs, left alone.
    "RAY_SERVE_LOG_TO_STDERR": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# On one machine nothing listens beyond loopback, and nobody reads Ray's own metrics and task events: there is
# no dashboard. Collecting them takes a fifth of what Ray's processes cost when idle.
_LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
}
_JOINED = {"RAY_AUTH_MODE": "token"}


def environment(address: str | None) -> Mapping[str, str]:
    """Environment variables to set before Ray is imported, for a local start or for joining `address`.

    A Ray on this machine's loopback is found there only by those who keep to loopback as well.
    """
    if address is None:
        return _COMMON | _LOCAL
    is_local = address == "auto" or address.startswith(("127.", "localhost"))
    return _COMMON | _JOINED | (_LOCAL if is_local else {})


def connect(address: str | None) -> str:
    """Start a local Ray, or join the cluster at `address`; returns where others can join it.

    Raises ConnectionError when there is no cluster at `address`.
    """
    for name, value in environment(address).items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 - after its environment
    from ray import serve  # noqa: PLC0415

    common: dict[str, Any] = {"namespace": NAMESPACE, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, log_to_driver=True, **common)
    else:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=True,
            num_cpus=max(4, os.cpu_count() or 1),
            object_store_memory=100_000_000,
            **common,
        )
    _print_worker_logs_as_they_are()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        proxy_location="Disabled",
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    return ray.get_runtime_context().gcs_address


def _print_worker_logs_as_they_are() -> None:
    """Replace Ray's log printing, which puts a coloured prefix before every line, so that JSON stays JSON."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher  # noqa: PLC0415

    def print_lines(batch: dict[str, Any]) -> None:
        for line in batch["lines"]:
            if line.startswith("{"):
                sys.stderr.write(f"{line}\n")

    global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")
    global_worker_stdstream_dispatcher.add_handler("mtp_serve_logs", print_lines)


def disconnect() -> None:
    """Take the application down and leave Ray; a local Ray ends with it."""
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    serve.shutdown()
    ray.shutdown()
