"""The actors as Serve hosts them: logging set up first, handles wrapped as the ports they expect."""

import os

from ray.serve.handle import DeploymentHandle

from actors.config import SchedulerConfig
from actors.model_actor import ModelActor
from actors.policy_actor import PolicyActor
from actors.ports import RemotePolicy, RemoteScheduler
from actors.scheduler_actor import SchedulerActor
from engine.config import EngineConfig
from policy.config import PolicyConfig
from policy.switches import Switches, cache_root
from serve_app.config import HttpConfig
from serve_app.ingress import Ingress
from serve_app.logs import configure_logging
from serve_app.ray_backend import RayBackend


class HostedScheduler(SchedulerActor):
    """The scheduler in its replica."""

    def __init__(self, config: SchedulerConfig) -> None:
        configure_logging()
        super().__init__(config)


class HostedPolicy(PolicyActor):
    """The policy in its replica."""

    def __init__(self, config: PolicyConfig, switches: Switches) -> None:
        configure_logging()
        super().__init__(config, switches, cache_root(switches, os.environ.get("HOME")))


class HostedModel(ModelActor):
    """A model in its replica."""

    def __init__(
        self, name: str, config: EngineConfig, scheduler: DeploymentHandle, policy: DeploymentHandle
    ) -> None:
        configure_logging()
        super().__init__(name, config, RemoteScheduler(scheduler), RemotePolicy(policy))


class HostedIngress(Ingress):
    """An ingress in its replica."""

    def __init__(
        self,
        config: HttpConfig,
        model: DeploymentHandle,
        scheduler: DeploymentHandle,
        policy: DeploymentHandle,
    ) -> None:
        configure_logging()
        super().__init__(config, RayBackend(model, scheduler, policy))
