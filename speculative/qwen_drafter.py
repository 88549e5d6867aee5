"""The drafter over a Qwen MTP head: loads it from any layout and reads its norms the right way.

Knows the head, its layouts and the chained drafter, nothing of rounds.
"""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from speculative.chained_head import ChainedHeadDrafter, HeadTraits
from speculative.contract import Contract, probe_contracts, sample_text
from speculative.head_weights import load_module_weights, quantise_head
from speculative.qwen_head import QwenHead, QwenHeadConfig, head_config, head_tensors, shift_norms
from speculative.qwen_layouts import find_head
from speculative.target import Target

# Enough to tell a right reading (0.7 and more) from a wrong one (0.4 and less).
PROBE_TOKENS = 128


def _traits(config: QwenHeadConfig, tap_layers: tuple[int, ...] = ()) -> HeadTraits:
    return HeadTraits(
        name="the Qwen MTP head",
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        block_size=config.block_size,
        tap_layers=tap_layers,
    )


def qwen_drafter(
    head: QwenHead, config: QwenHeadConfig, tap_layers: tuple[int, ...] = ()
) -> ChainedHeadDrafter:
    """A drafter over a head that is already in memory; `tap_layers` as in `Target.tap`, one layer at most."""
    if len(tap_layers) > 1:
        raise ValueError(f"tap_layers is {tap_layers}; a Qwen head reads 1 hidden")
    return ChainedHeadDrafter(head, _traits(config, tap_layers))


def build_head(
    config: QwenHeadConfig, tensors: dict[str, mx.array], dtype: mx.Dtype, *, norm_shift: bool
) -> QwenHead:
    """A head computing in `dtype` from published tensors without prefix.

    Raises ValueError when configuration and tensors disagree.
    """
    head = QwenHead(config)
    named = head_tensors(tensors)
    load_module_weights(head, shift_norms(named) if norm_shift else named)
    head.set_dtype(dtype)
    return head


def load_qwen_drafter(folder: Path, target: Target, bits: int | None = None) -> ChainedHeadDrafter:
    """The head in `folder`, read for `target` and quantised to `bits` when given; not bound yet.

    Where the files do not tell whether the norms are zero-centred, agreement with the target decides.
    Raises ValueError when head and target or configuration and tensors disagree.
    """
    settings = json.loads((folder / "config.json").read_text())
    config = head_config(settings)
    source = find_head(folder, settings)

    def build(contract: Contract) -> QwenHead:
        return build_head(config, source.tensors, target.dtype, norm_shift=contract.norm_shift)

    if source.zero_centred is None:
        head = build(_agreeing_contract(target, config, build))
    else:
        head = build(Contract(norm_shift=source.zero_centred))
    if bits is not None:
        quantise_head(head, bits)
    return qwen_drafter(head, config)


def _agreeing_contract(
    target: Target, config: QwenHeadConfig, build: Callable[[Contract], QwenHead]
) -> Contract:
    plain, shifted = Contract(), Contract(norm_shift=True)
    if reason := qwen_drafter(build(plain), config).why_incompatible(target):
        raise ValueError(reason)
    tokens = sample_text(target, PROBE_TOKENS)
    return probe_contracts(target, build, [plain, shifted], tokens).best.contract
