"""Commands about drafters on disk. Knows the command line and the wording; the work is done elsewhere."""

from pathlib import Path
from typing import Annotated

import typer


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
