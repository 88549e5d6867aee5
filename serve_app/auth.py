"""Bearer keys: reading them from a file and comparing them in constant time. Never logs or shows one."""

import hashlib
import hmac
from pathlib import Path

from serve_app.config import is_valid_key
from serve_app.errors import ClientError

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})


class KeyRing:
    """The accepted API keys, held as digests. An empty ring lets everybody in."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __repr__(self) -> str:
        return f"KeyRing(<{len(self._digests)} hidden>)"

    @property
    def is_open(self) -> bool:
        """Whether no key is configured."""
        return not self._digests

    def find(self, key: bytes) -> int | None:
        """Index of a key, or None. Compares with every key: timing tells neither position nor length."""
        wanted = _digest(key)
        found: int | None = None
        for index, digest in enumerate(self._digests):
            if hmac.compare_digest(wanted, digest):
                found = index
        return found


def authorise(ring: KeyRing, path: str, authorization: bytes | None, peer: str) -> str:
    """The opaque fairness key of a caller: its key's index, or its address where no key is needed.

    Raises ClientError 401 where a key is needed; a missing and a wrong key get the same answer.
    """
    if ring.is_open or path in PUBLIC_PATHS:
        return f"addr:{peer}"
    scheme, _, credentials = (authorization or b"").partition(b" ")
    index = ring.find(credentials.strip())
    if scheme.lower() != b"bearer" or index is None:
        raise ClientError(
            "A valid API key is needed: send it as 'Authorization: Bearer <key>'.",
            status=401,
            code="invalid_api_key",
            headers=(("www-authenticate", "Bearer"),),
        )
    return f"key:{index}"


def read_api_key_file(path: Path) -> tuple[str, ...]:
    """Keys of a file, one per line; blank lines and lines starting with '#' are skipped.

    Raises OSError for an unreadable file and ValueError, naming the line but not its text, for a bad key.
    """
    keys: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not is_valid_key(key):
            raise ValueError(f"{path}, line {number}: a key must be printable ASCII without spaces")
        keys.append(key)
    if not keys:
        raise ValueError(f"{path}: no API key found; expected one per line")
    return tuple(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
