"""The policy on a live server: from profiling to a verdict that survives kills and restarts."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import nbformat
import pytest
from nbclient import NotebookClient

from tests import tiny
from tests.live.server import LiveServer, eventually

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where verdicts persist across the servers of this module."""
    return tmp_path_factory.mktemp("verdict")


@pytest.fixture(scope="module")
def arguments(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The tiny model with a random head."""
    head = tiny.write_head(tmp_path_factory.mktemp("tiny") / "tiny-head")
    return "--model", str(tiny_checkpoint), "--model-draft", str(head)


@pytest.fixture(scope="module")
def server(folder: Path, arguments: tuple[str, ...]) -> Iterator[LiveServer]:
    """A server with a drafter and an empty cache."""
    live = LiveServer(folder, *arguments)
    live.wait_until(200)
    yield live
    live.close()


def policy(server: LiveServer) -> dict:
    """The policy body."""
    return httpx.get(f"{server.url}/v1/internal/mtp-policy", timeout=5).json()


def complete(server: LiveServer, **changes: object) -> dict:
    """One completion of 160 tokens."""
    body = {"prompt": "hello", "max_tokens": 160, "temperature": 0, "ignore_eos": True} | changes
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()


def text(reply: dict) -> tuple:
    """What a client compares."""
    return reply["choices"][0]["text"], reply["choices"][0]["finish_reason"], reply["usage"]


def test_a_fresh_pairing_profiles_with_all_its_key_fields(server: LiveServer) -> None:
    """After the probe the state is profiling with nothing measured yet."""
    eventually(lambda: policy(server)["state"] == "profiling", 30)
    body = policy(server)
    assert (body["samples"], body["samples_remaining"], body["acceptance_rate"]) == (0, 4, None)
    assert (body["drafter"], body["block_size"], body["exact"]) == ("tiny-head", 4, True)


def test_a_requests_own_choice_changes_nothing_but_the_timings(server: LiveServer) -> None:
    """Speculation on and off give the same text, reason and usage; only `timings` tells them apart."""
    on, off = (complete(server, speculative=choice, prompt="choose") for choice in (True, False))
    assert text(on) == text(off)
    assert on["timings"]["draft_rounds"] > 0
    assert on["timings"]["draft_kind"] == "mtp"
    assert "draft_rounds" not in off["timings"]


def test_profiling_survives_the_death_of_the_policy_and_settles(server: LiveServer, folder: Path) -> None:
    """Samples count up, a kill in between loses none that mattered, and the verdict reaches the disk."""
    complete(server)
    complete(server)
    eventually(lambda: policy(server)["samples"] == 2, 10)
    server.kill("Policy")
    # While the policy is away nothing fails and requests are measured on.
    while policy(server)["state"] == "profiling":
        complete(server, prompt=f"prompt {time.monotonic()}")
    body = policy(server)
    assert body["state"] == "settled"
    assert body["samples"] >= 4
    assert body["speedup_low"] <= body["speedup"] <= body["speedup_high"]
    # A random head on a model this small cannot pay.
    assert (body["verdict"], body["mtp_enabled"]) == ("decline", False)
    (hint,) = (folder / "cache" / "mtp-policy").glob("*.json")
    assert stat.S_IMODE(hint.stat().st_mode) == 0o600
    assert json.loads(hint.read_text())["verdict"] == "decline"


def test_a_declined_pairing_serves_plainly(server: LiveServer) -> None:
    """No round runs once the verdict is decline."""
    assert "draft_rounds" not in complete(server, prompt="after the verdict")["timings"]


def test_the_verdict_outlives_model_and_policy(server: LiveServer) -> None:
    """Killing both at once leaves the endpoint answering and the verdict in place."""
    server.kill("Policy")
    server.kill("Model")
    eventually(lambda: policy(server)["reason"] == "worker_not_ready", 5)
    eventually(lambda: policy(server)["state"] == "settled", 60)
    assert policy(server)["verdict"] == "decline"


def test_status_says_the_verdict_in_a_sentence(server: LiveServer) -> None:
    """`mtp-serve status` reads the endpoint and speaks."""
    command = [sys.executable, "-m", "serve_app", "status", "--url", server.url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "MTP off" in said
    body = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(body)["verdict"] == "decline"


def test_the_notebook_runs_against_the_server(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inspection notebook attaches, reads the policy by message, plots and replays."""
    monkeypatch.setenv("MTP_SERVE_RAY_ADDRESS", server.ray_address())
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    root = Path(__file__).parents[2]
    notebook = nbformat.read(root / "notebooks" / "inspect_policy.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(root)}}).execute()
    said = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    assert "MTP off" in said[0]
    assert any("decline" in text for text in said)


def test_a_restart_finds_the_verdict_and_a_pin_hides_it(
    server: LiveServer, folder: Path, arguments: tuple[str, ...]
) -> None:
    """A new server settles at once from disk; MLXCEL_ENABLE_MTP_B1 shows as a pin, not as a measurement."""
    assert server.terminate() == 0
    again = LiveServer(folder, *arguments, MLXCEL_ENABLE_MTP_B1="1")
    try:
        again.wait_until(200)
        eventually(lambda: policy(again)["state"] == "forced", 20)
        body = policy(again)
        assert (body["mtp_enabled"], body["verdict"], body["samples"]) == (True, None, 0)
        assert complete(again)["timings"]["draft_rounds"] > 0
    finally:
        again.close()


def test_a_misspelt_switch_is_refused_at_once(arguments: tuple[str, ...]) -> None:
    """Exit code 2, the name, the value and the legal spellings; nothing is started."""
    command = [sys.executable, "-m", "serve_app", "serve", *arguments]
    environment = os.environ | {"MLXCEL_ENABLE_MTP_B1": "maybe"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 2
    assert "MLXCEL_ENABLE_MTP_B1 is 'maybe'" in done.stderr
    assert "true" in done.stderr
