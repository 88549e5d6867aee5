"""Where settings come from, what decides them, and how a bad one ends."""

import pytest
from typer.testing import CliRunner

from configs.schema import SettingsError, merge
from serve_app.cli import app


@pytest.mark.parametrize(("word", "pinned"), [("1", True), ("off", False)])
def test_the_kernel_pin_reaches_the_engine(word: str, pinned: bool) -> None:
    """Either value of MLXCEL_QMV_WIDE pins; the source is told."""
    effective = merge({}, {"MLXCEL_QMV_WIDE": word})
    assert effective.settings.engine.qmv_wide is pinned
    assert effective.sources["engine.qmv_wide"] == "env"
    assert merge({}, {}).settings.engine.qmv_wide is None


def test_the_audit_share_comes_from_file_environment_and_flag() -> None:
    """Later ones win; without any the default is a small share."""
    file = {"engine": {"audit_share": 0.5}}
    environment = {"MLXCEL_MTP_AUDIT_SHARE": "0.25"}
    assert 0 < merge({}, {}).settings.engine.audit_share < 0.01
    assert merge(file, {}).settings.engine.audit_share == 0.5
    assert merge(file, environment).settings.engine.audit_share == 0.25
    assert merge(file, environment, {"engine.audit_share": 0.0}).settings.engine.audit_share == 0.0


@pytest.mark.parametrize(
    ("name", "text", "decided"),
    [
        ("MLXCEL_ENABLE_MTP_B1", "0", {"switches.pin": False}),
        ("MLXCEL_MTP_ADAPTIVE", "FALSE", {"switches.adaptive": False}),
        (
            "MLXCEL_MTP_ALLOW_INEXACT",
            "on",
            {"switches.allow_inexact": True, "engine.allow_inexact": True},
        ),
        ("MLXCEL_DRAFT_BLOCK_SIZE", "5", {"switches.block_size": 5, "engine.draft_block_size": 5}),
        ("MLXCEL_DRAFT_BLOCK_SIZE", "auto", {"engine.draft_block_size": "auto"}),
        ("MLXCEL_DRAFT_KIND", "mtp", {"engine.draft_kind": "mtp"}),
        ("LLAMA_ARG_SPEC_DRAFT_MODEL", "/a/head", {"engine.draft_model": "/a/head"}),
        ("MLXCEL_CACHE_DIR", "/c", {"switches.cache_dir": "/c", "engine.cache_root": "/c"}),
    ],
)
def test_every_name_of_the_environment_reaches_what_it_decides(
    name: str, text: str, decided: dict[str, object]
) -> None:
    """Policy and engine alike; the source is told, and a flag still wins."""
    effective = merge({}, {name: text})
    for dotted, value in decided.items():
        section, _, key = dotted.partition(".")
        assert getattr(getattr(effective.settings, section), key) == value
        assert effective.sources[dotted] == "env"
    flagged = merge({}, {name: text}, {"engine.draft_model": "none", "engine.draft_block_size": 3})
    assert (flagged.settings.engine.draft_model, flagged.settings.engine.draft_block_size) == ("none", 3)


def test_names_that_decide_nothing_are_told_apart() -> None:
    """A misspelt switch and one of a feature that is not there; other programs' names are not looked at."""
    environment = {
        "MLXCEL_MTP_TREE": "1",
        "MLXCEL_MTP_ADPATIVE": "0",
        "MLXCEL_MTP_ADAPTIVE": "0",
        "PATH": "/",
    }
    assert merge({}, environment).unread == ("MLXCEL_MTP_ADPATIVE", "MLXCEL_MTP_TREE")


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_out_of_range_is_named(share: float) -> None:
    """The message states value and range."""
    with pytest.raises(
        SettingsError, match=r"audit_share \(--audit-share\) is .*, legal: 0 \(none\) to 1 \(all\)"
    ):
        merge({}, {}, {"engine.audit_share": share})


@pytest.mark.parametrize(("name", "text"), [("MLXCEL_QMV_WIDE", "wide"), ("MLXCEL_MTP_AUDIT_SHARE", "2")])
def test_a_switch_that_is_not_understood_ends_the_start(name: str, text: str) -> None:
    """Exit code 2 and one sentence with the legal values."""
    result = CliRunner().invoke(app, ["generate", "hello"], env={name: text})
    assert result.exit_code == 2
    assert f"{name} is '{text}'; legal values are " in result.output
