"""Runs the overhead rounds: starts the three systems, asks them in turn, takes them down again.

What the answers mean is `bench.overhead`'s business.
"""

import os
import platform
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from bench import launch
from bench.checkpoint import directory
from bench.child import Child
from bench.errors import BenchError
from bench.overhead import LABELS, SYSTEMS, WIDTHS, Conditions, Round, System
from bench.process_tree import blas_libraries, cpu_percent, memory_mb
from bench.progress import Progress
from bench.prompts import completion_prompts, warm_up_prompts
from bench.reply import Reply

_NUM_SLOTS = max(WIDTHS)
_WARM_UP_TOKENS = 8
_IDLE_S = 10.0
_SETUP_STEPS = 4


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure: `pairs` rounds per number of streams, `tokens` tokens per answer."""

    model: str
    tokens: int
    pairs: int
    cache_root: Path


class Completes(Protocol):
    """A system that completes prompts."""

    def complete(self, prompts: list[str], max_tokens: int) -> tuple[Reply, ...]:
        """Greedy completions of all prompts at the same time."""
        ...


def measure(plan: Plan, progress: Progress) -> tuple[list[Round], Conditions]:
    """Run the whole benchmark. Raises BenchError; leaves no process behind in any case."""
    progress.total(_SETUP_STEPS + plan.pairs * len(WIDTHS) * len(SYSTEMS))
    progress.step("preparing the checkpoint")
    model = directory(plan.model, plan.cache_root)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mtp-serve-bench-")))
        setup = launch.Setup(
            model=model,
            threads=os.cpu_count() or 1,
            num_slots=_NUM_SLOTS,
            cache_root=plan.cache_root,
            logs=logs,
        )
        progress.step("starting mtp-serve (Ray takes about 15 seconds)")
        started = time.monotonic()
        ours = launch.mtp_serve_plain(setup)
        stack.enter_context(ours.child)
        ours.wait_until_ready()
        startup_s = time.monotonic() - started
        # Before the other two run, or their memory traffic would count as ours.
        progress.step(f"watching mtp-serve idle for {_IDLE_S:.0f} s")
        _warm_up(ours)
        idle_percent = _idle_percent(ours)
        progress.step("starting mlx_lm.server and the in-process baseline")
        theirs = launch.mlx_lm_server(setup)
        stack.enter_context(theirs.child)
        baseline = launch.Inprocess(setup)
        stack.enter_context(baseline.child)
        loaded = baseline.load()
        theirs.wait_until_ready()
        _warm_up(theirs)
        _warm_up(baseline)
        systems: Mapping[System, Completes] = {
            "inprocess": baseline,
            "mlx_lm_server": theirs,
            "mtp_serve": ours,
        }
        children: Mapping[System, Child] = {
            "inprocess": baseline.child,
            "mlx_lm_server": theirs.child,
            "mtp_serve": ours.child,
        }
        require_same_blas({system: blas_libraries(child.tree()) for system, child in children.items()})
        rounds = _rounds(plan, systems, progress)
        conditions = Conditions(
            model=model.name,
            dtype=loaded.dtype,
            blas=loaded.blas,
            threads=setup.threads,
            startup_s=startup_s,
            idle_cpu_percent=idle_percent,
            memory_mb={system: memory_mb(child.tree()) for system, child in children.items()},
            hardware=f"{platform.system()} {platform.machine()}, {setup.threads} CPU threads",
        )
        progress.step("stopping the servers")
    return rounds, conditions


def _rounds(plan: Plan, systems: Mapping[System, Completes], progress: Progress) -> list[Round]:
    rounds: list[Round] = []
    used = 0
    for number in range(1, plan.pairs + 1):
        for width in WIDTHS:
            prompts = completion_prompts(used, width)
            used += width
            replies: dict[System, tuple[Reply, ...]] = {}
            for system in SYSTEMS:
                progress.step(f"round {number} of {plan.pairs}, {width} stream(s), {LABELS[system]}")
                replies[system] = _checked(systems[system].complete(prompts, plan.tokens), system)
            rounds.append(Round(width, replies))
    return rounds


def _warm_up(system: Completes) -> None:
    for width in WIDTHS:
        system.complete(warm_up_prompts(width), _WARM_UP_TOKENS)


def _checked(replies: tuple[Reply, ...], system: System) -> tuple[Reply, ...]:
    for reply in replies:
        if reply.decode_tps <= 0:
            raise BenchError(
                f"{LABELS[system]} ended an answer after {reply.completion_tokens} token(s), "
                "too few to measure"
            )
    return replies


def _idle_percent(server: launch.Server) -> float:
    before, started = server.child.tree(), time.monotonic()
    time.sleep(_IDLE_S)
    server.child.check()
    return cpu_percent(before, server.child.tree(), time.monotonic() - started)


def require_same_blas(libraries: Mapping[System, frozenset[str]]) -> None:
    """Raise BenchError unless every system has the same BLAS libraries mapped."""
    if len(set(libraries.values())) > 1:
        found = ", ".join(f"{LABELS[name]}: {sorted(paths) or 'none'}" for name, paths in libraries.items())
        raise BenchError(f"no ratio would be fair, since the systems use different BLAS libraries ({found})")
