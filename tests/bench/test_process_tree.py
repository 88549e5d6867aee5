"""Reading processes, telling a tree from the rest, and adding up its CPU time."""

import os

import pytest

from bench.process_tree import (
    Process,
    blas_of_maps,
    cpu_percent,
    descendants,
    from_ps,
    from_stat,
    memory_mb,
    processes,
)


def process(pid: int, parent: int = 1, cpu_s: float = 0.0, started: str = "s") -> Process:
    """A process with plausible fields."""
    return Process(pid=pid, parent=parent, started=started, cpu_s=cpu_s)


def test_a_tree_holds_grandchildren_and_no_neighbours() -> None:
    """Order of listing does not matter."""
    listed = [process(9, 5), process(5, 2), process(2), process(3), process(7, 3)]
    assert {p.pid for p in descendants(2, listed)} == {2, 5, 9}


def test_cpu_time_counts_new_processes_whole_and_old_ones_from_before() -> None:
    """A reused process id is a new process."""
    before = [process(1, cpu_s=10.0), process(2, cpu_s=50.0, started="a")]
    after = [process(1, cpu_s=11.0), process(2, cpu_s=0.5, started="b"), process(3, cpu_s=0.5)]
    assert cpu_percent(before, after, seconds=4) == pytest.approx(50)


def test_a_command_name_with_parentheses_and_spaces_is_no_trap() -> None:
    """Fields are counted from the last parenthesis."""
    fields = " ".join(["S", "7", *["0"] * 9, "150", "50", *["0"] * 6, "8888", "0"])
    found = from_stat(f"42 (a) b (c)) {fields}", ticks_per_second=100)
    assert found == Process(pid=42, parent=7, started="8888", cpu_s=2.0)
    assert from_stat(f"42 (a) {fields.replace('S', 'Z')}", ticks_per_second=100) is None


@pytest.mark.parametrize(
    ("time", "seconds"), [("0:01.50", 1.5), ("00:02:03", 123.0), ("1-01:00:01", 90001.0)]
)
def test_ps_times_are_read_in_every_form(time: str, seconds: float) -> None:
    """Minutes with fractions as on macOS, hours, and days."""
    found = from_ps(f"  42     7 {time} Mon Nov  3 10:11:12 2025 ")
    assert found == Process(pid=42, parent=7, started="Mon Nov  3 10:11:12 2025", cpu_s=seconds)


def test_this_process_is_found_with_its_memory() -> None:
    """The readers work on the machine that runs the tests."""
    own = descendants(os.getpid(), processes())
    assert os.getpid() in {p.pid for p in own}
    assert memory_mb(own) > 1


def test_the_blas_under_mlx_is_told_from_those_of_other_wheels() -> None:
    """A process without MLX does not count, nor does the library a wheel brings for itself."""
    line = "7f00-7f01 r-xp 00000000 08:01 99    "
    own = [f"{line}/cache/blas/openblas-0.3.so", f"{line}/env/numpy.libs/libscipy_openblas64_.so"]
    mlx = f"{line}/env/mlx/lib/libmlx.so"
    assert blas_of_maps("\n".join([*own, mlx, "7f02-7f03 rw-p 0 00:00 0"])) == {"/cache/blas/openblas-0.3.so"}
    assert blas_of_maps("\n".join(own)) == set()
