"""Trains a head on a corpus: loss, schedule, checkpoints and resuming.

Owns optimisation; the forward pattern is in forward.py, the reported acceptance in acceptance.py.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_unflatten
from msgspec import Struct

from speculative.fitting import fast_math
from speculative.fitting.config import TrainConfig
from speculative.fitting.data import Example, Packed, batches, pack, thinned
from speculative.fitting.forward import chained_outputs
from speculative.generic_head import GenericHead

_STATE_FILE = "checkpoint.safetensors"
_MAX_GRADIENT_NORM = 1.0


class Step(Struct, frozen=True, kw_only=True):
    """Progress after one optimiser step; `losses` are nats per depth trained, `seconds_left` an estimate."""

    step: int
    steps: int
    losses: tuple[float, ...]
    slots_per_second: float
    seconds_left: float


class Output(Struct, frozen=True, kw_only=True):
    """The target's output side: draft rows [D, H] of its head, place in the draft list by target id or -1."""

    rows: mx.array
    position: mx.array
    embed: Any

    @classmethod
    def of(cls, head_rows: mx.array, embed: Any, draft_vocab: np.ndarray) -> "Output":
        """`head_rows` [V, H] is the target's output matrix, `embed` its embedding module."""
        position = np.full(head_rows.shape[0], -1, dtype=np.int32)
        position[draft_vocab] = np.arange(draft_vocab.size, dtype=np.int32)
        return cls(
            rows=mx.contiguous(head_rows[mx.array(draft_vocab)]), position=mx.array(position), embed=embed
        )


def tap_slice(tap_layers: tuple[int, ...]) -> slice:
    """Which of an example's taps the head reads: all of them, or the last one alone."""
    return slice(None) if tap_layers else slice(-1, None)


def loss_by_depth(
    head: GenericHead, output: Output, packed: Packed, depths: int
) -> tuple[mx.array, mx.array]:
    """(sum of losses, cross-entropy per depth [depths]) against the target's softmax over the draft list.

    Counts slots of the answer whose target token is in the draft list.
    """
    wanted = np.array(output.position[packed.tokens[:, 2:]])
    counted = np.array(packed.counted) & (wanted >= 0)
    flat = mx.array(np.flatnonzero(counted))
    embeddings = output.embed(packed.tokens[:, 1:-1])
    teacher = fast_math.softmax(_rows(packed.final, flat) @ output.rows.T)
    teacher = mx.stop_gradient(teacher)
    outputs = chained_outputs(head, head.fuse(packed.hidden), embeddings, depths)
    means = mx.stack(
        [fast_math.cross_entropy(_rows(o, flat) @ output.rows.T, teacher).mean() for o in outputs]
    )
    return means.sum(), means


def _rows(x: mx.array, flat: mx.array) -> mx.array:
    return x.reshape(-1, x.shape[-1])[flat]


class Trainer:
    """One training run in one folder; continues from the folder's checkpoint where there is one.

    Under `mlx.launch` every process takes its share of a step's batches and the gradients are averaged.
    """

    def __init__(
        self, config: TrainConfig, head: GenericHead, output: Output, examples: list[Example], folder: Path
    ) -> None:
        self._config = config
        self._head = head
        self._output = output
        self._examples = examples
        self._folder = folder
        self._group = mx.distributed.init()
        # Without bias correction the first steps are several times too long and undo the start.
        self._optimizer = optimizers.AdamW(
            learning_rate=_schedule(config),
            betas=[0.9, 0.95],
            weight_decay=config.weight_decay,
            bias_correction=True,
        )
        self._optimizer.init(head.trainable_parameters())
        self._step = self._resume()

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self._step

    def run(self, progress: Callable[[Step], bool]) -> None:
        """Train to the configured step; ends early, with a checkpoint, when `progress` returns False."""
        config = self._config
        gradient = nn.value_and_grad(  # pyright: ignore[reportPrivateImportUsage]
            self._head, partial(loss_by_depth, output=self._output)
        )
        started, first, slots = time.perf_counter(), self._step, 0
        for batch in self._batches():
            key = mx.random.key(config.seed + self._step)
            packed = thinned(pack(batch, tap_slice(config.tap_layers)), config.dropout, key)
            (_, losses), gradients = gradient(self._head, packed=packed, depths=self._depths())
            gradients = nn.average_gradients(  # pyright: ignore[reportPrivateImportUsage]
                gradients, self._group
            )
            gradients, _ = optimizers.clip_grad_norm(gradients, _MAX_GRADIENT_NORM)
            self._optimizer.update(self._head, gradients)
            mx.eval(self._head.parameters(), self._optimizer.state, losses)
            self._step += 1
            slots += packed.counted.size * self._group.size()
            elapsed = time.perf_counter() - started
            report = Step(
                step=self._step,
                steps=config.steps,
                losses=tuple(losses.tolist()),  # pyright: ignore[reportArgumentType]
                slots_per_second=slots / elapsed,
                seconds_left=elapsed / (self._step - first) * (config.steps - self._step),
            )
            last = self._step == config.steps
            wanted = progress(report)
            if last or not wanted or self._step % config.checkpoint_every == 0:
                self._save()
                mx.clear_cache()
            if last or not wanted:
                return

    def _depths(self) -> int:
        """Depths this step trains; the draw depends on the step alone, so that all processes agree."""
        draw = random.Random(self._config.seed * 1_000_003 + self._step).random()
        return sum(draw < share for share in self._config.depth_shares)

    def _batches(self) -> Iterator[list[Example]]:
        """Batches from the step reached on, as an uninterrupted run takes them; processes take turns."""
        done, epoch = 0, 0
        while True:
            rng = random.Random(self._config.seed * 1_000_003 + epoch)
            for batch in batches(self._examples, self._config.batch_tokens, rng):
                step, rank = divmod(done, self._group.size())
                done += 1
                if step >= self._config.steps:
                    return
                if step >= self._step and rank == self._group.rank():
                    yield batch
            epoch += 1

    def _save(self) -> None:
        if self._group.rank() != 0:
            return
        state: dict[str, Any] = {f"head.{k}": v for k, v in tree_flatten(self._head.parameters())}
        state |= {f"optimizer.{k}": v for k, v in tree_flatten(self._optimizer.state)}
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._folder / f"partial-{_STATE_FILE}"
        mx.save_safetensors(
            str(scratch), state, {"step": str(self._step), "config": _fingerprint(self._config)}
        )
        scratch.replace(self._folder / _STATE_FILE)

    def _resume(self) -> int:
        path = self._folder / _STATE_FILE
        if not path.exists():
            return 0
        loaded: Any = mx.load(str(path), return_metadata=True)
        state, meta = loaded
        if meta["config"] != _fingerprint(self._config):
            raise ValueError(f"{path} belongs to another configuration; remove it or fit into another folder")
        for prefix, target in (("head.", self._head), ("optimizer.", None)):
            tree = tree_unflatten([(k[len(prefix) :], v) for k, v in state.items() if k.startswith(prefix)])
            if target is None:
                self._optimizer.state = tree
            else:
                target.update(tree)
        return int(meta["step"])


def _fingerprint(config: TrainConfig) -> str:
    return json.dumps({name: getattr(config, name) for name in config.__struct_fields__})


def _schedule(config: TrainConfig) -> Callable[[mx.array], mx.array]:
    decay = optimizers.cosine_decay(
        config.learning_rate, max(config.steps - config.warmup_steps, 1), 0.02 * config.learning_rate
    )
    if not config.warmup_steps:
        return decay
    warm = optimizers.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    return optimizers.join_schedules([warm, decay], [config.warmup_steps])
