"""Inert hooks on mlx-lm model modules that let one verify forward evaluate and record things its own way.

Owns which names are replaced and when a replacement acts. Outside `block_forward` every hook calls the
original with the very same arguments. Knows no model family.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

Kernel = Callable[..., Any]


class RowViews(Protocol):
    """Keys and values written by a verify forward, seen as each query row of a one-row decode sees them."""

    def row_views(self, mask: Any) -> Sequence[tuple[mx.array, mx.array, mx.array | None]]:
        """Per query row: keys, values and mask; `mask` is what the model passes to its attention."""
        ...


class Recorder(Protocol):
    """A recurrent cache that wants to see what the layer using it computes."""

    def record_convolution(self, rows: mx.array) -> None:
        """The convolution's whole input [B, kernel - 1 + L, C]."""
        ...

    def record_update(self, update: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The recurrence about to run, with its arguments."""
        ...


class BlockContext:
    """What belongs to one verify forward: who wrote which keys, and which recurrent cache is in use."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._owners: dict[int, tuple[mx.array, RowViews]] = {}

    def own(self, keys: mx.array, rows: RowViews) -> None:
        """Attention over this very array object is to be evaluated row by row.

        The array is kept so that its identity cannot be reused; sharing layers find it as well.
        """
        self._owners[id(keys)] = (keys, rows)

    def owner(self, keys: Any) -> RowViews | None:
        """Who wrote `keys` in this forward, if it is to be evaluated row by row."""
        entry = self._owners.get(id(keys))
        return None if entry is None else entry[1]

    def release(self) -> None:
        """Forgets every array: a view of keys that outlives the forward makes the next update copy them."""
        self._owners.clear()
        self.recorder = None


_context: ContextVar[BlockContext | None] = ContextVar("block_context", default=None)


@contextmanager
def block_forward(context: BlockContext) -> Generator[None]:
    """The hooks act for `context` inside this block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)
        context.release()


def _hooked_attention(original: Kernel) -> Kernel:
    parameters = signature(original)

    @wraps(original)
    def attention(queries: mx.array, keys: Any, *args: Any, **kwargs: Any) -> mx.array:
        context = _context.get()
        owner = context.owner(keys) if context else None
        if owner is None:
            return original(queries, keys, *args, **kwargs)
        call = parameters.bind(queries, keys, *args, **kwargs).arguments
        views = owner.row_views(call["mask"])
        outputs = [
            original(**call | {"queries": queries[:, :, i : i + 1], "keys": k, "values": v, "mask": m})
            for i, (k, v, m) in enumerate(views)
        ]
        return mx.concatenate(outputs, axis=2)

    return attention


def _hooked_recurrence(original: Kernel) -> Kernel:
    @wraps(original)
    def update(*args: Any, **kwargs: Any) -> Any:
        context = _context.get()
        if context and context.recorder:
            context.recorder.record_update(original, args, kwargs)
        return original(*args, **kwargs)

    return update


class RecordingConvolution(nn.Module):
    """A convolution that shows its input to the recurrent cache in use."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: mx.array) -> mx.array:
        context = _context.get()
        if context and context.recorder:
            context.recorder.record_convolution(x)
        return self.inner(x)


_HOOKS: dict[str, Callable[[Kernel], Kernel]] = {
    "scaled_dot_product_attention": _hooked_attention,
    "gated_delta_update": _hooked_recurrence,
}


def _hook_functions(namespace: ModuleType) -> None:
    for name, hook in _HOOKS.items():
        original = getattr(namespace, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(namespace, name, hook(original))


def install_hooks(model: nn.Module) -> None:
    """Hooks the functions and convolutions that `model` uses; doing it twice changes nothing.

    The functions are names in mlx-lm's model modules, so other models of the same family pass through the
    hooks too; they act for a verify forward only.
    """
    modules = model.modules()
    for name in {type(module).__module__ for module in modules}:
        _hook_functions(sys.modules[name])
    for module in modules:
        recurrent = hasattr(sys.modules[type(module).__module__], "gated_delta_update")
        if recurrent and "conv1d" in module and not isinstance(module.conv1d, RecordingConvolution):
            module.conv1d = RecordingConvolution(module.conv1d)
