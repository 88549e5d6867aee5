"""Ends a chain of drafts where the drafter itself is in doubt, so that neither it nor a verify row is wasted.

Owns the rule and what confidence is; knows no drafter.
"""

import mlx.core as mx


def confidence(logits: mx.array) -> mx.array:
    """The probability, float32 [...], that the largest of logits [..., V] has among them."""
    # Half a unit of a bfloat16 logit of 20 is a factor of 1.06.
    logits = logits.astype(mx.float32)
    return mx.exp(logits.max(axis=-1) - mx.logsumexp(logits, axis=-1))


def ends_chain(logits: mx.array, threshold: float) -> bool:
    """Whether the draft picked from `logits` [1, 1, V] is the last one; waits unless `threshold` is 0 (off).

    The likeliest token decides, whichever was picked: noise says nothing about how sure a head is. An
    unconfident draft is still verified: it has been paid for.
    """
    return threshold > 0 and bool((confidence(logits) < threshold).item())
