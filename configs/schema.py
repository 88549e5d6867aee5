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
from policy.switches import SwitchError, Switches, parse
from serve_app.config import HttpConfig

Source = Literal["default", "file", "env", "flag"]

# Which dotted settings each environment name decides.
_DECIDED_BY = {
    "MLXCEL_ENABLE_MTP_B1": ("switches.pin",),
    "MLXCEL_MTP_ADAPTIVE": ("switches.adaptive",),
    "MLXCEL_MTP_ALLOW_INEXACT": ("switches.allow_inexact", "engine.allow_inexact"),
    "MLXCEL_QMV_WIDE": ("switches.qmv_wide", "engine.qmv_wide"),
    "MLXCEL_MTP_AUDIT_SHARE": ("switches.audit_share", "engine.audit_share"),
    "MLXCEL_DRAFT_BLOCK_SIZE": ("switches.block_size", "switches.auto_block_size", "engine.draft_block_size"),
    "MLXCEL_DRAFT_KIND": ("engine.draft_kind",),
    "LLAMA_ARG_SPEC_DRAFT_MODEL": ("engine.draft_model",),
    "MLXCEL_CACHE_DIR": ("switches.cache_dir", "engine.cache_root"),
}


# Names that begin so are meant for a server like this one, whether it reads them or not.
_PREFIXES = ("MLXCEL_", "METRALE_")


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a server is started with."""

    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    http: HttpConfig = HttpConfig()
    policy: PolicyConfig = PolicyConfig()
    switches: Switches = Switches()


class Effective(Struct, frozen=True):
    """Settings in force and the source of every value that is not a default, by dotted name.

    `unread` are names of the environment that look meant for the server and decide nothing: misspelt ones,
    and switches of features it does not have.
    """

    settings: Settings
    sources: dict[str, Source]
    unread: tuple[str, ...] = ()


class SettingsError(Exception):
    """A setting is unknown or out of range; the message names it and what is legal."""


def resolve(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Effective:
    """Merge defaults, a settings file, environment and flags, later ones winning. Raises SettingsError."""
    return merge(_read(file) if file else {}, environment, flags)


def merge(
    sections: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> Effective:
    """As `resolve`, with the file's content given as nested mappings.

    `flags` maps dotted names to values, None meaning "not given".
    """
    layers: list[tuple[Source, dict[str, object]]] = [
        ("file", _flatten(sections)),
        ("env", from_environment(environment)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]
    merged: dict[str, dict[str, object]] = {}
    sources: dict[str, Source] = {}
    for source, layer in layers:
        for name, value in layer.items():
            section, _, key = name.partition(".")
            merged.setdefault(section, {})[key] = value
            sources[name] = source
    unread = sorted(name for name in environment if name.startswith(_PREFIXES) and name not in _DECIDED_BY)
    try:
        return Effective(msgspec.convert(merged, Settings), sources, tuple(unread))
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from error


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Settings decided by the environment, by dotted name. Raises SettingsError for a spelling not known."""
    try:
        switches = parse(environment)
    except SwitchError as error:
        raise SettingsError(str(error)) from error
    values: dict[str, object] = {
        f"switches.{name}": getattr(switches, name) for name in switches.__struct_fields__
    }
    values["engine.cache_root"] = switches.cache_dir
    values["engine.allow_inexact"] = switches.allow_inexact
    values["engine.qmv_wide"] = switches.qmv_wide
    values["engine.audit_share"] = switches.audit_share
    values["engine.draft_block_size"] = "auto" if switches.auto_block_size else switches.block_size or 0
    values["engine.draft_kind"] = environment.get("MLXCEL_DRAFT_KIND")
    values["engine.draft_model"] = environment.get("LLAMA_ARG_SPEC_DRAFT_MODEL")
    return {name: values[name] for env, names in _DECIDED_BY.items() if env in environment for name in names}


def _read(file: Path) -> Any:
    try:
        data = msgspec.yaml.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"cannot read the settings file {file}: {error}") from error
    return {} if data is None else data


def _flatten(sections: Mapping[str, Any]) -> dict[str, object]:
    known = ", ".join(Settings.__struct_fields__)
    flat: dict[str, object] = {}
    for section, values in _as_mapping(sections, f"settings must be sections ({known})").items():
        named = _as_mapping(values, f"section {section!r} must hold settings by name")
        flat |= {f"{section}.{key}": value for key, value in named.items()}
    return flat


def _as_mapping(value: object, complaint: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{complaint}; got {value!r}")
    return value
