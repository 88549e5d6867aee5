"""Settings of the HTTP layer with their legal ranges; knows nothing of where they come from."""

import math

from msgspec import Struct

MIN_BODY_BYTES = 1024


class HttpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the ingress listens and what it accepts.

    `served_model_name` replaces the checkpoint's own name in responses, `model_aliases` are accepted besides
    it. `keep_alive_s` is the longest silence on an event stream, `loading_retry_s` the Retry-After while the
    model loads. Raises ValueError for values out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    served_model_name: str | None = None
    model_aliases: tuple[str, ...] = ()
    keep_alive_s: float = 15.0
    max_body_bytes: int = 2 * 1024 * 1024
    loading_retry_s: int = 2

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host must be a host name or address; got an empty string")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535; got {self.port}")
        if not (math.isfinite(self.keep_alive_s) and self.keep_alive_s > 0):
            raise ValueError(f"keep_alive_s must be a positive number of seconds; got {self.keep_alive_s}")
        if self.max_body_bytes < MIN_BODY_BYTES:
            raise ValueError(f"max_body_bytes must be at least {MIN_BODY_BYTES}; got {self.max_body_bytes}")
        if self.loading_retry_s < 1:
            raise ValueError(f"loading_retry_s must be at least 1; got {self.loading_retry_s}")
        if self.served_model_name == "" or "" in self.model_aliases:
            raise ValueError("served_model_name and model_aliases must not be empty strings")
        # The message cannot quote the offending key: it may be a real one.
        if not all(is_valid_key(key) for key in self.api_keys):
            raise ValueError("api_keys must be non-empty printable ASCII without spaces")

    def __repr__(self) -> str:
        return f"HttpConfig({', '.join(f'{name}={value!r}' for name, value in self.public().items())})"

    def public(self) -> dict[str, object]:
        """All settings with the keys reduced to their number: the only form fit for a log."""
        shown: dict[str, object] = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["api_keys"] = f"<{len(self.api_keys)} hidden>"
        return shown


def is_valid_key(key: str) -> bool:
    """Whether a key can travel in an Authorization header: printable ASCII, no spaces, not empty."""
    return bool(key) and all("!" <= char <= "~" for char in key)
