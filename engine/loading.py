"""Turns a model name into weights, tokenizer and facts, on the thread that will run them.

Owns the three sources (embedded, directory, hub id) and their error sentences; knows no requests.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, load_model
from msgspec import Struct
from tokenizers import Tokenizer

from engine import embedded
from engine.blas import Blas
from engine.config import EMBEDDED_MODEL, EngineConfig
from engine.device import DeviceFacts, detect
from engine.errors import ModelLoadError
from messages.model import ModelCard
from speculative.inkling_model import Model as InklingModel
from speculative.inkling_model import ModelArgs as InklingArgs

INKLING_MODEL_TYPES = ("inkling_model", "inkling_mm_model")

Progress = Callable[[str], None]

_EMBEDDED_WEIGHTS: Mapping[str, embedded.Weights] = {
    f"{EMBEDDED_MODEL}-float32": "float32",
    f"{EMBEDDED_MODEL}-4bit": "4bit",
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "config.json",
)
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model", "*.tiktoken"]


class LoadFacts(Struct, frozen=True, kw_only=True):
    """What was loaded and what computes it; logged at start and part of every fingerprint."""

    weights_dtype: str
    num_parameters: int
    device: DeviceFacts
    blas: Blas
    load_s: float


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A model ready to run on the thread that loaded it."""

    model: nn.Module
    tokenizer: Tokenizer
    config: dict[str, Any]
    card: ModelCard
    facts: LoadFacts


def load(config: EngineConfig, blas: Blas, progress: Progress) -> LoadedModel:
    """Load the configured model and evaluate its weights.

    Raises ModelLoadError with a sentence for people when the model cannot be had or is not supported.
    """
    started = time.monotonic()
    name = config.model
    if name == EMBEDDED_MODEL or name in _EMBEDDED_WEIGHTS:
        weights = _EMBEDDED_WEIGHTS.get(name) or _default_weights(blas)
        progress(f"reading the embedded {EMBEDDED_MODEL} as {weights}")
        model, files, model_config = embedded.load(weights)
        model_id = name
    else:
        path = checkpoint_path(name, progress)
        progress(f"reading {path.name}")
        model, model_config = _load_directory(path)
        files = _read_tokenizer_files(path)
        model_id = name if not Path(name).exists() else path.resolve().name
    progress("moving weights into memory")
    mx.eval(model.parameters())
    tokenizer = _backend_tokenizer(files)
    card = ModelCard(
        model_id=model_id,
        created=int(time.time()),
        context_length=_context_length(model_config, config.context_length),
        vocab_size=_text_value(model_config, "vocab_size", tokenizer.get_vocab_size()),
        eos_token_ids=_eos_token_ids(model_config, files, tokenizer),
        tokenizer_files=files,
    )
    facts = _facts(model, blas, time.monotonic() - started)
    return LoadedModel(model=model, tokenizer=tokenizer, config=model_config, card=card, facts=facts)


def checkpoint_path(name: str, progress: Progress) -> Path:
    """Directory of a checkpoint given as a directory or a hub id.

    Raises ModelLoadError when there is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelLoadError(f"{name} has no config.json, so it is not an MLX checkpoint directory")
        return path
    if path.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        known = ", ".join([EMBEDDED_MODEL, *_EMBEDDED_WEIGHTS])
        raise ModelLoadError(
            f"model {name!r} is neither a directory, a hub id (owner/name), nor an embedded model ({known})"
        )
    return _download(name, progress)


def source_paths(config: EngineConfig) -> list[Path]:
    """Files or folders the configured model is read from."""
    name = config.model
    if name == EMBEDDED_MODEL or name in _EMBEDDED_WEIGHTS:
        return [embedded.gguf_path()]
    return [checkpoint_path(name, lambda text: None)]


def _download(name: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a second of imports only this path needs

    progress(f"fetching {name} from the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # the hub client raises a dozen unrelated types; each means "not to be had"
        raise ModelLoadError(
            f"cannot fetch {name!r} from the hub ({type(error).__name__}): check the name and the network, "
            f"or pass the directory of a checkpoint, or leave --model out for the embedded {EMBEDDED_MODEL}"
        ) from error


def _load_directory(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    try:
        return load_model(path, lazy=True, get_model_classes=_model_classes)
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise ModelLoadError(f"cannot load {path}: {error}") from error


def _model_classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
    # mlx-lm has no Inkling; every other family is its own business.
    if config.get("model_type") in INKLING_MODEL_TYPES:
        return InklingModel, InklingArgs
    return _get_classes(config)


def _default_weights(blas: Blas) -> embedded.Weights:
    # Quantised products cost the same per row on CPU, so only float32 under a real BLAS is fast there.
    return "float32" if blas.source in ("scipy-openblas32", "system") else "4bit"


def _read_tokenizer_files(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in _TOKENIZER_FILES if (path / name).exists()}


def _backend_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    if "tokenizer.json" not in files:
        raise ModelLoadError(
            "the checkpoint has no tokenizer.json; convert its tokenizer to the fast format first"
        )
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def _text_value(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key) or config.get("text_config", {}).get(key) or default
    return int(value)


def _context_length(config: Mapping[str, Any], limit: int) -> int:
    own = _text_value(config, "max_position_embeddings", limit or 4096)
    return min(own, limit) if limit else own


def _eos_token_ids(
    config: Mapping[str, Any], files: Mapping[str, bytes], tokenizer: Tokenizer
) -> tuple[int, ...]:
    found: set[int] = set()
    declared = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
    if isinstance(declared, int):
        found.add(declared)
    elif declared:
        found.update(declared)
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    token = settings.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str) and (token_id := tokenizer.token_to_id(text)) is not None:
        found.add(token_id)
    return tuple(sorted(found))


def _facts(model: nn.Module, blas: Blas, load_s: float) -> LoadFacts:
    arrays = [cast(mx.array, value) for _, value in tree_flatten(model.parameters())]
    sizes: dict[str, int] = {}
    for array in arrays:
        sizes[str(array.dtype)] = sizes.get(str(array.dtype), 0) + array.nbytes
    largest = max(sizes, key=lambda dtype: sizes[dtype])
    return LoadFacts(
        weights_dtype=largest.removeprefix("mlx.core."),
        num_parameters=sum(array.size for array in arrays),
        device=detect(),
        blas=blas,
        load_s=load_s,
    )
