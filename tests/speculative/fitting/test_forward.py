"""Training's forward against the head's own cached drafting."""

from typing import Any

import mlx.core as mx
import pytest

from speculative.fitting.data import Example, pack
from speculative.fitting.forward import chained_outputs
from speculative.fitting.initial import head_config
from speculative.fitting.train import tap_slice
from speculative.generic_head import GenericHead


@pytest.mark.parametrize(("layers", "taps"), [(1, ()), (2, (1, 3))])
def test_every_depth_equals_a_chain_over_the_cache(
    layers: int, taps: tuple[int, ...], model: Any, examples: list[Example]
) -> None:
    """What training computes at depth d is what a draft chain computes that starts d - 1 slots earlier."""
    head = GenericHead(head_config(model, layers, taps, None, 4))
    packed = pack(examples[-1:], tap_slice(taps))
    embedded = model.model.embed_tokens(packed.tokens[:, 1:-1])
    fused = head.fuse(packed.hidden)
    trained = chained_outputs(head, fused, embedded, 3)
    for start in (0, 4, 9):
        cache = head.make_cache()
        hidden = head(embedded[:, : start + 1], fused[:, : start + 1], cache)[:, -1:]
        for depth in range(3):
            slot = start + depth
            if depth:
                hidden = head(embedded[:, slot : slot + 1], hidden, cache)
            assert mx.allclose(trained[depth][:, slot], hidden[:, 0], atol=1e-4).item()


def test_padding_changes_nothing_before_it(model: Any, examples: list[Example]) -> None:
    """An example gives the same outputs alone and padded beside a longer one."""
    head = GenericHead(head_config(model, 1, (), None, 4))
    outputs: list[mx.array] = []
    for group in (examples[:1], [examples[0], examples[-1]]):
        packed = pack(group, tap_slice(()))
        embedded = model.model.embed_tokens(packed.tokens[:, 1:-1])
        outputs.append(chained_outputs(head, packed.hidden, embedded, 2)[1])
    slots = outputs[0].shape[1]
    assert mx.allclose(outputs[0][0], outputs[1][0, :slots], atol=1e-5).item()
