"""The engine's settings; values only, checked once, never read from the environment here."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"
AUTO = "auto"
_BLOCK_SIZES = (AUTO, 0, *range(2, 17))


class EngineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one engine loads and runs its model.

    `model` is the embedded model's name (optionally with `-float32` or `-4bit`), a directory with an MLX
    checkpoint, or a hub id. `num_slots` sequences decode together. A prefill chunk is sized to about
    `prefill_chunk_s` seconds of work. `context_length` 0 keeps the model's own. `threads` 0 uses every core.

    `draft_model` is a folder with a drafter, `auto` for the one that comes with the model, or `none`;
    `draft_kind` settles what the folder does not say; `draft_block_size` 0 is the drafter's own,
    `auto` starts there and follows the policy's recommendation;
    `draft_bits` quantises the drafter at load, 0 leaves it as stored. With `draft_lookup` a round verifies
    what followed the same tokens earlier in the text, where there is such a place, instead of drafts.
    `draft_confidence_stop` ends a chain of drafts after one that the head holds for less likely than this
    (0: never).
    `allow_inexact` speculates although the exactness probe found a difference. `audit_share` of the
    speculative rounds (0 to 1) is decoded again token by token and compared; such rounds are not measured, so
    a large share leaves little to judge by.
    `qmv_wide`, set to either value, pins the kernels as MLX has them: the probe tries no other selection.
    """

    model: str = EMBEDDED_MODEL
    num_slots: int = 4
    prefill_chunk_s: float = 0.5
    context_length: int = 0
    threads: int = 0
    cache_root: str = ""
    prompt_cache_bytes: int = 512 * 1024 * 1024
    draft_model: str = "auto"
    draft_kind: Literal["auto", "mtp", "model"] = "auto"
    draft_block_size: int | str = 0
    draft_bits: int = 0
    draft_lookup: bool = True
    draft_confidence_stop: float = 0.0
    allow_inexact: bool = False
    audit_share: float = 0.002
    qmv_wide: bool | None = None

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError naming the value and the legal range."""
        if not 1 <= self.num_slots <= 256:
            raise ValueError(f"num_slots (--parallel) is {self.num_slots}, legal: 1 to 256")
        if not 0.01 <= self.prefill_chunk_s <= 60:
            raise ValueError(f"prefill_chunk_s is {self.prefill_chunk_s}, legal: 0.01 to 60")
        if self.context_length < 0:
            raise ValueError(
                f"context_length (--ctx-size) is {self.context_length}, legal: 0 (the model's own) or more"
            )
        if not 0 <= self.threads <= 1024:
            raise ValueError(f"threads is {self.threads}, legal: 0 (every core) to 1024")
        if self.draft_block_size not in _BLOCK_SIZES:
            raise ValueError(
                f"draft_block_size (--draft-block-size) is {self.draft_block_size!r}, "
                "legal: 2 to 16, 0 (the drafter's own) or auto"
            )
        if self.draft_bits not in (0, 2, 3, 4, 6, 8):
            raise ValueError(f"draft_bits is {self.draft_bits}, legal: 0 (as stored), 2, 3, 4, 6, 8")
        if not 0 <= self.draft_confidence_stop < 1:
            raise ValueError(
                f"draft_confidence_stop (--draft-confidence-stop) is {self.draft_confidence_stop}, "
                "legal: 0 (off) to below 1"
            )
        if not 0 <= self.audit_share <= 1:
            raise ValueError(f"audit_share (--audit-share) is {self.audit_share}, legal: 0 (none) to 1 (all)")
        if self.prompt_cache_bytes < 0:
            raise ValueError(f"prompt_cache_bytes is {self.prompt_cache_bytes}, legal: 0 (off) or more")

    @property
    def chooses_block_size(self) -> bool:
        """Whether the block size is left to what is measured."""
        return self.draft_block_size == AUTO

    @property
    def fixed_block_size(self) -> int:
        """The block size that was asked for, 0 for the drafter's own."""
        return 0 if isinstance(self.draft_block_size, str) else self.draft_block_size

    def cache_path(self) -> Path:
        """Folder for files derived once per machine."""
        return Path(self.cache_root) if self.cache_root else Path.home() / ".cache" / "mlxcel"
