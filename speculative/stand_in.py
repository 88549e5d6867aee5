"""A module in another's place: what it does not do itself, the module it holds does. Knows no model."""

from typing import Any

from mlx import nn


class StandIn(nn.Module):
    """Stands where `inner` stood, and reads as `inner` wherever it has nothing of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, key: str) -> Any:
        if "inner" not in self:
            raise AttributeError(key)
        return self["inner"] if key == "inner" else getattr(self["inner"], key)
