"""The command line: parses, resolves settings, hands over. Usage errors exit with code 2 and one sentence."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from configs.schema import Effective, SettingsError, resolve
from serve_app.bench_cli import bench_app
from serve_app.drafting_cli import fit_drafter, split_mtp
from serve_app.policy_cli import policy_app

app = typer.Typer(
    name="mtp-serve",
    help="Serve a language model with measured multi-token-prediction speculation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(policy_app, name="policy")
app.add_typer(bench_app, name="bench")
app.command("split-mtp")(split_mtp)
app.command("fit-drafter")(fit_drafter)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

DEFAULT_URL = "http://127.0.0.1:8080"

UrlOption = Annotated[str, typer.Option(help="Base URL of a running server.")]
KeyOption = Annotated[str | None, typer.Option(help="API key of the server.", envvar="MTP_SERVE_API_KEY")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


def main() -> None:
    """Entry point of the console script; a defect ends in one sentence, not in a traceback."""
    try:
        app()
    except Exception as error:
        errors.print(f"mtp-serve: internal fault: {type(error).__name__}: {error}")
        raise SystemExit(1) from None


@app.command()
def serve(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Checkpoint directory, hub id or embedded model.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Requests generated at the same time.")] = None,
    max_queue_depth: Annotated[int | None, typer.Option(help="Requests that may wait for a slot.")] = None,
    model_draft: Annotated[
        str | None,
        typer.Option(help="Folder of a drafter; `auto` for the one that comes with the model, `none`."),
    ] = None,
    draft_kind: Annotated[str | None, typer.Option(help="mtp, model, or auto to look.")] = None,
    draft_block_size: Annotated[
        str | None,
        typer.Option(help="Rows per verify forward, 2 to 16; 0 is the drafter's own; auto: as measured."),
    ] = None,
    draft_lookup: Annotated[
        bool | None, typer.Option(help="Verify what followed the same tokens earlier in the text, if any.")
    ] = None,
    draft_confidence_stop: Annotated[
        float | None, typer.Option(help="End a chain of drafts below this probability; 0 is off.")
    ] = None,
    audit_share: Annotated[
        float | None, typer.Option(help="Share of speculative rounds re-checked token by token, 0 to 1.")
    ] = None,
    ctx_size: Annotated[
        int | None, typer.Option(help="Context length in tokens; 0 is the model's own.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads for matrix products; 0 is every core.")
    ] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Model name shown to clients.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Accepted API key; repeat for several.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with one accepted API key per line.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join instead of starting a local one.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
) -> None:
    """Serve a model over HTTP until stopped."""
    from serve_app import server  # noqa: PLC0415 - Ray costs seconds that other commands need not pay
    from serve_app.auth import read_api_key_file  # noqa: PLC0415

    try:
        keys = [*(api_key or []), *(read_api_key_file(api_key_file) if api_key_file else [])]
    except (OSError, ValueError) as error:
        raise _usage_error(str(error)) from error
    effective = _resolve(
        config,
        {
            "engine.model": model,
            "engine.num_slots": parallel,
            "engine.context_length": ctx_size,
            "engine.threads": threads,
            "engine.draft_model": model_draft,
            "engine.draft_kind": draft_kind,
            "engine.draft_block_size": _number_or_word(draft_block_size),
            "engine.draft_lookup": draft_lookup,
            "engine.draft_confidence_stop": draft_confidence_stop,
            "engine.audit_share": audit_share,
            "http.host": host,
            "http.port": port,
            "http.served_model_name": served_model_name,
            "http.api_keys": tuple(keys) or None,
            "scheduler.max_queue_depth": max_queue_depth,
        },
    )
    try:
        code = server.run(effective, address)
    except server.StartError as error:
        raise _usage_error(str(error)) from error
    raise typer.Exit(code)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Checkpoint directory, hub id or embedded model.")
    ] = None,
    model_draft: Annotated[
        str | None,
        typer.Option(help="Folder of a drafter; `auto` for the one that comes with the model, `none`."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of sampled text.")] = 0,
    raw: Annotated[bool, typer.Option(help="Complete the text instead of answering it.")] = False,
    speculative: Annotated[
        bool | None, typer.Option(help="Insist on speculation or forbid it; default: when it is exact.")
    ] = None,
) -> None:
    """Generate once, in this process, without a server."""
    from engine.errors import ModelLoadError  # noqa: PLC0415
    from serve_app import offline  # noqa: PLC0415

    effective = _resolve(None, {"engine.model": model, "engine.draft_model": model_draft})
    wanted = offline.Prompt(
        text=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        is_chat=not raw,
        speculative=speculative,
    )
    try:
        finished = offline.generate(
            effective.settings.engine, wanted, lambda text: typer.echo(text, nl=False)
        )
    except ModelLoadError as error:
        raise _usage_error(str(error)) from error
    typer.echo("")
    errors.print(offline.summary(finished))


@app.command()
def status(url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonOption = False) -> None:
    """Say what a running server has decided about speculation, and why."""
    from serve_app import status as status_page  # noqa: PLC0415

    try:
        body = status_page.fetch(url, api_key)
    except status_page.StatusError as error:
        errors.print(str(error))
        raise typer.Exit(1) from error
    typer.echo(status_page.as_json(body) if as_json else status_page.describe(body))


def _resolve(config: Path | None, flags: dict[str, object]) -> Effective:
    try:
        return resolve(config, os.environ, flags)
    except SettingsError as error:
        raise _usage_error(str(error)) from error


def _number_or_word(text: str | None) -> int | str | None:
    """The value of an option that takes a number or a word; which are legal is for the settings to say."""
    return int(text) if text is not None and text.isdecimal() else text and text.lower()


def _usage_error(message: str) -> typer.Exit:
    errors.print(f"mtp-serve: {message}")
    return typer.Exit(2)
