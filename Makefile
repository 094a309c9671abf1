# One command each; CONTRIBUTING.md says more. Variables, all optional:
#   PYTHON=python3.12   the interpreter that .venv is made from (3.11 or newer)
#   VENV=path           another environment than .venv
#   TORCH=2.14.1        another torch than constraints.txt names; TORCH=any keeps what VENV holds
#   CONSTRAINTS=file    other versions altogether
#   ROUNDS=50 SEED=1    of `make chaos`
#   ARGS="..."          more words for the command (`make demo ARGS=--quick`) or for pytest
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
TORCH ?= $(patsubst torch==%,%,$(filter torch==%,$(shell cat $(CONSTRAINTS))))
ARGS ?=
ROUNDS ?= 50
SEED ?= 1

BIN := $(VENV)/bin
# A stamp says that VENV holds the project in this shape: a second `make demo` installs nothing.
DEMO_STAMP := $(VENV)/.longrow-$(TORCH)
TEST_STAMP := $(DEMO_STAMP)-dev
SERVICES_STAMP := $(DEMO_STAMP)-services

.PHONY: help demo test test-services chaos gpu lint check clean install install-dev
.DELETE_ON_ERROR:

help:
	@echo "make demo      install into $(VENV) and run the demo: a corpus, a store, a training run"
	@echo "make test      install with the test tools and pass the tests"
	@echo "make test-services   MLflow's server and pages in a browser, PostgreSQL, S3 (installs Debian's)"
	@echo "make chaos     break runs for ROUNDS rounds (50) as SEED draws, and compare their losses"
	@echo "make gpu       check and measure on a GPU; installs nothing, PYTHON has torch and triton"
	@echo "make install   install only, without the test tools; make install-dev with them"
	@echo "make lint      format check, lint, types"
	@echo "make check     all that CI does: lint, tests, wheel, the demo from the wheel"
	@echo "make clean     remove $(VENV) and what the tools wrote; runs/ and stores/ stay"

demo: $(DEMO_STAMP)
	$(BIN)/longrow demo $(ARGS)

test: $(TEST_STAMP)
	$(BIN)/python -m pytest $(ARGS)

# Screenshots of the pages go to ci-output/screenshots.
test-services: $(SERVICES_STAMP)
	sh infra/install_services.sh
	$(BIN)/python -m pytest tests/services $(ARGS)

chaos: $(TEST_STAMP)
	LONGROW_CHAOS_ROUNDS=$(ROUNDS) LONGROW_CHAOS_SEED=$(SEED) \
		$(BIN)/python -m pytest -s tests/fault/test_chaos.py $(ARGS)

gpu:
	$(PYTHON) -m jobs.gpu $(ARGS)

install: $(DEMO_STAMP)

install-dev: $(TEST_STAMP)

lint: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

check:
	PYTHON=$(PYTHON) bash .ci/run

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find jobs model pipeline trainer tests -name __pycache__ -prune -exec rm -rf {} +

$(DEMO_STAMP): pyproject.toml $(CONSTRAINTS)
	@PYTHON='$(PYTHON)' VENV='$(VENV)' CONSTRAINTS='$(CONSTRAINTS)' TORCH='$(TORCH)' sh infra/install.sh .
	@touch $@

$(TEST_STAMP): pyproject.toml $(CONSTRAINTS)
	@PYTHON='$(PYTHON)' VENV='$(VENV)' CONSTRAINTS='$(CONSTRAINTS)' TORCH='$(TORCH)' sh infra/install.sh '.[dev]'
	@touch $(DEMO_STAMP) $@

$(SERVICES_STAMP): pyproject.toml $(CONSTRAINTS)
	@PYTHON='$(PYTHON)' VENV='$(VENV)' CONSTRAINTS='$(CONSTRAINTS)' TORCH='$(TORCH)' sh infra/install.sh '.[dev,services]'
	@touch $(DEMO_STAMP) $(TEST_STAMP) $@
