"""Child processes: what they say when they die, and that nothing of them is left."""

import signal
from pathlib import Path

import pytest

from bench import child as children
from bench.child import Child, environment, free_port, python
from bench.errors import BenchError
from bench.process_tree import processes

ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"
PARENT_OF_A_STUBBORN_ONE = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = """import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)"""
grandchild = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
grandchild.stdout.readline()
print(grandchild.pid, flush=True)
time.sleep(600)
'''


def alive(pid: int) -> bool:
    """Whether a process runs."""
    return pid in {process.pid for process in processes()}


def test_lines_are_answered(tmp_path: Path) -> None:
    """Each line asked gets its own line back."""
    with Child("echo", python("-c", ECHO), environment(), tmp_path / "log", talks=True) as child:
        assert child.ask(b"abc") == b"cba\n"
        assert child.ask(b"123") == b"321\n"


def test_a_child_that_dies_says_so_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The error names the child, its exit code and the last lines, not the first ones of a long log."""
    code = "import sys; [print('line', i, file=sys.stderr) for i in range(100)]; sys.exit(3)"
    with Child("the thing", python("-c", code), environment(), tmp_path / "log", talks=True) as child:
        with pytest.raises(BenchError, match="the thing ended with code 3") as caught:
            child.answer()
        assert "line 99" in str(caught.value)
        assert "line 5\n" not in str(caught.value)
        with pytest.raises(BenchError, match="code 3"):
            child.check()


def test_what_ignores_sigterm_is_killed_with_its_own_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a grandchild in a session of its own outlives the benchmark."""
    monkeypatch.setattr(children, "_STOP_TIMEOUT_S", 0.1)
    command = python("-c", PARENT_OF_A_STUBBORN_ONE)
    with Child("stubborn", command, environment(), tmp_path / "log", talks=True) as child:
        grandchild = int(child.answer())
        parent = child.tree()[0].pid
        assert alive(grandchild)
    assert not alive(grandchild)
    assert not alive(parent)


def test_children_are_taken_down_when_the_benchmark_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a measurement ends the child too."""
    pids: list[int] = []

    def measure() -> None:
        with Child("echo", python("-c", ECHO), environment(), tmp_path / "log", talks=True) as child:
            child.ask(b"up")
            pids.append(child.tree()[0].pid)
            signal.raise_signal(signal.SIGINT)

    # A shell's background jobs ignore the signal, tests that run in one included.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            measure()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(pids) == 1
    assert not alive(pids[0])


def test_children_may_write_byte_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a server start takes minutes; what is asked for in addition is set."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    variables = environment(EXTRA="x")
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    assert variables["EXTRA"] == "x"


def test_a_free_port_can_be_listened_on() -> None:
    """It is a real port, and not one from a list."""
    assert 1024 <= free_port() <= 65535
