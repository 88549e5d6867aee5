"""Loading tensors into a head module: quantised shapes, load-time quantisation, clear errors.

Knows tensor names and shapes, no family and no file layout.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten


def read_tensors(path: Path) -> dict[str, mx.array]:
    """The tensors of one safetensors file by name, unevaluated."""
    loaded: Any = mx.load(str(path))
    return dict(loaded)


def read_folder(folder: Path) -> dict[str, mx.array]:
    """The tensors of every safetensors file in `folder`, unevaluated."""
    return {
        name: array
        for path in sorted(folder.glob("*.safetensors"))
        for name, array in read_tensors(path).items()
    }


def _quantisation(weight: mx.array, scales: mx.array, input_dims: int) -> dict[str, Any]:
    """Bits and group size of one packed tensor, from its shapes alone: 32-bit words hold the columns."""
    bits, group_size = weight.shape[-1] * 32 // input_dims, input_dims // scales.shape[-1]
    return {"bits": bits, "group_size": group_size}


def match_quantised(module: nn.Module, tensors: dict[str, mx.array]) -> None:
    """Replaces the layers whose tensors come with scales by quantised ones of the very same shapes.

    Per tensor rather than from a configuration, because published heads mix precisions.
    """

    def predicate(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        scales = tensors.get(f"{path}.scales")
        if scales is None or not hasattr(layer, "to_quantized"):
            return False
        return _quantisation(tensors[f"{path}.weight"], scales, layer["weight"].shape[-1])

    nn.quantize(module, class_predicate=predicate)


def load_module_weights(module: nn.Module, tensors: dict[str, mx.array]) -> None:
    """Loads every tensor into `module` and evaluates it.

    Raises ValueError listing missing, unexpected or ill-shaped tensors.
    """
    match_quantised(module, tensors)
    expected: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        raise ValueError(f"head tensors do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}")
    for name, wanted in expected.items():
        if tensors[name].shape != wanted.shape:
            raise ValueError(f"head tensor {name} has shape {tensors[name].shape}; expected {wanted.shape}")
    module.load_weights(list(tensors.items()))
    mx.eval(module.parameters())


def quantise_head(module: nn.Module, bits: int, group_size: int = 64) -> None:
    """Quantises the linear layers of a head in place (affine); only proposals can change, never the output.

    Layers whose input size the group does not divide stay as they are, and so do routers, whose errors would
    pick other experts.
    """
    if bits not in (2, 3, 4, 5, 6, 8):
        raise ValueError(f"head quantisation to {bits} bits; legal are 2, 3, 4, 5, 6 and 8")

    def predicate(path: str, layer: nn.Module) -> bool:
        router = path.endswith(("mlp.gate", "shared_expert_gate", "router.proj"))
        return hasattr(layer, "to_quantized") and not router and layer["weight"].shape[-1] % group_size == 0

    nn.quantize(module, group_size, bits, class_predicate=predicate)
