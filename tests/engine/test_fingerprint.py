"""The fingerprint changes with everything a measurement depends on, and with nothing else."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import fingerprint as module
from engine.blas import Blas
from engine.device import DeviceFacts
from engine.fingerprint import fingerprint
from engine.loading import LoadFacts

FACTS = LoadFacts(
    weights_dtype="float32",
    num_parameters=1,
    device=DeviceFacts(
        backend="metal", device_name="Apple M5", architecture="g17", gpu_cores=16, cpu_cores=10
    ),
    blas=Blas(source="system", version="0.3.29", threads=2),
    load_s=1.0,
)
Edit = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two small files."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(5000))
    return made


def replaced(**changes: Any) -> LoadFacts:
    """Other facts, the device's told by their own names."""
    device = {name: changes.pop(name) for name in list(changes) if name in DeviceFacts.__struct_fields__}
    return msgspec.structs.replace(FACTS, device=msgspec.structs.replace(FACTS.device, **device), **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"weights_dtype": "bfloat16"},
        {"gpu_cores": 40},
        {"cpu_cores": 4},
        {"device_name": "Apple M5 Max"},
        {"blas": Blas(source="system", version="0.3.30", threads=2)},
        {"blas": Blas(source="system", version="0.3.29", threads=1)},
    ],
)
def test_another_machine_or_library_is_another_fingerprint(folder: Path, change: dict[str, Any]) -> None:
    """Two bins of one chip, another precision or another BLAS never share a verdict."""
    assert fingerprint(replaced(**change), [folder], 4) != fingerprint(FACTS, [folder], 4)


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(bytes(4999) + b"\1"),
        lambda folder: (folder / "model.safetensors").write_bytes(bytes(5001)),
        lambda folder: (folder / "config.json").write_text('{"quantization": {"bits": 4}}'),
        lambda folder: (folder / "config.json").rename(folder / "other.json"),
    ],
)
def test_other_weights_under_the_same_name_are_another_fingerprint(folder: Path, edit: Edit) -> None:
    """A folder that was re-trained or re-quantised in place is measured anew."""
    before = fingerprint(FACTS, [folder], 4)
    edit(folder)
    assert fingerprint(FACTS, [folder], 4) != before


@pytest.mark.parametrize("at", [0, 100, -1])
def test_large_files_count_with_their_ends(folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Both ends of a file too large to be read whole are looked at."""
    monkeypatch.setattr(module, "_SAMPLED_BYTES", 1000)
    before = fingerprint(FACTS, [folder], 4)
    content = bytearray(5000)
    content[at] = 1
    (folder / "model.safetensors").write_bytes(content)
    assert fingerprint(FACTS, [folder], 4) != before


@pytest.mark.parametrize("package", ["mlx", "mlx-lm", "mtp-serve"])
def test_another_software_version_is_another_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """An update of the engine or of what computes starts a new profile."""
    before = fingerprint(FACTS, [folder], 4)
    honest = module.importlib.metadata.version
    monkeypatch.setattr(
        module.importlib.metadata, "version", lambda name: "99" if name == package else honest(name)
    )
    assert fingerprint(FACTS, [folder], 4) != before


def test_drafter_block_size_drafting_and_pinned_kernels_count(folder: Path, tmp_path: Path) -> None:
    """Each is part of what was measured."""
    drafter = tmp_path / "head.safetensors"
    drafter.write_bytes(b"head")
    found = [
        fingerprint(FACTS, [folder], 4),
        fingerprint(FACTS, [folder, drafter], 4),
        fingerprint(FACTS, [folder], 5),
        fingerprint(FACTS, [folder], 4, drafting="without copies"),
        fingerprint(FACTS, [folder], 4, is_pinned=True),
    ]
    assert len(set(found)) == 5


def test_place_time_and_the_pace_of_loading_do_not_count(folder: Path, tmp_path: Path) -> None:
    """The same files, moved and touched, are the same pairing."""
    before = fingerprint(FACTS, [folder], 4)
    moved = folder.rename(tmp_path / "elsewhere")
    os.utime(moved / "config.json", (1, 1))
    assert fingerprint(msgspec.structs.replace(FACTS, load_s=99.0), [moved], 4) == before
