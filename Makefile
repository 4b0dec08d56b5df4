# The commands to know: make demo, make quick, make test, make check, make docs, make bench.
# Needs Python 3.11 or later; another one than python3: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed
PEERS := $(VENV)/peers
SOURCES := src tests $(wildcard bench examples)

.PHONY: demo quick test check docs docs-serve bench matrix clean

# On another store: make demo URL=redis://localhost/0
demo: $(READY)
	$(RUN) -m penstock demo $(if $(URL),--url '$(URL)')

# Memory and SQLite only, without the tests that start servers or many processes: under 90 seconds on two cores.
QUICK := $(addprefix tests/,core engine behaviour aio app schedule sqlite wire testing test_layers.py test_liveness.py \
    test_operation.py test_public_names.py test_session_handle.py test_take_op.py test_wait_queue.py)
quick: $(READY)
	$(RUN) -m pytest --numprocesses 2 --quick --quiet --deselect tests/aio/test_outage.py $(QUICK)

# The tests start hundreds of processes: each loads what the first has compiled, whatever the environment says.
# Four test processes on two cores: one waits for the processes that it kills, for most of the time.
quick test matrix: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(RUN) -m pytest --numprocesses 4

check: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy $(SOURCES)

# The theme's own announcements are not about our pages.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	$(RUN) -m mkdocs build --strict

docs-serve: $(READY)
	$(RUN) -m mkdocs serve

bench: $(READY) $(PEERS)/.installed $(PEERS)/bullmq/.installed
	$(RUN) -m bench

# Every server and Python that docs/stores.md lists, as root on Debian, in an hour or two; one of them: make matrix ONLY=mysql-9
matrix: $(READY)
	$(RUN) -m tests.matrix $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml | $(RUN)
	@echo "installing penstock and its development tools into $(VENV)"
	@$(RUN) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --editable '.[dev]'
	@touch $@

# Other queues, for the benchmarks alone, apart from what penstock depends on. Without them make bench still runs, and says so.
$(PEERS)/.installed: bench/peers/requirements.txt | $(RUN)
	@echo "installing other queues to compare with into $(PEERS)"
	@$(RUN) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore -r $< \
	    && touch $@ || echo "they cannot be installed here: their lines will say so" >&2

# BullMQ is a library of node's.
$(PEERS)/bullmq/.installed: bench/peers/bullmq/package.json | $(PEERS)/.installed
	@mkdir -p $(@D) && cp $< $(@D)
	@npm install --silent --no-audit --no-fund --prefix $(@D) \
	    && touch $@ || echo "BullMQ cannot be installed here: its lines will say so" >&2

# Debian ships Python without ensurepip; python3-venv brings it. Looked for first, because a venv
# that fails half-way leaves a folder that looks like one.
$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    found=$$($(PYTHON) --version 2>/dev/null) || found="not there"; \
	    echo "penstock needs Python 3.11 or later; '$(PYTHON)' is $$found." >&2; \
	    echo "Name another one: make PYTHON=python3.12 test" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	    echo "installing python3-venv" && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null && \
	    $(PYTHON) -c 'import ensurepip, venv'; } || { \
	    echo "'$(PYTHON)' cannot create virtual environments: its ensurepip module is missing." >&2; \
	    echo "On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
