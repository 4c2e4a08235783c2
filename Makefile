# Every target sets up what it needs; a fresh clone needs Python >= 3.11 and make alone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Tests and demos start processes: without compiled files each would compile torch again, 5 s of a core.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve-demo test test-slow docs lint format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       set up, then adapt a model to a stream of returning domains"
	@echo "make serve-demo a server with three simulated cameras, and its live page"
	@echo "make test       set up, then every check (lint, types, imports, tests)"
	@echo "make test-slow  the long runs on real images and weights"
	@echo "make docs       the documentation site, in build/site"
	@echo "make format     format the code"

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/ostinato demo

serve-demo: $(READY)
	$(BIN)/ostinato serve-demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow or real"

docs: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Read it with its search: $(BIN)/python -m http.server --directory build/site"

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv
