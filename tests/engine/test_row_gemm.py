"""The row kernels, called as MLX calls them, and how they come to be compiled."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from numpy.typing import NDArray

from engine import row_gemm
from engine.cpu.narrow import packed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernels are for MLX's Linux CPU backend")

Matrix = NDArray[np.float32]

ROW_MAJOR, COLUMN_MAJOR, PLAIN, TRANSPOSED = 101, 102, 111, 112
WIDEST_STRIP = 512
GUARD = np.float32(-77)
_INT, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
SGEMM = (*[_INT] * 6, _FLOAT, _POINTER, _INT, _POINTER, _INT, _FLOAT, _POINTER, _INT)
NEXT = ctypes.CFUNCTYPE(None, *SGEMM)


class Case(Struct, frozen=True):
    """One product to draw: its shape, how far apart rows lie beyond their width, its scalars."""

    rows: int
    columns: int
    depth: int
    transposed: bool
    gaps: tuple[int, int, int]
    alpha: float
    beta: float
    seed: int

    def operands(self) -> tuple[Matrix, Matrix]:
        """a and b, their gaps filled with NaN."""
        rng = np.random.default_rng(self.seed)
        shape = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        return spaced(rng, (self.rows, self.depth), self.gaps[0]), spaced(rng, shape, self.gaps[1])


CASES = st.builds(
    Case,
    rows=st.integers(1, 8),
    columns=st.integers(1, 40),
    depth=st.integers(1, 70),
    transposed=st.booleans(),
    gaps=st.tuples(*[st.integers(0, 5)] * 3),
    alpha=st.sampled_from([1.0, 0.5, -2.0]),
    beta=st.sampled_from([0.0, 1.0, 0.25]),
    seed=st.integers(0, 999),
)


def spaced(rng: np.random.Generator, shape: tuple[int, int], gap: int) -> Matrix:
    """A random matrix whose rows lie `gap` further apart than they are wide."""
    room = np.full((shape[0], shape[1] + gap), np.nan, np.float32)
    room[:, : shape[1]] = rng.standard_normal(shape, np.float32)
    return room[:, : shape[1]]


def stride(matrix: Matrix) -> int:
    return matrix.strides[0] // matrix.itemsize


class Kernels:
    """The compiled library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.cblas_sgemm.argtypes = SGEMM
        self._library.cblas_sgemm.restype = None
        self._next: Any = None

    def init(self, threads: int = 1, passed_on: list[tuple[Any, ...]] | None = None) -> None:
        """Products of other kinds are noted in `passed_on`."""
        noted = [] if passed_on is None else passed_on
        self._next = NEXT(lambda *args: noted.append(args))
        self._library.row_gemm_init(self._next, threads)

    def sgemm(self, *args: Any) -> None:
        """The bare call."""
        self._library.cblas_sgemm(*args)

    def product(
        self,
        a: Matrix,
        b: Matrix,
        transposed: bool = True,
        alpha: float = 1.0,
        beta: float = 0.0,
        into: Matrix | None = None,
    ) -> Matrix:
        """alpha a b + beta into, with b as it is stored; `into` is written to."""
        columns = b.shape[0 if transposed else 1]
        c = np.full((len(a), columns), np.nan, np.float32) if into is None else into
        kind = TRANSPOSED if transposed else PLAIN
        self.sgemm(
            *(ROW_MAJOR, PLAIN, kind, len(a), columns, a.shape[1], alpha, a.ctypes.data, stride(a)),
            *(b.ctypes.data, stride(b), beta, c.ctypes.data, stride(c)),
        )
        return c

    def narrowed(self, b: Matrix) -> NDArray[np.float64]:
        """Makes a copy of b that is read instead until `forget`; returns the weights that it stands for."""
        rows, scales = packed(b)
        self._copies = rows, scales
        assert self._library.row_gemm_narrow(
            *(_POINTER(b.ctypes.data), *b.shape, _POINTER(rows.ctypes.data), _POINTER(scales.ctypes.data))
        )
        steps = np.rint(b / np.where(scales > 0, scales, 1)[:, None])
        return steps.astype(np.float64) * scales[:, None]

    def forget(self, b: Matrix) -> None:
        """Ends b's copy."""
        self._library.row_gemm_forget(_POINTER(b.ctypes.data))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The library, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        # A busy machine is no reason to fail.
        patch.setattr(row_gemm, "_COMPILE_TIMEOUT_S", 280.0)
        library = row_gemm.compiled(tmp_path_factory.mktemp("kernels"))
    assert library is not None, "these tests need a C compiler"
    kernels = Kernels(library)
    kernels.init()
    return kernels


