"""A corpus as one small file of token ids, and back; hidden states are left out, the target recomputes them.

Owns that file's layout; knows neither training nor how answers were decoded.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.fitting.generate import read_shard, write_shard
from speculative.fitting.taps import tapped

# Rows per forward when hidden states are recomputed; bounds memory, not results.
_ROWS = 16


def pack_corpus(folder: Path, file: Path) -> None:
    """Write the token ids of every shard in `folder` to `file`, compressed (`.npz`).

    Raises ValueError when the folder has no shards.
    """
    paths = sorted(folder.glob("shard-*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no corpus shards")
    entries: dict[str, np.ndarray] = {}
    for path in paths:
        shard, notes = read_shard(path)
        tokens, lengths = np.array(shard["tokens"]), np.array(shard["lengths"])
        rows = [tokens[i, :length] for i, length in enumerate(lengths)]
        narrow = np.uint16 if tokens.max() < 2**16 else np.uint32
        entries[f"{path.stem}.tokens"] = np.concatenate(rows).astype(narrow)
        entries[f"{path.stem}.lengths"] = lengths.astype(np.uint16)
        entries[f"{path.stem}.prompts"] = np.array(shard["prompts"]).astype(np.uint16)
        entries[f"{path.stem}.notes"] = np.array([notes[k] for k in ("kinds", "temperature")])
    np.savez_compressed(file, **entries)  # pyright: ignore[reportArgumentType]


def unpack_corpus(
    file: Path, model: Any, tap_layers: tuple[int, ...], folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Write the shards `file` was packed from into `folder`, hidden states recomputed by one forward per row.

    Shards already there are kept. `progress(done, amount)` counts shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(file) as entries, tapped(model, tap_layers) as taps:
        names = sorted({key.rpartition(".")[0] for key in entries.files})
        for done, name in enumerate(names, start=1):
            path = folder / f"{name}.safetensors"
            if not path.exists():
                kinds, temperature = entries[f"{name}.notes"].tolist()
                lengths = entries[f"{name}.lengths"].astype(np.int32)
                tokens = np.zeros((len(lengths), int(lengths.max())), dtype=np.int32)
                tokens[np.arange(tokens.shape[1])[None] < lengths[:, None]] = entries[f"{name}.tokens"]
                states: list[mx.array] = []
                for row in range(0, len(tokens), _ROWS):
                    part = taps.run(mx.array(tokens[row : row + _ROWS, :-1]))[1].astype(mx.float16)
                    mx.eval(part)
                    states.append(part)
                shard = {
                    "tokens": mx.array(tokens),
                    "prompts": mx.array(entries[f"{name}.prompts"].astype(np.int32)),
                    "lengths": mx.array(lengths),
                    "taps": mx.concatenate(states),
                }
                notes = {"kinds": kinds, "temperature": temperature}
                write_shard(path, shard, notes)
            progress(done, len(names))
