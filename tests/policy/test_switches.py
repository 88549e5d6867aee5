"""The operator's switches: every legal spelling, and the refusal of everything else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.switches import BLOCK_SIZES, FLAG_NAMES, OFF, ON, SwitchError, Switches, cache_root, parse


def test_nothing_set_leaves_everything_to_the_policy() -> None:
    """Without switches the policy measures, nothing is pinned, and an inexact pairing is vetoed."""
    assert parse({}) == Switches()


@pytest.mark.parametrize("word", [*ON, "TRUE", "Yes", " on "])
def test_every_on_spelling_pins_the_burst_on(word: str) -> None:
    """The pins understand each on spelling in any case."""
    assert parse({"MLXCEL_ENABLE_MTP_B1": word}).pin is True
    assert parse({"MLXCEL_QMV_WIDE": word}).qmv_wide is True


@pytest.mark.parametrize("word", [*OFF, "FALSE", "False", "OFF", "No"])
def test_every_off_spelling_pins_the_burst_off(word: str) -> None:
    """The five spellings of old work in any case; `False` and `OFF` no longer mean on."""
    assert parse({"MLXCEL_ENABLE_MTP_B1": word}).pin is False
    assert parse({"MLXCEL_MTP_ADAPTIVE": word}).adaptive is False
    assert parse({"MLXCEL_QMV_WIDE": word}).qmv_wide is False


@pytest.mark.parametrize("name", FLAG_NAMES)
@pytest.mark.parametrize("word", ["", " ", "2", "enabled", "tru", "yess"])
def test_another_spelling_is_refused_with_the_legal_list(name: str, word: str) -> None:
    """A switch that is set but not understood is not guessed: not even an empty one."""
    with pytest.raises(SwitchError, match=name) as caught:
        parse({name: word})
    assert all(legal in str(caught.value) for legal in (*ON, *OFF))


def test_all_problems_are_told_at_once() -> None:
    """One start shows every refused switch."""
    with pytest.raises(SwitchError) as caught:
        parse({"MLXCEL_MTP_ADAPTIVE": "x", "MLXCEL_DRAFT_BLOCK_SIZE": "1", "MLXCEL_CACHE_DIR": ""})
    assert all(name in str(caught.value) for name in ("ADAPTIVE", "BLOCK_SIZE", "CACHE_DIR"))


def test_block_size_is_a_number_in_range_or_auto() -> None:
    """2 to 16 set K, `auto` leaves it to the policy, unset to the drafter."""
    assert [parse({"MLXCEL_DRAFT_BLOCK_SIZE": str(size)}).block_size for size in BLOCK_SIZES] == [
        *BLOCK_SIZES
    ]
    assert parse({"MLXCEL_DRAFT_BLOCK_SIZE": "Auto"}) == Switches(auto_block_size=True)


@pytest.mark.parametrize("text", ["", "1", "17", "-4", "4.0", "four", "9" * 5000, "\u0664"])
def test_an_impossible_block_size_is_refused(text: str) -> None:
    """Out of range or not a plain number: refused with the range."""
    with pytest.raises(SwitchError, match="2 to 16 and auto"):
        parse({"MLXCEL_DRAFT_BLOCK_SIZE": text})


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0.0), ("1", 1.0), (" 0.002 ", 0.002), (".5", 0.5), ("1.0", 1.0)]
)
def test_the_audit_share_is_a_number_from_none_to_all(text: str, share: float) -> None:
    """Plain decimals from 0 to 1; unset leaves the default."""
    assert parse({"MLXCEL_MTP_AUDIT_SHARE": text}).audit_share == share
    assert parse({}).audit_share is None


@pytest.mark.parametrize("text", ["", "1.01", "-0.1", "nan", "inf", "1e-3", "2%", "0,5", "1_0", "\u0661"])
def test_an_impossible_audit_share_is_refused(text: str) -> None:
    """Anything else is refused with the range."""
    with pytest.raises(SwitchError, match=r"MLXCEL_MTP_AUDIT_SHARE is .*; legal values are 0 \(none\) to 1"):
        parse({"MLXCEL_MTP_AUDIT_SHARE": text})


def test_the_cache_root_follows_the_switch_then_the_home_directory() -> None:
    """The switch wins, a home directory comes second, and without both nothing is persisted."""
    assert cache_root(Switches(cache_dir="/data/c"), "/home/u") == Path("/data/c")
    assert cache_root(Switches(), "/home/u") == Path("/home/u/.cache/mlxcel")
    assert cache_root(Switches(), None) is None
    assert cache_root(Switches(), "") is None


@given(st.text())
def test_any_text_either_means_something_or_is_refused(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        pin = parse({"MLXCEL_ENABLE_MTP_B1": text}).pin
    except SwitchError:
        pin = None
    assert (pin is None) == (text.strip().lower() not in {*ON, *OFF})
