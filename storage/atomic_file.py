"""Small files that are written whole or not at all, and the cleaning that killed writers make necessary.

Knows nothing of what the files hold.
"""

import contextlib
import os
import time
from pathlib import Path

_LONGEST_WRITE_S = 60.0


def write(path: Path, content: bytes) -> None:
    """Replace `path` atomically with `content`, mode 0600, making its folder if need be.

    Raises OSError, and then leaves the former file and nothing else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_abandoned(folder: Path) -> None:
    """Drop what processes killed between writing and renaming have left in `folder`. Never raises OSError."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*.tmp.*"):
            if _is_abandoned(path):
                path.unlink(missing_ok=True)


def _is_abandoned(temporary: Path) -> bool:
    """Whether the writer is gone, or has had far longer than any write takes: ids are used again."""
    writer = temporary.suffix[1:]
    if time.time() - temporary.stat().st_mtime > _LONGEST_WRITE_S:
        return True
    try:
        os.kill(int(writer), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:
        return False
    return False
