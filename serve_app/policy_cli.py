"""`mtp-serve policy`: what is known about pairings, from a running cluster or from its files."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from policy.hint_store import HintStore, StoredHint
from policy.switches import cache_root, parse

policy_app = typer.Typer(help="Verdicts and the measurements behind them.", no_args_is_help=True)

AddressOption = Annotated[
    str, typer.Option(help="Ray cluster of the running server; `auto` is the one on this machine.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON array for programs.")]


@policy_app.command("list")
def list_verdicts(as_json: JsonOption = False) -> None:
    """Show every stored verdict."""
    stored = _store().hints()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(stored)).decode())
        return
    if not stored:
        typer.echo("no verdict has been stored yet")
        return
    Console().print(_table(stored))


@policy_app.command()
def forget(
    key: Annotated[str, typer.Argument(help="Key of a verdict, as `policy list` shows it.")],
    address: AddressOption = "auto",
) -> None:
    """Drop what is known of a pairing; a running server measures it anew."""
    if not _forget(key, address):
        typer.echo(f"nothing is stored under {key!r}; `mtp-serve policy list` shows the keys", err=True)
        raise typer.Exit(2)
    typer.echo(f"forgot {key}")


@policy_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="File to write, one JSON message a line.")],
    address: AddressOption = "auto",
) -> None:
    """Write the running policy's trace, which `policy.replay` folds again under other numbers."""
    from policy import replay  # noqa: PLC0415
    from serve_app.attach import NoServerError, policy_call  # noqa: PLC0415 - Ray costs seconds

    try:
        trace = policy_call(address, "trace")
    except NoServerError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    out.write_bytes(replay.encode(trace))
    typer.echo(f"wrote {len(trace)} messages to {out}")


def _store() -> HintStore:
    return HintStore(cache_root(parse(os.environ), os.environ.get("HOME")))


def _forget(key: str, address: str) -> bool:
    from serve_app.attach import NoServerError, policy_call  # noqa: PLC0415 - Ray costs seconds

    try:
        # The running policy has the verdict in memory, so the file alone would not be enough.
        return policy_call(address, "forget", key)
    except NoServerError:
        return _store().forget(key)


def _table(stored: tuple[StoredHint, ...]) -> Table:
    table = Table(
        "key", "target", "drafter", "hardware", "K", "verdict", "speed-up", "original rule", "acceptance"
    )
    for entry in stored:
        hint = entry.hint
        table.add_row(
            entry.stem,
            hint.target,
            hint.drafter,
            hint.hardware,
            str(hint.block_size),
            hint.verdict,
            _shown(hint.figures.paired.speedup if hint.figures.paired else None),
            f"{hint.figures.original_verdict or '-'} ({_shown(hint.figures.original_speedup)})",
            f"{hint.acceptance_rate:.2f}",
        )
    return table


def _shown(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}"
