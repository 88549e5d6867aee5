"""The drafter over a generic MTP head. Knows the head's files and the chained drafter, nothing else."""

from pathlib import Path

import mlx.core as mx

from speculative.chained_head import ChainedHeadDrafter, HeadTraits
from speculative.compiled_head import CompiledHead
from speculative.generic_head import HeadFiles, load_generic_head
from speculative.head_weights import quantise_head


def generic_drafter(files: HeadFiles) -> ChainedHeadDrafter:
    """A drafter over a generic head that is in memory and does not change any more."""
    config = files.config
    traits = HeadTraits(
        name="the generic MTP head",
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        block_size=config.block_size,
        tap_layers=config.tap_layers,
    )
    return ChainedHeadDrafter(CompiledHead(files.head), traits, files.draft_vocab)


def load_generic_drafter(folder: Path, dtype: mx.Dtype, bits: int | None = None) -> ChainedHeadDrafter:
    """Loads a generic head, quantising its layers to `bits` when given; errors as `load_generic_head`.

    Weights are stored in half precision and computed in `dtype`, the target's: mixing the two converts every
    weight at every step.
    """
    files = load_generic_head(folder)
    files.head.set_dtype(dtype)
    if bits is not None:
        quantise_head(files.head, bits)
    return generic_drafter(files)
