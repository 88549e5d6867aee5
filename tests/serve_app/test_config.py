"""Ranges of the HTTP settings."""

from typing import Any

import msgspec
import pytest

from serve_app.config import HttpConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": ""}, "host must be"),
        ({"port": -1}, "port must be between 0 and 65535; got -1"),
        ({"port": 65536}, "port must be between 0 and 65535; got 65536"),
        ({"keep_alive_s": 0.0}, "keep_alive_s must be a positive number of seconds; got 0.0"),
        ({"keep_alive_s": float("nan")}, "keep_alive_s must be"),
        ({"max_body_bytes": 10}, "max_body_bytes must be at least 1024; got 10"),
        ({"loading_retry_s": 0}, "loading_retry_s must be at least 1; got 0"),
        ({"served_model_name": ""}, "must not be empty"),
        ({"model_aliases": ("a", "")}, "must not be empty"),
        ({"api_keys": ("ok", "")}, "api_keys must be"),
        ({"api_keys": ("two words",)}, "api_keys must be"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    """The message states the value, except a key's, and the legal range."""
    with pytest.raises(ValueError, match=message) as caught:
        HttpConfig(**changes)
    assert "two words" not in str(caught.value)


def test_unknown_settings_are_errors() -> None:
    """A misspelt key in a file is not ignored."""
    with pytest.raises(msgspec.ValidationError, match="prot"):
        msgspec.convert({"prot": 80}, HttpConfig)


def test_keys_are_never_shown() -> None:
    """Neither repr nor the form meant for logs holds a key; everything else is there."""
    config = HttpConfig(api_keys=("sk-secret",), port=81)
    assert "sk-secret" not in f"{config!r} {config} {config.public()}"
    assert config.public()["port"] == 81
    assert set(config.public()) == set(HttpConfig.__struct_fields__)
