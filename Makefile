.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_PROCESSES ?= 2

.PHONY: help demo test slow vllm vllm-env format check lint types contracts docs bench clean

help: ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP) ## the same answer, plainly and speculatively, on a real model
	$(BIN)/outrider demo

test: $(STAMP) ## the whole default test-suite, in TEST_PROCESSES processes
	$(BIN)/pytest -n $(TEST_PROCESSES)

slow: $(STAMP) ## the tests that need minutes or larger models (OUTRIDER_MODELS=folder)
	$(BIN)/pytest -m slow

vllm-env: ## vLLM for the CPU, in an environment of its own (OUTRIDER_VLLM_ENV=folder)
	$(PYTHON) bench/peers/install.py vllm

vllm: $(STAMP) ## the tests that need that environment
	$(BIN)/pytest -m vllm

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

docs: $(STAMP) ## the site, in build/site; a dead link or a name that is not there stops it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

check: lint types contracts docs test ## everything that CI asks for

bench: $(STAMP) ## the comparisons with Transformers in one process
	$(BIN)/python bench/plain.py
	$(BIN)/python bench/lookup.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
