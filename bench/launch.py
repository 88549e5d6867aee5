"""How each measured system is started as a child process; says nothing about what is asked of it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.child import Child, environment, free_port, python
from bench.client import Client
from bench.errors import BenchError
from bench.inprocess import Loaded, Task
from bench.reply import Reply

# Ray's first start on a machine compiles its byte code.
_READY_TIMEOUT_S = 300.0
# How people change what the policy does, or where its verdicts are kept.
_OVERRIDES = "MLXCEL_"
_RUN_MTP_SERVE = "from serve_app.cli import main; main()"


class Setup(Struct, frozen=True, kw_only=True):
    """What all systems share: checkpoint, CPU threads, streams at a time, folders of caches and logs."""

    model: Path
    threads: int
    num_slots: int
    cache_root: Path
    logs: Path


class Inprocess:
    """The process that calls mlx-lm as a library."""

    def __init__(self, setup: Setup) -> None:
        """Starts it; `load` waits until the model is there."""
        command = python("-m", "bench.inprocess", "--model", str(setup.model), *_blas_options(setup))
        self.child = Child(
            "the in-process baseline", command, environment(), setup.logs / "inprocess.log", talks=True
        )

    def load(self) -> Loaded:
        """Wait for the model. Raises BenchError when the child ends instead."""
        return msgspec.json.decode(self.child.answer(), type=Loaded)

    def complete(self, prompts: Sequence[str], max_tokens: int) -> tuple[Reply, ...]:
        """As `Client.complete`, without HTTP."""
        answer = self.child.ask(msgspec.json.encode(Task(tuple(prompts), max_tokens)))
        return msgspec.json.decode(answer, type=tuple[Reply, ...])


class Server:
    """A server of OpenAI's protocol in a child process."""

    def __init__(self, child: Child, client: Client) -> None:
        """Both belong to each other; `client` speaks to `child`."""
        self.child = child
        self.client = client

    def wait_until_ready(self) -> None:
        """Raises BenchError with the end of the child's log when it ends instead."""
        self.client.wait_until_ready(_READY_TIMEOUT_S, self.child.check)

    def complete(self, prompts: Sequence[str], max_tokens: int) -> tuple[Reply, ...]:
        """Greedy completions of all prompts at the same time. Raises BenchError."""
        with self.blaming():
            return self.client.complete(prompts, max_tokens)

    @contextmanager
    def blaming(self) -> Generator[None]:
        """Explain a failed request by the child's death where that is the reason."""
        try:
            yield
        except BenchError:
            self.child.check()
            raise


def mlx_lm_server(setup: Setup) -> Server:
    """`mlx_lm.server` under the same BLAS, with as many slots as mtp-serve."""
    port = free_port()
    slots = str(setup.num_slots)
    own = python("-m", "bench.mlx_lm_server", *_blas_options(setup))
    theirs = ["--model", str(setup.model), "--host", "127.0.0.1", "--port", str(port)]
    limits = ["--decode-concurrency", slots, "--prompt-concurrency", slots]
    child = Child(
        "mlx_lm.server", [*own, "--", *theirs, *limits], environment(), setup.logs / "mlx_lm_server.log"
    )
    return Server(child, Client(f"http://127.0.0.1:{port}"))


def mtp_serve_plain(setup: Setup) -> Server:
    """mtp-serve on the same checkpoint with speculation pinned off."""
    options = [
        "--model",
        str(setup.model),
        "--threads",
        str(setup.threads),
        "--parallel",
        str(setup.num_slots),
    ]
    plain = environment(MLXCEL_ENABLE_MTP_B1="0", MLXCEL_CACHE_DIR=str(setup.cache_root))
    return _mtp_serve(options, plain, setup.logs)


def mtp_serve(options: Sequence[str], logs: Path) -> Server:
    """mtp-serve as its user would start it, with these options of `mtp-serve serve`."""
    return _mtp_serve(options, environment(), logs)


def mtp_serve_fresh(options: Sequence[str], folder: Path) -> Server:
    """mtp-serve as it ships: nothing measured before, no variable that changes the policy; uses `folder`."""
    inherited = {name: value for name, value in environment().items() if not name.startswith(_OVERRIDES)}
    return _mtp_serve(options, inherited | {"MLXCEL_CACHE_DIR": str(folder / "cache")}, folder)


def _mtp_serve(options: Sequence[str], variables: dict[str, str], logs: Path) -> Server:
    port = free_port()
    command = python("-c", _RUN_MTP_SERVE, "serve", *options, "--host", "127.0.0.1", "--port", str(port))
    child = Child("mtp-serve", command, variables, logs / "mtp_serve.log")
    return Server(child, Client(f"http://127.0.0.1:{port}"))


def _blas_options(setup: Setup) -> list[str]:
    return ["--threads", str(setup.threads), "--cache-root", str(setup.cache_root)]
