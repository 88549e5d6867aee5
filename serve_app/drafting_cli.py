"""Commands about drafters on disk. Knows the command line and the wording; the work is done elsewhere."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.blas import preload
from engine.config import EMBEDDED_MODEL, EngineConfig
from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from speculative.fitting.progress import Progress


def split_mtp(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint directory as published, with its MTP head.")],
    out: Annotated[Path, typer.Option("--out", help="New folder for the drafter.")],
) -> None:
    """Extract the MTP head of a checkpoint into a drafter folder for --model-draft."""
    from speculative.split import split_head  # noqa: PLC0415 - loads MLX, which other commands do not need

    try:
        report = split_head(checkpoint, out)
    except (ValueError, OSError) as error:
        typer.echo(f"mtp-serve: {error}", err=True)
        raise typer.Exit(2) from error
    megabytes = report.size_bytes / 1e6
    typer.echo(f"{report.folder}: {report.model_type}, {report.tensors} tensors, {megabytes:.1f} MB")


def fit_drafter(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the head; a run that was stopped resumes there.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Checkpoint, hub id or embedded model.")] = (
        EMBEDDED_MODEL
    ),
    layers: Annotated[int, typer.Option(help="Decoder layers of the head.")] = 1,
    taps: Annotated[
        str, typer.Option(help="Target layers the head reads, comma-separated; none: the final hidden.")
    ] = "",
    draft_vocab: Annotated[int, typer.Option(help="Tokens it may propose; 0 is all of them.")] = 6144,
    answer_tokens: Annotated[int, typer.Option(help="Size of the corpus.")] = 200_000,
    asked_share: Annotated[
        float, typer.Option(help="Share of the prompts that the model makes up itself; others are built in.")
    ] = 0.5,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 600,
    batch_tokens: Annotated[int, typer.Option(help="Slots per step.")] = 2048,
    depth_shares: Annotated[
        str, typer.Option(help="Share of steps that train draft depth 1, 2, ..., comma-separated.")
    ] = "1,0.5,0.25",
    learning_rate: Annotated[float, typer.Option(help="Peak rate of AdamW.")] = 6e-4,
    dropout: Annotated[
        float, typer.Option(help="Share of the hidden elements a step leaves out; for small corpora.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts, order and initial weights.")] = 0,
    text: Annotated[
        list[Path] | None, typer.Option(help="More prompts, one a line; repeat for more.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Packed corpus (.npz) to use instead of asking the model.")
    ] = None,
) -> None:
    """Fit an MTP head to a model that has none, on the model's own answers."""
    config = EngineConfig(model=model, draft_model="none")
    blas = preload(config.cache_path(), os.cpu_count() or 1)
    # These import MLX, which must not come before the BLAS.
    from engine.loading import load  # noqa: PLC0415
    from serve_app.tokenizer import load_tokenizer  # noqa: PLC0415
    from speculative.fitting.config import FitConfig, TrainConfig  # noqa: PLC0415
    from speculative.fitting.fit import fit  # noqa: PLC0415
    from speculative.fitting.generate import GenerateConfig  # noqa: PLC0415
    from speculative.fitting.report import recipe  # noqa: PLC0415

    try:
        tap_layers = tuple(int(part) for part in taps.split(",") if part)
        wanted = FitConfig(
            generate=GenerateConfig(tap_layers=tap_layers, seed=seed),
            train=TrainConfig(
                num_layers=layers,
                draft_vocab_size=draft_vocab or None,
                tap_layers=tap_layers,
                depth_shares=tuple(float(part) for part in depth_shares.split(",")),
                steps=steps,
                batch_tokens=batch_tokens,
                learning_rate=learning_rate,
                dropout=dropout,
                seed=seed,
            ),
            answer_tokens=answer_tokens,
            asked_share=asked_share,
            seed=seed,
        )
        if corpus is not None and not corpus.is_file():
            raise ValueError(f"--corpus {corpus} is no file; give a corpus.npz, or leave it out")
        prompts = tuple(line for file in text or [] for line in file.read_text().splitlines() if line.strip())
        loaded = load(config, blas, lambda said: typer.echo(f"  {said} ...", err=True))
        tokenizer = load_tokenizer(loaded.card.tokenizer_files)
        report = fit(wanted, loaded.model, tokenizer, out, _show, user_prompts=prompts, packed_corpus=corpus)
    except (ValueError, OSError, ModelLoadError) as error:
        typer.echo(f"mtp-serve: {error}", err=True)
        raise typer.Exit(2) from error
    command = " ".join(["mtp-serve", *sys.argv[1:]])
    licence = f"The head is fitted on the output of {model}; that model's licence applies."
    (out / "RECIPE.md").write_text(recipe(report, wanted, command, model, licence))
    typer.echo(f"{out}: acceptance and learning curve are in RECIPE.md")


def _show(progress: "Progress") -> None:
    left = f"about {progress.seconds_left / 60:.0f} min left"
    typer.echo(f"{progress.phase}: {progress.done} of {progress.amount}, {left} {progress.remark}", err=True)
