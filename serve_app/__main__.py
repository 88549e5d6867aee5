"""`python -m serve_app` is `mtp-serve`."""

from serve_app.cli import main

main()
