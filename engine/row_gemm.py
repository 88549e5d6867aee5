"""Puts row-invariant matrix kernels (`row_gemm.c`) before the BLAS that MLX's CPU backend calls.

Owns compiling them for the machine at hand, once per cache, and the order in which the dynamic loader finds
`cblas_sgemm`. Like `engine.blas` it must come before MLX and does not import it. Where no C compiler is at
hand nothing is interposed, and the BLAS serves every product itself.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("row_gemm.c")
_COMPILERS = ("cc", "gcc", "clang")
# Without contraction every kernel rounds alike, whichever of them the compiler would fuse.
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
_PREFIX = "row-blas-"
_COMPILE_TIMEOUT_S = 60.0


def interpose(blas: ctypes.CDLL, folder: Path, threads: int) -> bool:
    """Serve float32 products of a few rows from our own kernels with `threads` threads, others from `blas`.

    `folder` keeps the compiled library. `blas` must not be in the global symbol scope yet. Returns whether
    the kernels are in force.
    """
    library = compiled(folder)
    if library is None:
        return False
    # Read by the OpenMP runtime when it is loaded. A thread that spins between products takes a core from
    # building the graph and from serving.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        kernels = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    kernels.row_gemm_init(ctypes.cast(blas.cblas_sgemm, ctypes.c_void_p), threads)
    return True


def is_library(path: Path) -> bool:
    """Whether `path` is one of the libraries compiled here."""
    return path.name.startswith(_PREFIX)


def compiled(folder: Path) -> Path | None:
    """The library for this processor in `folder`, compiled unless it is there; None when it cannot be."""
    for compiler in filter(None, map(shutil.which, _COMPILERS)):
        target = folder / f"{_PREFIX}{_digest(compiler)}.so"
        try:
            if not target.exists():
                _compile(compiler, target)
        except (OSError, subprocess.SubprocessError):
            # For example a clang without an OpenMP library; the next one may do.
            continue
        return target
    return None


def _digest(compiler: str) -> str:
    """Changes with the source, the compiler and the processor, which `-march=native` compiles for."""
    facts = (_SOURCE.read_text(), compiler, *_FLAGS, _processor())
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        command = [compiler, *_FLAGS, "-o", str(built), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_TIMEOUT_S)
        # The rename is atomic, so two replicas starting together cannot see half a library.
        built.replace(target)