@given(case=CASES)
def test_products_agree_with_numpy(kernels: Kernels, case: Case) -> None:
    """Any shape, any distance between rows, any scalars; nothing beside the result is written."""
    a, b = case.operands()
    room = np.full((case.rows + 1, case.columns + case.gaps[2]), GUARD)
    result = room[: case.rows, : case.columns]
    result[:] = np.random.default_rng(case.seed + 1).standard_normal(result.shape, np.float32)
    wide_a, wide_b, before = (x.astype(np.float64) for x in (a, b, result))
    wide_b = wide_b.T if case.transposed else wide_b
    kernels.product(a, b, case.transposed, case.alpha, case.beta, result)
    wanted = case.alpha * (wide_a @ wide_b) + case.beta * before
    scale = abs(case.alpha) * (abs(wide_a) @ abs(wide_b)) + case.beta * abs(before)
    assert np.all(abs(result - wanted) <= 2e-6 * scale)
    assert np.all(room[case.rows :] == GUARD)
    assert np.all(room[:, case.columns :] == GUARD)


def test_a_result_that_is_overwritten_is_not_read(kernels: Kernels) -> None:
    """With beta 0 what lay there before may be no number."""
    ones = np.ones((3, 3), np.float32)
    for transposed in (True, False):
        assert np.all(kernels.product(ones, ones, transposed, into=np.full((3, 3), np.nan, np.float32)) == 3)


@given(case=CASES)
def test_a_row_has_the_bytes_it_has_alone(kernels: Kernels, case: Case) -> None:
    """How many rows come with it, and its place among them, change nothing."""
    a, b = case.operands()
    together = kernels.product(a, b, case.transposed, case.alpha)
    alone = [kernels.product(a[i : i + 1], b, case.transposed, case.alpha) for i in range(case.rows)]
    assert together.tobytes() == np.concatenate(alone).tobytes()


@given(case=CASES, more=st.integers(1, 20))
def test_appended_zeros_change_nothing(kernels: Kernels, case: Case, more: int) -> None:
    """Attention reads whole pages: keys that a mask hides weigh zero, whatever finite value they have."""
    a, b = case.operands()
    along = 1 if case.transposed else 0
    shape = (case.columns, more) if case.transposed else (more, case.columns)
    leftover = np.random.default_rng(case.seed + 1).standard_normal(shape, np.float32)
    longer = kernels.product(
        np.concatenate([a, np.zeros((case.rows, more), np.float32)], axis=1),
        np.concatenate([b, leftover], axis=along),
        case.transposed,
    )
    assert longer.tobytes() == kernels.product(a, b, case.transposed).tobytes()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_byte(kernels: Kernels, threads: int) -> None:
    """A product large enough to be shared has the bytes of one thread's, and of its rows alone."""
    rng = np.random.default_rng(0)
    a, b = spaced(rng, (4, 701), 3), spaced(rng, (1003, 701), 5)
    assert a.shape[0] * b.size >= 2.5e6 > b.size  # a row alone is not shared
    kernels.init(threads=1)
    wanted = kernels.product(a, b)
    assert np.allclose(wanted, a @ b.T, atol=1e-3)
    kernels.init(threads=threads)
    assert kernels.product(a, b).tobytes() == wanted.tobytes()
    for i in range(4):
        assert kernels.product(a[i : i + 1], b).tobytes() == wanted[i].tobytes()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param((ROW_MAJOR, PLAIN, TRANSPOSED, 9, 3), id="nine rows"),
        pytest.param((ROW_MAJOR, PLAIN, PLAIN, 9, 3), id="nine rows of an untransposed b"),
        pytest.param((ROW_MAJOR, TRANSPOSED, TRANSPOSED, 4, 3), id="transposed a"),
        pytest.param((ROW_MAJOR, PLAIN, TRANSPOSED, 0, 3), id="no rows"),
        pytest.param((ROW_MAJOR, PLAIN, PLAIN, 0, 3), id="no rows of an untransposed b"),
        pytest.param((COLUMN_MAJOR, PLAIN, TRANSPOSED, 4, 3), id="column-major"),
        pytest.param((ROW_MAJOR, PLAIN, PLAIN, 4, WIDEST_STRIP + 1), id="wide untransposed b"),
    ],
)
def test_other_products_are_passed_on(kernels: Kernels, kind: tuple[int, ...]) -> None:
    """What the kernels are not for goes to the next BLAS with the very arguments, and is left to it."""
    passed_on: list[tuple[Any, ...]] = []
    kernels.init(passed_on=passed_on)
    a, b, c = (np.full(10_000, value, np.float32) for value in (1, 1, GUARD))
    args = (*kind, 5, 0.5, a.ctypes.data, 601, b.ctypes.data, 602, 0.25, c.ctypes.data, 603)
    kernels.sgemm(*args)
    assert passed_on == [args]
    assert np.all(c == GUARD)


