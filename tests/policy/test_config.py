"""The policy's numbers refuse values outside their range and name the range."""

import math

import msgspec
import pytest

from policy.config import LEGAL_RANGES, PolicyConfig


@pytest.mark.parametrize("name", LEGAL_RANGES)
def test_a_number_outside_its_range_is_refused(name: str) -> None:
    """Each bound is checked, and the message names the field and its range."""
    low, high = LEGAL_RANGES[name]
    for value in (low - 1, math.nan, *([high + 1] if math.isfinite(high) else [])):
        with pytest.raises(ValueError, match=f"policy.{name} is .* legal range is"):
            PolicyConfig(**{name: value})


def test_thresholds_must_be_in_order() -> None:
    """A decline threshold above the enable threshold is refused."""
    with pytest.raises(ValueError, match=r"at most policy\.enable_threshold"):
        PolicyConfig(decline_threshold=1.6)


def test_an_unknown_name_is_refused() -> None:
    """A misspelt key in a file is an error, not a silent default."""
    with pytest.raises(msgspec.ValidationError, match="margn"):
        msgspec.json.decode(b'{"margn": 0.1}', type=PolicyConfig)


def test_ranges_hold_for_decoded_values() -> None:
    """A file cannot smuggle in what the constructor refuses."""
    with pytest.raises(msgspec.ValidationError, match="legal range"):
        msgspec.json.decode(b'{"margin": 9}', type=PolicyConfig)
