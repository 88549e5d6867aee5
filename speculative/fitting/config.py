"""Settings of a fitting run, checked where they are made; knows nothing of how they are used."""

from itertools import pairwise

from msgspec import Struct

from speculative.fitting.generate import GenerateConfig


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Geometry and optimisation of the head.

    `num_layers` layers start as copies of the target's last ones; `depth_shares` are the shares of steps that
    train draft depth 1, 2, ... (the first is 1, a deeper one costs as much again); `draft_vocab_size` of None
    keeps the whole vocabulary; `tap_layers` are among those the corpus recorded. `steps` batches of about
    `batch_tokens` slots. `dropout` is the share of the taps' elements a step leaves out, which keeps a small
    corpus from being learned by heart.
    """

    num_layers: int = 1
    draft_vocab_size: int | None = 6144
    tap_layers: tuple[int, ...] = ()
    depth_shares: tuple[float, ...] = (1.0, 0.5, 0.25)
    steps: int = 600
    batch_tokens: int = 2048
    learning_rate: float = 6e-4
    warmup_steps: int = 20
    weight_decay: float = 0.01
    dropout: float = 0.0
    checkpoint_every: int = 50
    evaluate_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        for name in ("num_layers", "steps", "checkpoint_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.draft_vocab_size is not None and self.draft_vocab_size < 1:
            raise ValueError(f"draft_vocab_size is {self.draft_vocab_size}; it must be at least 1")
        if self.batch_tokens < 64:
            raise ValueError(f"batch_tokens is {self.batch_tokens}; it must be at least 64")
        shares = self.depth_shares
        falling = all(later <= earlier for earlier, later in pairwise(shares))
        if not shares or shares[0] != 1.0 or not falling or shares[-1] <= 0.0:
            raise ValueError(f"depth_shares is {shares}; it has to start at 1, never rise and stay above 0")
        if not 0.0 < self.learning_rate <= 0.1:
            raise ValueError(f"learning_rate is {self.learning_rate}; legal is above 0 to 0.1")
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; legal is 0 to {self.steps - 1}")
        if self.weight_decay < 0.0:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be 0 or more")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout}; legal is 0 to below 1")


class FitConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole fitting run: corpus, head, evaluation.

    `answer_tokens` is where corpus generation stops; `asked_share` of its prompts are made up by the target
    (`speculative.fitting.asking`), the others are built in; `held_out_per_kind` prompts of each kind are kept
    for the report and never trained on; `block_size` is the verify block the report assumes.
    """

    generate: GenerateConfig = GenerateConfig()
    train: TrainConfig = TrainConfig()
    answer_tokens: int = 200_000
    asked_share: float = 0.5
    held_out_per_kind: int = 4
    block_size: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.answer_tokens < 1:
            raise ValueError(f"answer_tokens is {self.answer_tokens}; it must be at least 1")
        if not 0.0 <= self.asked_share <= 1.0:
            raise ValueError(f"asked_share is {self.asked_share}; legal is 0 to 1")
        if self.held_out_per_kind < 1:
            raise ValueError(f"held_out_per_kind is {self.held_out_per_kind}; it must be at least 1")
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 2")
        missing = set(self.train.tap_layers) - set(self.generate.tap_layers)
        if missing:
            raise ValueError(f"train.tap_layers names {sorted(missing)}, which generate.tap_layers lacks")
