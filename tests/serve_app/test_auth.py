"""API keys: files, comparison, secrecy."""

from pathlib import Path

import pytest

from serve_app.auth import KeyRing, authorise, read_api_key_file
from serve_app.errors import ClientError


@pytest.mark.parametrize("credentials", [b"Bearer second", b"bearer second", b"Bearer  second "])
def test_any_configured_key_opens(credentials: bytes) -> None:
    """The scheme's case and stray spaces do not matter; the fairness key says which key it was."""
    assert authorise(KeyRing(("first", "second")), "/v1/models", credentials, "10.0.0.1") == "key:1"


@pytest.mark.parametrize(
    "credentials",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic first", b"first", b"Bearer firs"],
)
def test_missing_and_wrong_keys_get_the_same_answer(credentials: bytes | None) -> None:
    """A caller cannot tell a malformed header from a wrong key."""
    with pytest.raises(ClientError) as caught:
        authorise(KeyRing(("first",)), "/v1/models", credentials, "10.0.0.1")
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert dict(caught.value.headers) == {"www-authenticate": "Bearer"}
    assert "wrong" not in caught.value.message


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_needs_no_key(path: str) -> None:
    """Load balancers hold no keys."""
    assert authorise(KeyRing(("first",)), path, None, "10.0.0.1") == "addr:10.0.0.1"


def test_without_keys_callers_are_told_apart_by_address() -> None:
    """Fairness then is per host."""
    assert authorise(KeyRing(()), "/v1/models", b"Bearer anything", "10.0.0.1") == "addr:10.0.0.1"


def test_a_key_ring_does_not_show_its_keys() -> None:
    """Neither repr nor attributes hold the text of a key."""
    ring = KeyRing(("sk-secret",))
    assert "sk-secret" not in repr(ring)
    assert "sk-secret" not in repr(vars(ring))


def test_a_key_file_holds_one_key_per_line(tmp_path: Path) -> None:
    """Blank lines, comments and surrounding spaces are skipped."""
    path = tmp_path / "keys"
    path.write_text("# team a\nsk-one\n\n   sk-two#x  \n")
    assert read_api_key_file(path) == ("sk-one", "sk-two#x")


def test_a_bad_key_is_named_by_line_only(tmp_path: Path) -> None:
    """The message helps without repeating the secret."""
    path = tmp_path / "keys"
    path.write_text("sk-one\nsk with space\n")
    with pytest.raises(ValueError, match="line 2") as caught:
        read_api_key_file(path)
    assert "sk with" not in str(caught.value)


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    """It would leave the server open by accident."""
    path = tmp_path / "keys"
    path.write_text("# nothing yet\n")
    with pytest.raises(ValueError, match="no API key found"):
        read_api_key_file(path)
