"""`mtp-serve bench`: parses, shows progress and tables; measuring and judging belong to `bench`."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable

from bench import overhead as overhead_figures
from bench import (
    overhead_run,
    policy_run,
    regret,
    regret_tables,
    round_cost,
    round_run,
    speculation_run,
    tables,
)
from bench import speculation as speculation_figures
from bench.errors import BenchError
from bench.prompts import CHAT_PROMPTS
from bench.workloads import PROMPTS_PER_CELL
from configs.schema import Settings, SettingsError, resolve
from engine.config import EMBEDDED_MODEL

bench_app = typer.Typer(help="Measure this server against others and against itself.", no_args_is_help=True)
screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

PlotOption = Annotated[Path | None, typer.Option(help="Write a bar chart to this SVG file.")]
ServeOptions = Annotated[
    list[str] | None,
    typer.Argument(help="After --: options of mtp-serve serve for the server this starts.", metavar="-- ..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print nothing but the JSON object.")]


_ESTIMATE_FROM_S = 3600.0


class ProgressBar:
    """A progress bar on standard error, or a line per step where that is not a terminal."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)
        self._begun = 0

    def total(self, steps: int) -> None:
        """How many steps there will be."""
        self._bar.update(self._task, total=steps)

    def step(self, text: str) -> None:
        """A step begins, and the one before it is done."""
        self._bar.update(self._task, description=text, completed=self._begun)
        self._begun += 1
        if not self._bar.console.is_terminal and not self._bar.disable:
            self._bar.console.print(f"{self._begun}: {text}", markup=False)


@bench_app.command()
def overhead(
    as_json: JsonOption = False,
    model: Annotated[str, typer.Option("--model", "-m", help="As for mtp-serve serve.")] = EMBEDDED_MODEL,
    tokens: Annotated[int, typer.Option(min=8, max=4096, help="Tokens per answer.")] = 64,
    pairs: Annotated[int, typer.Option(min=1, max=1000, help="Rounds per number of streams.")] = 5,
) -> None:
    """Compare decode rates with mlx-lm in process and with mlx_lm.server, on one and on eight streams."""
    with _failing_with_a_sentence():
        plan = overhead_run.Plan(model=model, tokens=tokens, pairs=pairs, cache_root=_cache_root())
        with _progress(as_json) as progress:
            rounds, conditions = overhead_run.measure(plan, progress)
    if not as_json:
        _show(tables.overhead_table(rounds))
        for sentence in overhead_figures.mismatches(rounds):
            screen.print(f"not identical: {sentence}")
    _print_json(overhead_figures.summary(rounds, conditions, tokens))


@bench_app.command()
def speculation(
    serve_options: ServeOptions = None,
    url: Annotated[str | None, typer.Option(help="A running server; without it one is started.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="API key of the running server.", envvar="MTP_SERVE_API_KEY")
    ] = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    tokens: Annotated[int, typer.Option(min=8, max=4096, help="Tokens per answer.")] = 96,
    prompts: Annotated[
        int, typer.Option(min=1, max=len(CHAT_PROMPTS), help="How many of the built-in prompts to ask.")
    ] = len(CHAT_PROMPTS),
) -> None:
    """Compare speculative with plain decoding of one server, prompt by prompt."""
    if url is not None and serve_options:
        errors.print("mtp-serve: options after -- are for a server started here, so they exclude --url")
        raise typer.Exit(2)
    _check_plot(plot)
    plan = speculation_run.Plan(
        tokens=tokens, prompts=prompts, url=url, api_key=api_key, serve_options=tuple(serve_options or ())
    )
    with _failing_with_a_sentence(), _progress(as_json) as progress:
        pairs, policy = speculation_run.measure(plan, progress)
        found = speculation_figures.findings(pairs, policy)
    if plot is not None:
        plot.write_text(tables.speedup_chart(pairs, found))
    if not as_json:
        _show(tables.speculation_table(pairs))
        _show(tables.acceptance_table(found))
        _show(tables.cost_table(found, policy))
        for line in tables.verdict_lines(found):
            screen.print(line)
    _print_json(speculation_figures.summary(pairs, policy, tokens))


@bench_app.command()
def policy(
    serve_options: ServeOptions = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    pairing: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this pairing ({', '.join(policy_run.PAIRINGS)}); repeat for several."),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, max=PROMPTS_PER_CELL, help="Questions per workload and temperature.")
    ] = 1,
    tokens: Annotated[int, typer.Option(min=16, max=4096, help="Tokens per answer.")] = 32,
    settle_requests: Annotated[
        int, typer.Option(min=4, max=1000, help="Requests the policy gets to come to a verdict.")
    ] = 20,
    settle_tokens: Annotated[
        int, typer.Option(min=32, max=4096, help="Tokens of each of those requests.")
    ] = 64,
) -> None:
    """Measure what the policy's choice costs against always on, always off and a per-prompt oracle."""
    _check_plot(plot)
    plan = policy_run.Plan(
        pairings=_pairings(pairing),
        per_cell=prompts,
        tokens=tokens,
        settle_requests=settle_requests,
        settle_tokens=settle_tokens,
        serve_options=tuple(serve_options or ()),
    )
    with _failing_with_a_sentence(), _progress(as_json) as progress:
        outcomes = policy_run.measure(plan, progress)
    if plot is not None:
        plot.write_text(regret_tables.regret_chart(outcomes))
    if not as_json:
        _show(regret_tables.regret_table(outcomes))
        _show(regret_tables.settling_table(outcomes))
    _print_json(regret.summary(outcomes, tokens))


