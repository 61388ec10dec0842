# make test: types, lint and tests, in a virtual environment that it makes where needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: test types lint tests quick docs docs-serve demo format clean

test: lint types docs tests

# torch comes first and exactly: any looser range downloads gigabytes of CUDA.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/installed
	$(BIN)/mypy

tests: $(VENV)/installed
	$(BIN)/pytest --numprocesses 2 --durations 15

# Without what waits for real time: a few minutes less.
quick: $(VENV)/installed
	$(BIN)/pytest --numprocesses 2 -m "not realtime"

# The theme's notice about its end (May 2027) is in docs/design.md, not in every log.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

# The documentation site, in site/; a link that leads nowhere fails.  Not --quiet: strict mode would count no warnings.
docs: $(VENV)/installed
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/installed
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8000

# The main job, on a fresh machine: time to target by strategy, on three homes with bad links.
demo: $(VENV)/installed
	$(BIN)/atoll compare

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
