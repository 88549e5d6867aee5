"""The one way a benchmark fails: a sentence for people. Knows nothing of what was measured."""


class BenchError(Exception):
    """The measurement cannot be made or would not be fair; the message says why."""
