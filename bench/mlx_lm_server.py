"""Runs `mlx_lm.server` under the same BLAS as mtp-serve. Run as `python -m bench.mlx_lm_server`.

Its own options come first; everything after `--` goes to mlx_lm.server unchanged.
"""

import argparse
import importlib
import sys
from pathlib import Path

from engine.blas import preload


def main() -> None:
    """Load the BLAS and become mlx_lm.server."""
    own, theirs = split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="bench.mlx_lm_server")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-root", type=Path, required=True)
    arguments = parser.parse_args(own)
    preload(arguments.cache_root, arguments.threads)
    # It imports MLX, which must not happen before the BLAS is in place.
    server = importlib.import_module("mlx_lm.server")
    sys.argv = ["mlx_lm.server", *theirs]
    server.main()


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    main()
