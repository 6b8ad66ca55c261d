# Every target sets up what it needs; `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test venv lint format
.DEFAULT_GOAL := run

venv: $(STAMP)

# A stamp newer than setup.py means that the environment has what setup.py asks for.
# PYTHONPATH shows the drop-in in the working tree, so nothing is installed twice.
$(STAMP): setup.py
	@echo "==> Making the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> Installing project-service and what it needs (a minute or two)"
	@$(BIN)/pip install --quiet --upgrade pip setuptools
	@$(BIN)/pip install --quiet --config-settings editable_mode=compat -e ".[embedded,test,lint]"
	@touch $(STAMP)

run: venv
	@$(BIN)/twistd --nodaemon --pidfile= project-service

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
