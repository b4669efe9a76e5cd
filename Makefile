# `make demo` and `make test` set up all they need: a virtual environment from the lock, and this package in it.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test lint format types layers test-only slow cluster quick reference control-plane bench \
	bench-properties bench-faults lock wheel clean

VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTEST_ARGS ?= -n 2
# Stamps carry a checksum of the content: a changed lock makes a new environment, a touched file does nothing.
checksum = $(shell cat $(1) 2>/dev/null | cksum | cut -d' ' -f1)
LOCKED := $(VENV)/locked-$(call checksum,requirements-dev.lock)
READY := $(VENV)/ready-$(call checksum,pyproject.toml)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 25

$(LOCKED):
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

$(READY): $(LOCKED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## plan the example cluster and print the table with its reasons
	@$(BIN)/solver-sched plan --example

test: lint types layers test-only ## everything that must pass before a change lands

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## ruff: rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy --strict
	$(BIN)/mypy

layers: $(READY) ## who may import whom
	$(BIN)/lint-imports --no-cache

test-only: $(READY) reference control-plane ## pytest alone; PYTEST_ARGS="-k name" narrows it
	$(BIN)/pytest $(PYTEST_ARGS) -m "not slow"

slow: $(READY) reference control-plane ## the tests that are not in `make test`: many more random clusters (minutes)
	$(BIN)/pytest $(PYTEST_ARGS) -m slow

cluster: $(READY) control-plane ## the tests on a real control plane alone
	$(BIN)/pytest $(PYTEST_ARGS) -m "cluster and not slow"

quick: $(READY) ## pytest without the reference solver and the control plane
	$(BIN)/pytest $(PYTEST_ARGS) -m "not slow and not minizinc and not cluster"

reference: ## the reference solver that tests compare with: MiniZinc
	@.ci/reference-solver

control-plane: $(READY) ## the control plane that cluster tests run: etcd, API server, controllers (built once, minutes)
	@$(BIN)/python -m tests.controlplane.binaries

bench-properties: $(READY) ## 2,000 random clusters against greedy, verifier and reference; rewrites benchmarks/properties.md
	$(BIN)/python -m benchmarks.properties > benchmarks/properties.md

bench-faults: $(READY) control-plane ## 200 runs of the service under faults and kills (hours); goes on where it was stopped
	$(BIN)/python -m benchmarks.faults --seeds 0-199 --results faults.jsonl

bench: $(READY) ## the benchmarks, with their limits (minutes)
	@failed=0; for name in decode speed properties; do echo "== $$name"; \
		$(BIN)/python -m benchmarks.$$name || failed=1; done; exit $$failed

lock: ## rewrite the lock files from pyproject.toml (needs uv)
	@for lock in "requirements.lock" "requirements-dev.lock --extra dev --extra report --constraint requirements.lock"; do \
		env -u PIP_FIND_LINKS -u PIP_INDEX_URL uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
			--generate-hashes --no-header --no-emit-index-url --no-emit-find-links --output-file $$lock || exit 1; done

wheel: $(READY) ## dist/*.whl
	$(BIN)/python -m hatchling build -t wheel

clean: ## remove the environment and all caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
