# Every target sets itself up in .venv; nothing else needs to be installed first.
# A stamp per extra makes set-up free until pyproject.toml or constraints.txt changes.

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SECONDARY:
.PHONY: help demo serve test test-all lint format bench bench-all docs docs-version clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-plots ## models in step and out of step: writes report.html (minutes)
	$(BIN)/hogwild demo

serve: $(VENV)/.stamp-web ## a page on which one watches nodes compute (hogwild serve)
	$(BIN)/hogwild serve $(SERVE_ARGS)

test: $(VENV)/.stamp-test ## run the quick tests (PYTEST_ARGS="-k solver -x" to choose)
	$(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

test-all: $(VENV)/.stamp-test $(VENV)/.stamp-docs ## run all tests, the slow ones too
	$(BIN)/python -m pytest -n auto --dist loadfile -m "slow or not slow" $(PYTEST_ARGS)

lint: $(VENV)/.stamp-lint ## check style, formatting and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.stamp-lint ## fix what can be fixed automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.stamp-bench ## measure a training step
	$(BIN)/python benchmarks/training_step.py

bench-all: $(VENV)/.stamp-bench $(VENV)/.stamp-test ## measure everything on the page of benchmarks (hours)
	$(BIN)/python benchmarks/all.py $(BENCH_ARGS)

docs: $(VENV)/.stamp-docs ## build the documentation into site/ (first by the theme's successor, to know that it can)
	$(BIN)/zensical build --strict --clean
	$(BIN)/mkdocs build --strict

# The pages of all releases lie on one branch; nothing is pushed. `mike serve -b $(DOCS_BRANCH)` shows them.
DOCS_BRANCH ?= gh-pages
VERSION ?= $(shell awk -F'[".]' '/^version = / { print $$2 "." $$3; exit }' pyproject.toml)
docs-version: $(VENV)/.stamp-docs ## add the documentation of this VERSION, as latest, to the branch of all versions
	$(BIN)/mike deploy --update-aliases --alias-type copy --branch $(DOCS_BRANCH) $(VERSION) latest
	$(BIN)/mike set-default --branch $(DOCS_BRANCH) latest

clean: ## remove .venv and everything generated
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src node tests benchmarks examples experiments -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Hogwild needs Python 3.11 or newer, and "$(PYTHON)" is not.'; \
	  echo 'Name another one, for instance: make PYTHON=python3.12 test'; \
	  exit 1; } >&2
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The installation compiles the kernels. .stamp-core is the package alone; any other .stamp-X is the package with extra X.
KERNELS := $(wildcard src/hogwild/kernels/source/*) src/hogwild/kernels/build.py hatch_build.py
$(VENV)/.stamp-%: pyproject.toml node/pyproject.toml constraints.txt $(KERNELS) | $(VENV)/.stamp-venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e node -e ".$(if $(filter-out core,$*),[$*])"
	@touch $@