@bench_app.command("round")
def round_(
    as_json: JsonOption = False,
    model: Annotated[str, typer.Option("--model", "-m", help="As for mtp-serve serve.")] = EMBEDDED_MODEL,
    model_draft: Annotated[str, typer.Option(help="As for mtp-serve serve.")] = "auto",
    context: Annotated[
        list[int] | None, typer.Option(min=1, max=1 << 20, help="Tokens of context; repeat for several.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, max=200, help="Measurements per length.")] = 9,
) -> None:
    """Compare one round with its bare verify forward, in this process, at 64 and 8192 tokens of context."""
    settings = _settings({"engine.model": model, "engine.draft_model": model_draft})
    plan = round_run.Plan(config=settings.engine, contexts=tuple(context or (64, 8192)), turns=turns)
    # The engine logs in this process; standard output is for the result.
    with _failing_with_a_sentence(), _progress(as_json) as progress, redirect_stdout(sys.stderr):
        points, conditions = round_run.measure(plan, progress)
    if not as_json:
        _show(round_cost.round_table(points))
    _print_json(round_cost.summary(points, conditions))


def _pairings(chosen: list[str] | None) -> dict[str, str]:
    unknown = [name for name in chosen or () if name not in policy_run.PAIRINGS]
    if unknown:
        known = ", ".join(policy_run.PAIRINGS)
        errors.print(f"mtp-serve: --pairing {unknown[0]!r} is not known; legal: {known}", markup=False)
        raise typer.Exit(2)
    return {
        name: model for name, model in policy_run.PAIRINGS.items() if name in (chosen or policy_run.PAIRINGS)
    }


def _check_plot(plot: Path | None) -> None:
    """Refuse a chart that could not be written, before anything is measured."""
    if plot is not None and not (plot.parent.is_dir() and os.access(plot.parent, os.W_OK)):
        errors.print(f"mtp-serve: the folder of --plot {plot} does not exist or cannot be written to")
        raise typer.Exit(2)
    if plot is not None and plot.is_dir():
        errors.print(f"mtp-serve: --plot {plot} is a folder; give the name of an SVG file")
        raise typer.Exit(2)


@contextmanager
def _failing_with_a_sentence() -> Generator[None]:
    """Turn a failed measurement into exit code 1, and SIGTERM into an exit that cleans up."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except BenchError as error:
        errors.print(f"mtp-serve bench: {error}", markup=False)
        raise typer.Exit(1) from error


@contextmanager
def _progress(hidden: bool) -> Generator[ProgressBar]:
    counted = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    columns = (*counted, TextColumn("{task.description}"))
    # A step may take half a minute, and the time left is told from all of them.
    with RichProgress(
        *columns, console=errors, disable=hidden, transient=True, speed_estimate_period=_ESTIMATE_FROM_S
    ) as bar:
        yield ProgressBar(bar)


def _show(table: tables.Table) -> None:
    drawn = RichTable(*table.columns, title=table.title)
    for row in table.rows:
        drawn.add_row(*row)
    screen.print(drawn)


def _print_json(figures: dict[str, object]) -> None:
    typer.echo(msgspec.json.encode(figures).decode())


def _cache_root() -> Path:
    return _settings({}).engine.cache_path()


def _settings(flags: dict[str, object]) -> Settings:
    try:
        return resolve(None, os.environ, flags).settings
    except SettingsError as error:
        errors.print(f"mtp-serve: {error}", markup=False)
        raise typer.Exit(2) from error
