# Every target sets up what it needs; `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.installed
TESTS  := $(VENV)/.installed-for-tests
SITE   := $(VENV)-docs/.installed
MAKERS := $(VENV)-release/.installed

.PHONY: run test test-quick venv lint format docs bench replies conformance chaos soak release
.DEFAULT_GOAL := run

venv: $(TESTS)

# Debian's Python has venv without ensurepip; pip can put itself into an environment from outside.
$(BIN)/python $(VENV)-docs/bin/python $(VENV)-release/bin/python:
	@echo "==> Making the virtual environment in $(@:/bin/python=)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv $(@:/bin/python=) >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --without-pip --clear $(@:/bin/python=) && \
	    $(PYTHON) -m pip --python $@ install --disable-pip-version-check pip; }

# A stamp newer than setup.py means that the environment has what setup.py asks for. The editable install is made in
# compat mode, because the default one hides the drop-in from twistd.
INSTALL = $(@D)/bin/python -m pip install --disable-pip-version-check --config-settings editable_mode=compat

$(RUNS): setup.py | $(BIN)/python
	@echo "==> Installing project-service and what it runs with"
	@$(INSTALL) -e ".[embedded,images]"
	@touch $@

# By one run of pip, which takes a minute, and not after that of $(RUNS).
$(TESTS): setup.py | $(BIN)/python
	@echo "==> Installing project-service with what tests and checks need"
	@$(INSTALL) -e ".[embedded,images,tracing,test,docs,lint]"
	@touch $(RUNS) $@

# In an environment of its own, since `make run` may be running in the other one: pip would replace packages under the
# service, which imports some of them later.
$(SITE): setup.py | $(VENV)-docs/bin/python
	@echo "==> Installing what makes the site of the documentation"
	@$(INSTALL) -e ".[docs]"
	@touch $@

$(MAKERS): setup.py | $(VENV)-release/bin/python
	@echo "==> Installing what makes a release"
	@$(INSTALL) -e ".[release]"
	@touch $@

run: $(RUNS)
	@echo "==> Starting project-service (Ctrl-C stops it)"
	@$(BIN)/twistd --nodaemon --pidfile= project-service

# Four at a time, each with servers of its own, which is no more than two cores can do: most of a test's time goes into
# waiting. Whole files, in their order, since trial's tests have to come first (tests/conftest.py). PYTEST="" for one
# after the other.
IN_TURN := --dist loadfile --no-loadscope-reorder
PYTEST ?= -n 4 $(IN_TURN) --durations=10 --durations-min=1
# A hundred processes start one after the other; some images have Python compile everything anew in each.
test test-quick: export PYTHONDONTWRITEBYTECODE =
test: venv
	PYTEST_DEBUG_TEMPROOT=$$($(BIN)/python -m tests.memory) $(BIN)/python -m pytest $(PYTEST)

# While one writes: in memory alone, with few random examples, and without the slowest files.
test-quick: venv
	$(BIN)/python -m pytest -q -n 2 $(IN_TURN) --quick tests/unit tests/http

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=docs/_extensions $(BIN)/mypy docs/_extensions/*.py

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site of the documentation: docs/_build/index.html. A warning, a broken link among them, is an error.
docs: $(SITE)
	$(<D)/bin/python -m sphinx -b html -n -W --keep-going -q docs docs/_build
	@echo "==> docs/_build/index.html"

# Ratios beside the limit, measured in one run on one machine. YARDSTICK and CALLS name folders, as POSTGREST_SUITE does.
bench: venv
	$(BIN)/python -m benchmarks

# The replies of this checkout beside those of OLD, another checkout with its own .venv or a recording of one.
replies: venv
	$(BIN)/python -m benchmarks.replies compare $(OLD) .

# Scores the table API by the cases that POSTGREST_SUITE names; nothing to do without it.
conformance: venv
	$(BIN)/python -m benchmarks.tables_conformance

# Memory, descriptors and connections over a quarter of an hour of mixed load; MINUTES=n for longer or shorter.
MINUTES ?= 15
soak: venv
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES)

# Faults under load: the short ones of `make test` with their figures, then failover, a store cluster, ten times the load
# and a crowd, what two workers share, callers kept apart from hostile SQL and slow neighbours, 20 rounds of random kills,
# as many during resumable uploads, 10 while clients sign in by e-mail, and the walk of docs/operating/three-hosts.rst.
chaos: venv
	$(BIN)/python -m pytest -q -s tests/live/service/test_faults_processes.py
	$(BIN)/python -m tests.chaos

# Everything that belongs to a release, in dist/ and as two commits and a tag: make release VERSION=0.2.0. CONTRIBUTING.rst
# says what it checks. CONTAINER starts a container of IMAGE.
CONTAINER ?= podman run --rm
IMAGE     ?= docker.io/library/python:3.13-slim
release: $(MAKERS)
	@$(<D)/bin/python -m releasing $(VERSION) --container "$(CONTAINER)" --image $(IMAGE)
