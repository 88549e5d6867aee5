"""A model suited to a CPU: the same function, found by hooks and selections as before."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import activations, base

from engine.cpu import attention, exponential
from engine.cpu.install import REPLACEMENTS, suit_cpu
from speculative.hooks import replace_function
from speculative.selection import Selection, selected
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.drafters import scripted

pytestmark = pytest.mark.skipif(
    mx.default_device().type != mx.DeviceType.cpu, reason="models are suited to CPUs alone"
)


def put_back() -> None:
    """mlx-lm's own functions in all of its modules, under whatever hooks are there."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models."):
            for original, replacement in REPLACEMENTS:
                replace_function(module, replacement, original)


@pytest.fixture(autouse=True)
def original_functions() -> Iterator[None]:
    """A test starts with mlx-lm's functions and leaves them behind."""
    put_back()
    yield
    put_back()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_suited_model_computes_the_same_function(family: str) -> None:
    """Logits agree to rounding, and rounds with it are plain decode with it, byte for byte."""
    prompt = tiny.prompt(2 * tiny.WINDOW + 3)
    wanted = plain(tiny.target(family), prompt, 12)
    model = tiny.MAKERS[family]()
    suit_cpu(model)
    target = Target(model)
    found = plain(target, prompt, 12)
    assert found.tokens == wanted.tokens
    assert mx.allclose(found.logits, wanted.logits, rtol=1e-3, atol=1e-4).item()
    rounds = generate(target, prompt, 12, scripted(found.tokens), depth=3)
    assert rounds.tokens == found.tokens


def test_a_llama_runs_on_the_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers call this package's attention and SwiGLU, once each per layer."""
    calls: list[str] = []

    def counted(name: str, function: Any) -> Any:
        return lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs)

    monkeypatch.setattr(exponential, "_swiglu", counted("swiglu", exponential._swiglu))
    monkeypatch.setattr(attention, "_exp_of_difference", counted("attention", attention._exp_of_difference))
    model: Any = tiny.llama_model()
    suit_cpu(model)
    suit_cpu(model)
    mx.eval(model(mx.array([[1, 2, 3]])))
    assert sorted(calls) == sorted(["attention", "swiglu"] * len(model.layers))


def test_hooks_stay_above_the_replacement() -> None:
    """A model that was hooked before still evaluates its verify forwards row by row."""
    target = tiny.target("llama")
    suit_cpu(target.model)
    prompt = tiny.prompt(9)
    with selected(target, Selection(name="row_invariant", attention="row")):
        found = plain(target, prompt, 6)
        rounds = generate(target, prompt, 6, scripted(found.tokens), depth=2)
    assert rounds.tokens == found.tokens
    assert tiny.same_bytes(rounds.logits, found.logits)


def test_nothing_is_replaced_off_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernels are fused, and launching every layer by itself would cost more than it saves."""
    model: Any = tiny.llama_model()
    before = list(model.modules())
    namespace: Any = sys.modules[type(model).__module__]
    functions = (namespace.swiglu, namespace.scaled_dot_product_attention)
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
    suit_cpu(model)
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))
    assert (namespace.swiglu, namespace.scaled_dot_product_attention) == functions


def test_a_function_of_another_origin_is_left_alone() -> None:
    """Only what a module took from mlx-lm is replaced, under whatever hook is on it."""
    namespace: Any = ModuleType("family")
    namespace.swiglu = own = lambda gate, x: gate
    namespace.scaled_dot_product_attention = base.scaled_dot_product_attention
    replace_function(namespace, activations.swiglu, exponential.swiglu)
    replace_function(namespace, base.scaled_dot_product_attention, attention.scaled_dot_product_attention)
    assert namespace.swiglu is own
    assert namespace.scaled_dot_product_attention is attention.scaled_dot_product_attention
