# The only commands a person or a CI needs. Every target sets up the environment first.
PYTHON ?= python3.11
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MLX_VLM_VENV := .venv-mlx-vlm
ARGS ?=
# Byte code is written at install: without it a start takes over a minute instead of fifteen seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install serve test test-mlx-vlm check fmt lock bench clean

install: $(STAMP)

$(STAMP): requirements.lock requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --compile-bytecode -r requirements-dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode -e .
	touch $@

serve: install
	$(BIN)/mtp-serve serve $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

# An environment of its own: mlx-vlm is no dependency.
test-mlx-vlm: install
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(MLX_VLM_VENV)
	$(BIN)/uv pip install --quiet --python $(MLX_VLM_VENV)/bin/python -r tests/optional/mlx-vlm.txt
	MLX_VLM_PYTHON=$(MLX_VLM_VENV)/bin/python $(BIN)/python -m pytest tests/optional $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

bench: install
	$(BIN)/mtp-serve bench overhead $(ARGS)

clean:
	rm -rf $(VENV) $(MLX_VLM_VENV)
