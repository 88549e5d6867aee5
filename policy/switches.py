"""Parses the operator's switches from a mapping of names to texts; it never looks at the environment itself.

Spellings are strict on purpose: a switch that is set but not understood stops the start.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")
BLOCK_SIZES = range(2, 17)
FLAG_NAMES = (
    "MLXCEL_ENABLE_MTP_B1",
    "MLXCEL_MTP_ADAPTIVE",
    "MLXCEL_MTP_ALLOW_INEXACT",
    "MLXCEL_QMV_WIDE",
)


class SwitchError(ValueError):
    """One or more switches have a value that is not understood; the message lists the legal ones."""


class Switches(Struct, frozen=True, kw_only=True):
    """What the operator pinned.

    pin: True or False fixes the burst on or off, None leaves it to the policy. adaptive: False measures and
    persists nothing. allow_inexact: speculate although the probe found a byte difference. qmv_wide: not None
    pins the matrix kernels, so the probe may not try others. audit_share: of rounds to re-check, None for the
    default. cache_dir: root of persisted verdicts. block_size: the K to use, None for the drafter's own,
    `auto_block_size` for the policy's choice.
    """

    pin: bool | None = None
    adaptive: bool = True
    allow_inexact: bool = False
    qmv_wide: bool | None = None
    audit_share: float | None = None
    cache_dir: str | None = None
    block_size: int | None = None
    auto_block_size: bool = False


def parse(values: Mapping[str, str]) -> Switches:
    """Read the switches out of `values`; raises SwitchError listing everything that is not understood."""
    problems: list[str] = []
    pin, adaptive, allow_inexact, qmv_wide = (_flag(name, values.get(name), problems) for name in FLAG_NAMES)
    block_text = values.get("MLXCEL_DRAFT_BLOCK_SIZE")
    cache_dir = values.get("MLXCEL_CACHE_DIR")
    if cache_dir is not None and not cache_dir.strip():
        problems.append("MLXCEL_CACHE_DIR is empty; set it to a directory or unset it")
    block_size = _block_size(block_text, problems)
    audit_share = _share("MLXCEL_MTP_AUDIT_SHARE", values.get("MLXCEL_MTP_AUDIT_SHARE"), problems)
    if problems:
        raise SwitchError("; ".join(problems))
    return Switches(
        pin=pin,
        adaptive=adaptive is not False,
        allow_inexact=allow_inexact is True,
        qmv_wide=qmv_wide,
        audit_share=audit_share,
        cache_dir=cache_dir,
        block_size=block_size,
        auto_block_size=_is_auto(block_text),
    )


def cache_root(switches: Switches, home: str | None) -> Path | None:
    """The directory that holds persisted state, or None when neither a switch nor a home directory says."""
    if switches.cache_dir is not None:
        return Path(switches.cache_dir)
    return Path(home) / ".cache" / "mlxcel" if home else None


def _flag(name: str, text: str | None, problems: list[str]) -> bool | None:
    if text is None:
        return None
    word = text.strip().lower()
    if word in ON or word in OFF:
        return word in ON
    problems.append(f"{name} is {text!r}; legal values are {', '.join(ON)} (on), {', '.join(OFF)} (off)")
    return None


def _share(name: str, text: str | None, problems: list[str]) -> float | None:
    if text is None:
        return None
    # Plain decimals only: `float` would also read 1_0, 1e-3, inf and nan.
    if re.fullmatch(r"[0-9]*\.?[0-9]+", text.strip(), re.ASCII) and (share := float(text)) <= 1:
        return share
    problems.append(f"{name} is {text!r}; legal values are 0 (none) to 1 (all), for example 0.002")
    return None


def _is_auto(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "auto"


def _block_size(text: str | None, problems: list[str]) -> int | None:
    if text is None or _is_auto(text):
        return None
    number = text.strip()
    if number in {str(size) for size in BLOCK_SIZES}:
        return int(number)
    problems.append(
        f"MLXCEL_DRAFT_BLOCK_SIZE is {text!r}; "
        f"legal values are {BLOCK_SIZES.start} to {BLOCK_SIZES.stop - 1} and auto"
    )
    return None
