"""CPU time and memory of a process and its descendants, from /proc on Linux and from ps elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
# What reading about a process raises when it ends meanwhile, or when it is another user's.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Process(Struct, frozen=True, kw_only=True):
    """One process at one moment; `started` tells it from a later process with the same id."""

    pid: int
    parent: int
    started: str
    cpu_s: float


def processes() -> list[Process]:
    """Every process of this machine that has not ended."""
    if sys.platform == "linux":
        found: list[Process] = []
        for name in filter(str.isdigit, os.listdir(_PROC)):
            with suppress(*_GONE):
                process = from_stat((_PROC / name / "stat").read_text(), os.sysconf("SC_CLK_TCK"))
                found += [process] if process is not None else []
        return found
    return [from_ps(line) for line in _ps("pid=,ppid=,time=,lstart=") if line.strip()]


def descendants(root: int, listed: Iterable[Process]) -> list[Process]:
    """Those of the listed processes that are `root` or were started by it, directly or not."""
    candidates = list(listed)
    wanted, grown = {root}, True
    while grown:
        below = {process.pid for process in candidates if process.parent in wanted}
        grown = not below <= wanted
        wanted |= below
    return [process for process in candidates if process.pid in wanted]


def cpu_percent(before: Sequence[Process], after: Sequence[Process], seconds: float) -> float:
    """CPU time spent between two looks at a tree, in percent of one core."""
    earlier = {(process.pid, process.started): process.cpu_s for process in before}
    spent = sum(process.cpu_s - earlier.get((process.pid, process.started), 0.0) for process in after)
    return 100 * spent / seconds


def memory_mb(listed: Iterable[Process]) -> float:
    """Memory of the processes in MB of 10^6 bytes; on Linux a page shared among them counts once."""
    if sys.platform == "linux":
        return sum(_proportional_kb(process.pid) for process in listed) * 1024 / 1e6
    wanted = {process.pid for process in listed}
    resident = (line.split() for line in _ps("pid=,rss=") if line.strip())
    return sum(int(kilobytes) for pid, kilobytes in resident if int(pid) in wanted) * 1024 / 1e6


def blas_libraries(listed: Iterable[Process]) -> frozenset[str]:
    """Paths of the BLAS libraries mapped by those of the processes that run MLX; empty where /proc is not."""
    found: set[str] = set()
    if sys.platform == "linux":
        for process in listed:
            with suppress(*_GONE):
                found |= blas_of_maps((_PROC / str(process.pid) / "maps").read_text())
    return frozenset(found)


def blas_of_maps(text: str) -> set[str]:
    """BLAS libraries in the text of /proc/PID/maps, if MLX is there too.

    Those that other wheels bring along for themselves, in a folder named NAME.libs, are left out.
    """
    paths = {Path(fields[5]) for line in text.splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    if not any(path.name.startswith("libmlx.") for path in paths):
        return set()
    return {str(p) for p in paths if "blas" in p.name and p.parent.suffix != ".libs"}


def from_stat(text: str, ticks_per_second: int) -> Process | None:
    """A process from the text of /proc/PID/stat; None for one that has ended."""
    # The command's name stands in parentheses and may hold anything; the fields after it are fixed.
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(
        pid=int(text.split(maxsplit=1)[0]),
        parent=int(fields[1]),
        started=fields[19],
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks_per_second,
    )


def from_ps(line: str) -> Process:
    """A process from a line of `ps -o pid=,ppid=,time=,lstart=`; a time is [[days-]hours:]minutes:seconds."""
    pid, parent, time, started = line.split(maxsplit=3)
    days, _, clock = time.rpartition("-")
    seconds = int(days or 0) * 86400.0
    for power, part in enumerate(reversed(clock.split(":"))):
        seconds += float(part) * 60**power
    return Process(pid=int(pid), parent=int(parent), started=started.strip(), cpu_s=seconds)


def _proportional_kb(pid: int) -> int:
    with suppress(*_GONE):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _ps(columns: str) -> list[str]:
    command = ["ps", "-A", "-o", columns]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
