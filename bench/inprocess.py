"""The baseline's process: mlx-lm called as a library, without any server. Run as `python -m bench.inprocess`.

It answers JSON lines on its standard output, one per line it reads; everything else printed goes to its log.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.reply import Reply
from engine.blas import preload


class Task(Struct, frozen=True):
    """Prompts to complete greedily at the same time."""

    prompts: tuple[str, ...]
    max_tokens: int


class Loaded(Struct, frozen=True):
    """The first line: which BLAS is in force and the weights' dtype."""

    blas: str
    dtype: str


class Inprocess:
    """A loaded checkpoint and the two ways mlx-lm offers to generate with it."""

    def __init__(self, model: str) -> None:
        # These import MLX, which must not happen before the BLAS is in place.
        self._mlx_lm: Any = importlib.import_module("mlx_lm")
        self._batching: Any = importlib.import_module("mlx_lm.generate")
        self._model, self._tokenizer = self._mlx_lm.load(model)

    @property
    def dtype(self) -> str:
        """Type of most of the weights, by bytes."""
        sizes: dict[str, int] = {}
        for _, array in importlib.import_module("mlx.utils").tree_flatten(self._model.parameters()):
            sizes[str(array.dtype)] = sizes.get(str(array.dtype), 0) + array.nbytes
        return max(sizes, key=lambda name: sizes[name]).removeprefix("mlx.core.")

    def run(self, task: Task) -> tuple[Reply, ...]:
        """One stream by `stream_generate`, several by `BatchGenerator` as `batch_generate` does."""
        if len(task.prompts) == 1:
            return (self._stream(task.prompts[0], task.max_tokens),)
        return self._batch(task.prompts, task.max_tokens)

    def _stream(self, prompt: str, max_tokens: int) -> Reply:
        sent = time.perf_counter()
        pieces: list[str] = []
        times: list[float] = []
        last: Any = None
        for last in self._mlx_lm.stream_generate(self._model, self._tokenizer, prompt, max_tokens=max_tokens):
            times.append(time.perf_counter())
            pieces.append(last.text)
        return Reply(
            text="".join(pieces),
            finish_reason=last.finish_reason,
            prompt_tokens=last.prompt_tokens,
            completion_tokens=last.generation_tokens,
            sent_s=sent,
            first_s=times[0],
            end_s=times[-1],
        )

    def _batch(self, prompts: Sequence[str], max_tokens: int) -> tuple[Reply, ...]:
        sent = time.perf_counter()
        encoded = [self._tokenizer.encode(prompt) for prompt in prompts]
        stop_tokens = [[token] for token in self._tokenizer.eos_token_ids]
        generator = self._batching.BatchGenerator(self._model, stop_tokens=stop_tokens)
        uids = generator.insert(encoded, [max_tokens] * len(encoded))
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        times: dict[int, list[float]] = {uid: [] for uid in uids}
        reasons: dict[int, str] = {}
        while responses := generator.next_generated():
            for response in responses:
                times[response.uid].append(time.perf_counter())
                reasons[response.uid] = response.finish_reason
                if response.finish_reason != "stop":
                    tokens[response.uid].append(response.token)
        generator.close()
        return tuple(
            Reply(
                text=self._tokenizer.decode(tokens[uid]),
                finish_reason=reasons[uid],
                prompt_tokens=len(prompt),
                completion_tokens=len(times[uid]),
                sent_s=sent,
                first_s=times[uid][0],
                end_s=times[uid][-1],
            )
            for uid, prompt in zip(uids, encoded, strict=True)
        )


def main() -> None:
    """Load, say so, then answer one task per line until the input ends."""
    parser = argparse.ArgumentParser(prog="bench.inprocess")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-root", type=Path, required=True)
    arguments = parser.parse_args()
    # Libraries may print; only answers belong on the pipe.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    blas = preload(arguments.cache_root, arguments.threads)
    inprocess = Inprocess(arguments.model)
    answers.write(msgspec.json.encode(Loaded(blas.describe(), inprocess.dtype)) + b"\n")
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(inprocess.run(msgspec.json.decode(line, type=Task))) + b"\n")


if __name__ == "__main__":
    main()