@pytest.mark.parametrize(("transposed", "columns"), [(True, WIDEST_STRIP + 1), (False, WIDEST_STRIP)])
def test_eight_rows_are_not_passed_on(kernels: Kernels, transposed: bool, columns: int) -> None:
    """The largest products that the kernels serve."""
    passed_on: list[tuple[Any, ...]] = []
    kernels.init(passed_on=passed_on)
    a, b = np.ones((8, 2), np.float32), np.ones((columns, 2) if transposed else (2, columns), np.float32)
    assert np.all(kernels.product(a, b, transposed) == 2)
    assert passed_on == []


NARROW = st.builds(
    Case,
    rows=st.integers(1, 8),
    columns=st.integers(1, 40),
    depth=st.integers(1, 140),
    transposed=st.just(True),
    gaps=st.tuples(st.integers(0, 5), st.just(0), st.just(0)),
    alpha=st.sampled_from([1.0, -2.0]),
    beta=st.just(0.0),
    seed=st.integers(0, 999),
)


@given(case=NARROW)
def test_a_narrow_copy_stands_for_its_matrix(kernels: Kernels, case: Case) -> None:
    """Products are those of the rounded weights, and a row has the bytes it has alone."""
    a, b = case.operands()
    rounded = kernels.narrowed(b)
    together = kernels.product(a, b, alpha=case.alpha)
    alone = [kernels.product(a[i : i + 1], b, alpha=case.alpha) for i in range(case.rows)]
    kernels.forget(b)
    wanted = case.alpha * (a.astype(np.float64) @ rounded.T)
    scale = abs(case.alpha) * (abs(a.astype(np.float64)) @ abs(rounded.T))
    assert np.all(abs(together - wanted) <= 2e-6 * scale)
    assert together.tobytes() == np.concatenate(alone).tobytes()
    plain = kernels.product(a, b, alpha=case.alpha)
    assert np.all(
        abs(plain - case.alpha * (a.astype(np.float64) @ b.T)) <= 2e-6 * abs(case.alpha) * (abs(a) @ abs(b.T))
    )


def test_threads_share_a_narrow_copy(kernels: Kernels) -> None:
    """A product large enough to be shared has the bytes of one thread's."""
    rng = np.random.default_rng(0)
    a, b = spaced(rng, (4, 701), 3), spaced(rng, (1003, 701), 0)
    kernels.narrowed(b)
    kernels.init(threads=1)
    wanted = kernels.product(a, b)
    kernels.init(threads=3)
    assert kernels.product(a, b).tobytes() == wanted.tobytes()
    kernels.forget(b)


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None) -> None:
    """The only program that can be found is a `cc` of this shell script, or none."""
    folder.mkdir()
    if script is not None:
        (folder / "cc").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_compiling_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the file of the first, untouched and alone in its folder."""
    monkeypatch.setattr(row_gemm, "_COMPILE_TIMEOUT_S", 280.0)
    first = row_gemm.compiled(tmp_path / "cache")
    assert first is not None
    assert row_gemm.is_library(first)
    before = first.stat()
    assert row_gemm.compiled(tmp_path / "cache") == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(first.parent.iterdir()) == [first]


def test_another_compiler_or_processor_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache shared by machines never gives one of them instructions it does not have."""
    on_path(monkeypatch, tmp_path / "bin", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    first = row_gemm.compiled(tmp_path / "cache")
    monkeypatch.setattr(row_gemm, "_processor", lambda: "flags: fewer")
    second = row_gemm.compiled(tmp_path / "cache")
    on_path(monkeypatch, tmp_path / "other", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    third = row_gemm.compiled(tmp_path / "cache")
    assert len({first, second, third} - {None}) == 3


@pytest.mark.parametrize("script", [None, "exit 1", "exec /bin/sleep 30"], ids=["none", "fails", "hangs"])
def test_there_are_no_kernels_without_a_working_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    """A compiler that is missing, fails or hangs is no error, and leaves nothing behind."""
    on_path(monkeypatch, tmp_path / "bin", script)
    monkeypatch.setattr(row_gemm, "_COMPILE_TIMEOUT_S", 0.5)
    cache = tmp_path / "cache"
    cache.mkdir()
    assert row_gemm.compiled(cache) is None
    assert list(cache.iterdir()) == []


def test_a_library_that_does_not_load_leaves_the_blas_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler without the runtime it links to gives a file that the loader refuses."""
    on_path(monkeypatch, tmp_path / "bin", 'while [ "$1" != -o ]; do shift; done; echo junk > "$2"')
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    assert not row_gemm.interpose(ctypes.CDLL(None), tmp_path / "cache", 1)
