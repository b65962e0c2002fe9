# The commands of the repository. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
KILLS ?= 200
COMMA := ,
# Minimum coverage, in per cent. The second is that of ledger/ by its quick tests. Raise the first after a whole run.
COVERAGE := 52
COVERAGE_LEDGER := 94

# An interrupted set-up leaves packages that pip regards as installed. While this file exists, the next call starts again.
UNFINISHED := $(VENV)/.unfinished

# Downloads sometimes fail: try three times, then print what to do. The cache of pip keeps finished downloads.
define install
for try in 1 2 3; do \
  $(BIN)/python -m pip install --quiet --retries 10 $(1) && break; \
  if [ $$try = 3 ]; then echo "make: packages cannot be installed; if a download was dropped, run the same command again" >&2; exit 1; fi; \
  echo "make: trying again" >&2; sleep 2; \
done
endef

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## create .venv from pyproject.toml; a second call does nothing

$(VENV)/.ready: pyproject.toml setup.py $(wildcard ledgerbeam/io/_native*.[ch])
	@if [ -e $(UNFINISHED) ]; then echo "make: the last set-up was interrupted; starting again" >&2; rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(UNFINISHED) && rm -f $(VENV)/.ready $(VENV)/.cookbook $(VENV)/.docs $(VENV)/.release
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call install,--upgrade pip setuptools)
	@$(call install,--editable '.[dev$(COMMA)s3]')
	$(BIN)/python -m compileall -q ledgerbeam
	@mv $(UNFINISHED) $@ && touch $@

cookbook: $(VENV)/.cookbook ## install the packages of docs/cookbook, and run its recipes
	$(BIN)/python -m pytest tests/test_pages.py tests/examples/test_cookbook.py -k cookbook --numprocesses auto --dist worksteal

demo: setup ## a job on real text: run, SIGKILL, rerun, comparison with an undisturbed run
	$(BIN)/python examples/demo.py

test: setup ## the suite without slow tests: ten minutes on two cores; needs only Python
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'not engines and not slow and not long' --numprocesses auto --dist worksteal

slow: setup ## slow tests: kills, faults, restarts, examples, documentation pages; ARGS="--part 1/4" runs a quarter
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'slow and not engines and not long' --numprocesses auto --dist worksteal $(ARGS)

long: setup ## whole jobs under hostile functions, files, ledgers and environments
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'long and not engines' --numprocesses auto --dist worksteal

coverage: setup ## the tests of `make test`, with the coverage of lines and branches; fails below a minimum
	mkdir -p $(CACHE)/coverage
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'not engines and not slow and not long' --numprocesses auto --dist worksteal \
	  --cov --cov-report html:$(CACHE)/coverage/html
	$(BIN)/coverage report --include 'ledgerbeam/ledger/*' --fail-under $(COVERAGE_LEDGER)
	$(BIN)/coverage report --fail-under $(COVERAGE)

lowest: setup ## quick tests on the lowest versions of dependencies that pyproject.toml allows
	scripts/lowest.sh $(BIN)/python $(CACHE)/lowest

oldest-beam: setup ## local runs and pipelines of users on the oldest version of Beam that pyproject.toml allows
	scripts/oldest-beam.sh $(BIN)/python $(CACHE)/oldest-beam

hooks: setup ## install the hooks of .pre-commit-config.yaml into this clone
	$(BIN)/pre-commit install

lint: setup ## ruff check, ruff format --check, mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

servers: setup ## install into .cache/ what is missing of MinIO, fake-gcs-server, Azurite, Prism, Flink, Spark, Beam's boot program and a venv for Dataflow; SERVERS="minio prism" for some
	$(BIN)/python -m tests.servers make $(SERVERS)

image: servers ## build the worker image and run it as the worker pool of a Flink cluster; needs root and buildah
	$(BIN)/python -m tests.servers image

matrix: servers ## a job on every engine, with kills; prints a row for each engine; ARGS=--exchanges for exchanges on all engines, ARGS="-k spark" for one engine
	$(BIN)/python -m pytest tests/matrix --numprocesses 0 $(ARGS)

changes: servers ## jobs whose sources, code or outputs change while they run, on S3 and on Flink; for local disks: make long
	$(BIN)/python -m pytest tests/changes -m engines --numprocesses 0

conformance: setup ## lhotse, Megatron and other tools read our files, and we read theirs
	scripts/conformance.sh

blocks: setup ## functions of datatrove and datasets, unchanged, in jobs; installs them into .cache/blocks
	scripts/blocks.sh $(BIN)/python $(CACHE)/blocks $(ARGS)

fault: setup ## kill jobs and writers N times, locally and on S3, and print the losses: make fault KILLS=N
	$(BIN)/python -m tests.fault --kills $(KILLS)

mutants: setup ## change a module in small ways, and report the changes that no test detects: MODULE=ledger/lmdb/commit.py
	@test -n "$(MODULE)" || { echo "make: mutants: no module; name one below ledgerbeam/, such as MODULE=ledger/lmdb/commit.py" >&2; exit 2; }
	$(BIN)/python -m tests.mutation '$(MODULE)' $(ARGS)

bench: setup ## tables of speed, relative to other tools and to the physical limit; ARGS=--small is quick
	scripts/bench.sh $(ARGS)

docs: $(VENV)/.docs ## build the documentation site in .cache/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --quiet
	@echo "$(CACHE)/site/index.html"

release: $(VENV)/.release ## build and check sdist, manylinux wheel and pure wheel of the commit, in dist/; upload nothing
	scripts/release.sh $(BIN)/python

$(VENV)/.cookbook $(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(VENV)/.ready
	@mv $(VENV)/.ready $(UNFINISHED)
	@$(call install,--editable '.[$*]')
	@mv $(UNFINISHED) $(VENV)/.ready && touch $@

clean: ## remove the files that setup, servers and tests have created
	rm -rf $(VENV) $(CACHE) ledgerbeam/io/*.so build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.PHONY: help setup cookbook demo test slow long coverage lowest oldest-beam hooks lint servers image matrix changes conformance blocks fault mutants bench docs release clean
