# Every target does its own set-up: on a fresh machine `make demo` or `make test` is the first command.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PIPELINE ?= pipelines/smollm2.yaml
BUILDER := $(VENV)/bin/builder
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PEERS_VENV ?= .venv-peers
PEERS_INSTALLED := $(PEERS_VENV)/.installed
VLLM_VENV ?= .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
TRTLLM_VENV ?= .venv-trtllm
TRTLLM_INSTALLED := $(TRTLLM_VENV)/.installed
FOCUS_VENV ?= .venv-focus
FOCUS_INSTALLED := $(FOCUS_VENV)/.installed
FOCUS_PYTHON ?= python3.12
PEERS_PINS := loadtest/peers/requirements.txt loadtest/peers/requirements-no-deps.txt

LINTS := lint-style lint-format lint-types lint-imports lint-schema
TESTS := test-unit test-integration test-e2e

.PHONY: help setup demo stack peers trtllm focus test test-full lint format docs clean $(LINTS) $(TESTS)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make the virtual environment and install everything, once

$(INSTALLED): pyproject.toml constraints.txt requirements-models.txt .ci/debian-packages.txt .ci/setup
	@.ci/setup $(VENV)
	@touch $@

demo: setup ## build the demo pipeline, answer three prompts plainly and speculatively
	@$(BUILDER) build $(PIPELINE)
	@$(BUILDER) demo $(PIPELINE)

stack: setup ## build the demo pipeline, then run server, exporter and Prometheus until Ctrl-C
	@$(BUILDER) build $(PIPELINE)
	@$(BUILDER) stack $(PIPELINE)

peers: $(PEERS_INSTALLED) $(VLLM_INSTALLED) ## install the engines we compare with into two environments of their own (compiles llama.cpp: ten minutes; vLLM: 3.5 GB)

$(PEERS_INSTALLED): $(INSTALLED) $(PEERS_PINS)
	@$(PYTHON) -m venv $(PEERS_VENV)
	@CMAKE_BUILD_PARALLEL_LEVEL=2 CMAKE_ARGS="-DGGML_NATIVE=ON -DMTMD_BUILD=OFF" \
		nice $(PEERS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $(word 2,$^)
	@$(PEERS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --requirement $(word 3,$^)
	@touch $@

$(VLLM_INSTALLED): $(INSTALLED) loadtest/peers/requirements-vllm.txt
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $(word 2,$^)
	@# built against the CUDA torch: with one of them there, vLLM's own import ends in an error
	@$(VLLM_VENV)/bin/python -m pip --quiet uninstall --yes torchaudio torchcodec torchvision
	@touch $@

trtllm: $(TRTLLM_INSTALLED) ## install modelopt into an environment of its own, for TensorRT-LLM checkpoints (4 minutes, 1.3 GB)

$(TRTLLM_INSTALLED): $(INSTALLED) requirements-trtllm.txt
	@$(PYTHON) -m venv $(TRTLLM_VENV)
	@$(TRTLLM_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $(word 2,$^)
	@touch $@

focus: $(FOCUS_INSTALLED) ## install the FOCUS validator into an environment of its own (needs Python 3.12; a minute, 650 MB)

$(FOCUS_INSTALLED): requirements-focus.txt
	@$(FOCUS_PYTHON) -m venv $(FOCUS_VENV)
	@$(FOCUS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $<
	@touch $@

test: setup ## lint and all tests but the slow ones, with a summary
	@.ci/steps $(LINTS) $(TESTS)

test-full: setup ## everything `test` does and the slow tests
	@PYTEST_ADDOPTS="$${PYTEST_ADDOPTS:-} --slow" .ci/steps $(LINTS) $(TESTS)

test-unit: setup ## unit tests: seconds, no server
	@$(PYTHON) -m pytest tests/unit

test-integration: setup ## the real tritonserver with a tiny random model
	@$(PYTHON) -m pytest tests/integration

test-e2e: setup ## the whole way with SmolLM2
	@$(PYTHON) -m pytest tests/e2e

lint: setup ## all checks of the code without running it
	@.ci/steps $(LINTS)

lint-style: setup ## ruff's rules
	@$(VENV)/bin/ruff check .

lint-format: setup ## ruff's layout (mend with `make format`)
	@$(VENV)/bin/ruff format --check .

lint-types: setup ## mypy, strict
	@$(VENV)/bin/mypy

lint-imports: setup ## the direction of imports
	@$(VENV)/bin/lint-imports --no-logo

lint-schema: setup ## pipelines/schema.json is what `builder schema` prints
	@diff -u pipelines/schema.json <($(BUILDER) schema)

format: setup ## rewrite the layout and mend what can be mended by itself
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

docs: setup ## rewrite docs/metrics.md and ops/grafana from the catalogue of metrics
	@$(PYTHON) -m builder.telemetry.page docs/metrics.md
	@$(PYTHON) -m builder.telemetry.grafana ops/grafana

clean: ## remove the virtual environment, caches and built versions
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist
	@find model_repository -mindepth 1 -not -name README.md -delete
