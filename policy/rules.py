"""The fixed facts every decision about one pairing rests on: configuration, switches, and what was loaded."""

from msgspec import Struct

from messages.policy import MtpDispatch
from policy.config import PolicyConfig
from policy.hardware import apple_generation, static_default
from policy.switches import Switches


class Rules(Struct, frozen=True, kw_only=True):
    """Configuration and switches of the server together with the dispatch of one pairing."""

    config: PolicyConfig
    switches: Switches
    dispatch: MtpDispatch

    @property
    def static_default(self) -> bool:
        """What the per-hardware table says about this pairing."""
        return static_default(self.dispatch.pairing.hardware, self.dispatch.target_can_batch)

    @property
    def is_apple(self) -> bool:
        """Whether the pairing runs on Apple silicon."""
        return apple_generation(self.dispatch.pairing.hardware) is not None

    @property
    def block_size(self) -> int:
        """K of the pairing."""
        return self.dispatch.pairing.block_size


def measurement_rule(config: PolicyConfig) -> str:
    """Names the rule a verdict was reached by; a persisted verdict of another rule is measured again."""
    if config.estimator == "paired":
        spread = f"{config.request_spread:g}x{config.request_spread_weight}"
        return f"paired/2 margin={config.margin:g} confidence={config.confidence:g} spread={spread}"
    return f"{config.estimator}/1 decline={config.decline_threshold:g} enable={config.enable_threshold:g}"
