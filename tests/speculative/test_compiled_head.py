"""The compiled head computes what the head computes, however its pairs arrive."""

import mlx.core as mx
import pytest

from speculative.compiled_head import CompiledHead
from speculative.generic_head import GenericHead
from tests.speculative.test_generic_head import pairs, tiny_config


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("lengths", [(1, 1, 3, 2), (12, 1, 2), (8, 9)])
def test_passes_of_any_length_are_the_heads(layers: int, lengths: tuple[int, ...]) -> None:
    """Short passes, long ones and their mixture, also after slots were taken back."""
    config = tiny_config(num_layers=layers, tap_layers=(0, 2))
    head = GenericHead(config)
    compiled = CompiledHead(head)
    embeddings, features = pairs(sum(lengths), config)
    caches, wanted_caches = compiled.make_cache(), head.make_cache()
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        for cache in (*caches, *wanted_caches):
            cache.trim(cache.offset - start)
        found = compiled(embeddings[:, rows], compiled.fuse(features[:, rows]), caches)
        wanted = head(embeddings[:, rows], head.fuse(features[:, rows]), wanted_caches)
        assert mx.allclose(found, wanted, rtol=1e-4, atol=1e-5).item()
        # A chained slot that the next pass has to take back.
        for network, its in ((compiled, caches), (head, wanted_caches)):
            network(embeddings[:, :1], found[:, -1:], its)
        start += length
    for cache, wanted_cache in zip(caches, wanted_caches, strict=True):
        assert cache.offset == wanted_cache.offset
        assert mx.allclose(cache.state[0], wanted_cache.state[0], rtol=1e-4, atol=1e-5).item()


def test_other_geometry_of_attention() -> None:
    """Bias-free grouped heads of their own width and a scaled rotation go through as well."""
    config = tiny_config(
        head_dim=32, rope_scaling={"type": "linear", "factor": 2.0}, max_position_embeddings=64
    )
    head = GenericHead(config)
    embeddings, hiddens = pairs(4, config)
    found = CompiledHead(head)(embeddings, hiddens, head.make_cache())
    assert mx.allclose(found, head(embeddings, hiddens), rtol=1e-4, atol=1e-5).item()
