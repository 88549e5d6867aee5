"""Names a pairing: the original's key text and file stem, and this server's own stem, which also covers
the fingerprint and therefore never meets another program's file."""

import hashlib

from messages.policy import Pairing

_OWN_PREFIX = "mtp-serve/policy"


def original_text(pairing: Pairing) -> str:
    """`target|drafter|hardware|K4`."""
    target = pairing.target or "unknown-target"
    drafter = pairing.drafter or "unknown-drafter"
    return f"{target}|{drafter}|{pairing.hardware}|K{pairing.block_size}"


def original_stem(pairing: Pairing) -> str:
    """The first 8 bytes of SHA-256 of the original key text, as 16 lower-case hex digits."""
    return _stem(original_text(pairing))


def stem(pairing: Pairing, fingerprint: str) -> str:
    """The file stem of this server's verdicts, and the key under which the policy holds a pairing."""
    return _stem(f"{_OWN_PREFIX}|{original_text(pairing)}|{fingerprint}")


def _stem(text: str) -> str:
    return hashlib.sha256(text.encode()).digest()[:8].hex()
