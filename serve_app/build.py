"""The one place that turns plain classes into Serve deployments and binds them together."""

import os
from collections.abc import Callable
from typing import Any, cast

from ray import serve
from ray.serve import Application

from configs.schema import Settings, merge
from serve_app import names
from serve_app.hosted import HostedIngress, HostedModel, HostedPolicy, HostedScheduler

_STREAMS_AND_SLACK = 64


def application(settings: Settings) -> Application:
    """The whole server as a Serve application: ingress, scheduler, model and policy."""
    # Serve queues what exceeds this limit, silently; the queue that fills up must be the scheduler's.
    ongoing = settings.scheduler.max_queue_depth + settings.engine.num_slots + _STREAMS_AND_SLACK
    scheduler = _bind(names.SCHEDULER, HostedScheduler, ongoing, settings.scheduler)
    policy = _bind(names.POLICY, HostedPolicy, ongoing, settings.policy, settings.switches)
    model = _bind(names.MODEL, HostedModel, ongoing, names.MODEL_NAME, settings.engine, scheduler, policy)
    return _bind(names.INGRESS, HostedIngress, ongoing, settings.http, model, scheduler, policy)


def from_args(args: dict[str, Any]) -> Application:
    """Application builder for Serve's own YAML files: `args` are the settings, as in a settings file.

    The environment of the building process decides what it decides for `mtp-serve serve`. Raises
    SettingsError for unknown keys and values out of range.
    """
    return application(merge(args, os.environ).settings)


def _bind(name: str, cls: Callable[..., object], ongoing: int, *args: object) -> Application:
    deployment = serve.deployment(
        cls,
        name=name,
        num_replicas=1,
        # The MLX thread takes every core it wants; Ray's CPU counting would only keep actors from starting.
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=ongoing,
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=2,
        graceful_shutdown_wait_loop_s=0.1,
    )
    # Serve's decorator types lose the class; this is the only cast around it.
    return cast(Any, deployment).bind(*args)
