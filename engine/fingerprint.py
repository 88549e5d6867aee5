"""What a measurement depends on, digested: weights, drafter, software, BLAS, device, block size."""

import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

from engine.loading import LoadFacts

_SAMPLED_BYTES = 1 << 20


def fingerprint(
    facts: LoadFacts, paths: Iterable[Path], block_size: int, drafting: str = "", is_pinned: bool = False
) -> str:
    """32 hex digits that change when a verdict or a probe result measured here may no longer hold.

    `paths` are the files or folders of target and drafter. Large files count with their size and their first
    and last mebibyte: re-quantised or re-trained weights differ there, and hashing all of them takes minutes.
    `drafting` names the settings that say how drafts are made. `is_pinned`: the probe may not choose the
    kernels.
    """
    digest = hashlib.sha256()
    versions = {name: importlib.metadata.version(name) for name in ("mlx", "mlx-lm", "mtp-serve")}
    device = facts.device
    for fact in (
        versions,
        facts.blas.describe(),
        facts.weights_dtype,
        (device.backend, device.device_name, device.architecture, device.gpu_cores, device.cpu_cores),
        block_size,
        drafting,
        *(("pinned kernels",) if is_pinned else ()),
    ):
        digest.update(f"{fact}\n".encode())
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.name} {file.stat().st_size}\n".encode())
                digest.update(_sampled(file))
    return digest.hexdigest()[:32]


def _sampled(file: Path) -> bytes:
    with file.open("rb") as stream:
        head = stream.read(_SAMPLED_BYTES)
        size = file.stat().st_size
        if size <= 2 * _SAMPLED_BYTES:
            return head + stream.read()
        stream.seek(size - _SAMPLED_BYTES)
        return head + stream.read()
