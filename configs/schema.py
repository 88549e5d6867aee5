"""The server's settings, composed from each package's own, and where each value came from.

Owns merging of file, environment and flags in that order; reads the environment only through the mapping it
is given.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from actors.config import SchedulerConfig
from engine.config import EngineConfig
from policy.config import PolicyConfig
from serve_app.config import HttpConfig

Source = Literal["default", "file", "env", "flag"]

# Environment name -> dotted setting.
ENVIRONMENT = {"MLXCEL_CACHE_DIR": "engine.cache_root"}


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a server is started with."""

    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    http: HttpConfig = HttpConfig()
    policy: PolicyConfig = PolicyConfig()


class Effective(Struct, frozen=True):
    """Settings in force and the source of every value that is not a default, by dotted name."""

    settings: Settings
    sources: dict[str, Source]


class SettingsError(Exception):
    """A setting is unknown or out of range; the message names it and what is legal."""


def resolve(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Effective:
    """Merge defaults, file, environment and flags; later ones win.

    `flags` maps dotted names to values, None meaning "not given". Raises SettingsError.
    """
    merged: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    layers: list[tuple[Source, dict[str, object]]] = [
        ("file", _flatten(_read(file)) if file else {}),
        ("env", {name: environment[env] for env, name in ENVIRONMENT.items() if environment.get(env)}),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ]
    for source, layer in layers:
        for name, value in layer.items():
            section, _, key = name.partition(".")
            merged.setdefault(section, {})[key] = value
            sources[name] = source
    try:
        return Effective(msgspec.convert(merged, Settings), sources)
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        data = msgspec.yaml.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"cannot read the settings file {file}: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(section, dict) for section in data.values()):
        raise SettingsError(
            f"{file} must hold sections ({', '.join(Settings.__struct_fields__)}) of settings"
        )
    return data


def _flatten(data: dict[str, Any]) -> dict[str, object]:
    return {f"{section}.{key}": value for section, values in data.items() for key, value in values.items()}
