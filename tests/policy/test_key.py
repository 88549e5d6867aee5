"""Keys: the original's published vectors, and what makes our own stems distinct."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.policy import Pairing
from policy.key import original_stem, original_text, stem

PAIRING = Pairing(target="target-model", drafter="drafter-model", hardware="M5-16c", block_size=4)


@pytest.mark.parametrize(
    ("pairing", "expected"),
    [
        (PAIRING, "4cc6cabfde7bd23f"),
        (
            Pairing(target="Gemma4-12B", drafter="Gemma4-12B-MTP", hardware="M5-16c", block_size=4),
            "39338dbb8cb767df",
        ),
    ],
)
def test_the_original_stem_reproduces_the_published_vectors(pairing: Pairing, expected: str) -> None:
    """Sixteen hex digits of SHA-256 of the key text."""
    assert original_stem(pairing) == expected


def test_the_key_text_names_all_four_fields() -> None:
    """Target, drafter, hardware and K; names that are missing have a fixed stand-in."""
    assert original_text(PAIRING) == "target-model|drafter-model|M5-16c|K4"
    nameless = Pairing(target="", drafter="", hardware="M5-16c", block_size=4)
    assert original_text(nameless) == "unknown-target|unknown-drafter|M5-16c|K4"


def test_our_stem_never_meets_the_original_file() -> None:
    """Even without a fingerprint the hashed text differs."""
    assert stem(PAIRING, "") != original_stem(PAIRING)


@pytest.mark.parametrize("change", [{"target": "x"}, {"drafter": "x"}, {"hardware": "x"}, {"block_size": 5}])
def test_every_part_of_the_pairing_changes_the_stem(change: dict[str, str | int]) -> None:
    """Another K, target, drafter or hardware label is another profile."""
    assert stem(msgspec.structs.replace(PAIRING, **change), "f") != stem(PAIRING, "f")


def test_requantised_weights_under_the_same_name_change_the_stem() -> None:
    """The original keyed on directory names alone; the fingerprint tells the contents apart."""
    assert stem(PAIRING, "q4") != stem(PAIRING, "q8")


@given(st.text(), st.text(), st.integers(2, 16), st.text())
def test_any_name_gives_a_plain_file_name(
    target: str, drafter: str, block_size: int, fingerprint: str
) -> None:
    """No name, however odd, escapes the directory."""
    pairing = Pairing(target=target, drafter=drafter, hardware="M5-16c", block_size=block_size)
    assert len(name := stem(pairing, fingerprint)) == 16
    assert set(name) <= set(string.hexdigits.lower())
