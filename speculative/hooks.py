"""Inert hooks on mlx-lm model modules that let one verify forward evaluate and record things its own way.

Owns which names are replaced and when a replacement acts. Outside `block_forward` every hook calls the
original with the very same arguments. Knows no model family.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

Kernel = Callable[..., Any]


class BlockKeys(Protocol):
    """Keys and values written by a verify forward, and the attention over them."""

    def attend(self, kernel: Kernel, call: dict[str, Any]) -> mx.array:
        """What `kernel` would return for the arguments of `call`, evaluated in the cache's own way.

        `call` maps the kernel's parameter names to what the model passed: queries [B, heads, L, D], its mask.
        """
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
        self._owners: dict[int, tuple[mx.array, BlockKeys]] = {}

    def own(self, keys: mx.array, block: BlockKeys) -> None:
        """Attention over this very array object is `block`'s to evaluate.

        The array is kept so that its identity cannot be reused; sharing layers find it as well.
        """
        self._owners[id(keys)] = (keys, block)

    def owner(self, keys: Any) -> BlockKeys | None:
        """Who wrote `keys` in this forward, if it evaluates the attention over them."""
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
    # Signature.bind would take several times as long, and every layer of every round calls this.
    names = tuple(signature(original).parameters)

    @wraps(original)
    def attention(queries: mx.array, keys: Any, *args: Any, **kwargs: Any) -> mx.array:
        context = _context.get()
        owner = context.owner(keys) if context else None
        if owner is None:
            return original(queries, keys, *args, **kwargs)
        return owner.attend(original, dict(zip(names, (queries, keys, *args), strict=False)) | kwargs)

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


def replace_function(namespace: ModuleType, original: Kernel, replacement: Kernel) -> None:
    """Lets `namespace` call `replacement` where it calls `original`, under a hook if there is one."""
    name = getattr(original, "__name__", "")
    present = getattr(namespace, name, None)
    if present is original:
        setattr(namespace, name, replacement)
    elif getattr(present, "__wrapped__", None) is original:
        setattr(namespace, name, _HOOKS[name](replacement))


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
