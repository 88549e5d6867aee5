"""Puts what suits a CPU in the places of a loaded model, once, before anything hooks or taps it."""

import sys

import mlx.core as mx
from mlx import nn
from mlx_lm.models import activations, base

from engine.cpu.attention import scaled_dot_product_attention
from engine.cpu.compiled_layers import install_compiled_layers
from engine.cpu.eager_layers import install_eager_layers
from engine.cpu.exponential import swiglu
from engine.cpu.normalisation import install_compiled_norms
from engine.cpu.rotary import install_rotation_tables
from speculative.hooks import replace_function

# mlx-lm's function and what takes its place.
REPLACEMENTS = (
    (activations.swiglu, swiglu),
    (base.scaled_dot_product_attention, scaled_dot_product_attention),
)


def suit_cpu(model: nn.Module) -> None:
    """Makes `model` quick on a CPU, in place, when that is the default device; twice is once.

    The functions are names in mlx-lm's model modules, so other models of the same family use them too.
    """
    if mx.default_device().type != mx.DeviceType.cpu:
        return
    for name in {type(module).__module__ for module in model.modules()}:
        for original, replacement in REPLACEMENTS:
            replace_function(sys.modules[name], original, replacement)
    install_compiled_norms(model)
    install_rotation_tables(model)
    install_compiled_layers(model)
    install_eager_layers(model)
