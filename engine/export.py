"""Writes the embedded model as an ordinary checkpoint directory, for programs that read nothing else.

Owns what such a directory holds; knows neither who reads it nor where it should lie.
"""

import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import save_config, save_model

from engine import embedded


def export_embedded(target: Path, weights: embedded.Weights) -> Path:
    """Write the embedded model to `target` unless it is already there; returns `target`.

    The directory gets config.json, model.safetensors (float32, or the file's 4-bit groups) with its index,
    and the tokenizer files. It appears whole or not at all. Raises ModelLoadError when the model is not
    installed.
    """
    if not (target / "config.json").exists():
        model, files, config = embedded.load(weights)
        write_checkpoint(target, model, files, config)
    return target


def write_checkpoint(target: Path, model: nn.Module, files: dict[str, bytes], config: dict[str, Any]) -> None:
    """Write a model, its tokenizer files by name and its configuration as a checkpoint that mlx-lm loads."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mx.eval(model.parameters())
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        save_model(folder, model)
        save_config(config | _quantization(model), folder / "config.json")
        for name, content in files.items():
            (folder / name).write_bytes(content)
        try:
            # Renaming is atomic, so a reader never meets half a checkpoint.
            folder.rename(target)
        except OSError:
            # Another process may have finished first; anything else in the way is an error.
            if not (target / "config.json").exists():
                raise


def _quantization(model: nn.Module) -> dict[str, Any]:
    """The `quantization` entry of config.json: the most common form, and every layer that differs from it."""
    layers = {
        path: {"group_size": module.group_size, "bits": module.bits}
        for path, module in model.named_modules()
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)
    }
    if not layers:
        return {}
    forms = list(layers.values())
    common = max(forms, key=forms.count)
    return {"quantization": {**common, **{path: form for path, form in layers.items() if form != common}}}
