"""What a fitting run reached, and its words on disk beside the head.

Owns figures and text; knows neither training nor models.
"""

from collections.abc import Mapping

from msgspec import Struct

from speculative.fitting.acceptance import Acceptance, total
from speculative.fitting.config import FitConfig


class CurvePoint(Struct, frozen=True, kw_only=True):
    """Held-out acceptance after `step` optimiser steps."""

    step: int
    conditional: tuple[float, ...]
    emitted_per_round: float


class FitReport(Struct, frozen=True, kw_only=True):
    """Result of a run.

    `sampled_share` is the share of the examples that were sampled, `coverage` the share of held-out answer
    tokens in the draft list.
    """

    answer_tokens: int
    examples: int
    sampled_share: float
    held_out_examples: int
    coverage: float
    by_kind: dict[str, Acceptance]
    curve: tuple[CurvePoint, ...]

    @property
    def overall(self) -> Acceptance:
        """Acceptance over every kind."""
        return total(self.by_kind)


def curve_point(step: int, by_kind: Mapping[str, Acceptance]) -> CurvePoint:
    """The learning curve's point for a measurement."""
    found = total(dict(by_kind))
    return CurvePoint(step=step, conditional=found.conditional, emitted_per_round=found.emitted_per_round)


def recipe(report: FitReport, config: FitConfig, command: str, target: str, licence: str) -> str:
    """Markdown kept beside a fitted head: how to make it again and what it reached."""
    train = config.train
    lines = [
        f"# MTP head for {target}",
        "",
        f"Fitted by self-distillation on the target's own answers. A run of these settings: `{command}`.",
        "",
        f"- {train.num_layers} decoder layer(s), taps {list(train.tap_layers) or 'final hidden only'}, "
        f"draft list of {train.draft_vocab_size or 'all'} tokens, {report.coverage:.3f} of held-out tokens",
        f"- corpus: {report.examples} answers, {report.answer_tokens} tokens, "
        f"{report.sampled_share:.0%} of them sampled, the others greedy",
        f"- training: {train.steps} steps of about {train.batch_tokens} slots, AdamW "
        f"{train.learning_rate:g}, dropout {train.dropout:g}, depth shares {list(train.depth_shares)}, "
        f"seed {train.seed}",
        "",
        f"Acceptance on {report.held_out_examples} greedy answers to held-out prompts, "
        f"K={config.block_size}: each position's share among the rounds that reached it, "
        "and tokens emitted per round.",
        "",
        *_table("kind", report.by_kind),
        "",
        "Learning curve:",
        "",
        *_curve(report.curve),
        "",
        licence,
    ]
    return "\n".join(lines) + "\n"


def _table(title: str, by_kind: Mapping[str, Acceptance]) -> list[str]:
    rows = [*sorted(by_kind.items()), ("all", total(dict(by_kind)))]
    positions = len(rows[0][1].reached)
    head = [title, *(str(i + 1) for i in range(positions)), "emitted"]
    body = [
        [name, *(f"{c:.2f}" for c in found.conditional), f"{found.emitted_per_round:.2f}"]
        for name, found in rows
    ]
    return _markdown([head, *body])


def _curve(curve: tuple[CurvePoint, ...]) -> list[str]:
    if not curve:
        return ["(not recorded)"]
    head = ["step", *(str(i + 1) for i in range(len(curve[0].conditional))), "emitted"]
    body = [[str(p.step), *(f"{c:.3f}" for c in p.conditional), f"{p.emitted_per_round:.3f}"] for p in curve]
    return _markdown([head, *body])


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
