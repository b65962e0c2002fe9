# The commands of the repository. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
KILLS ?= 200
COMMA := ,
# Floors, in per cent. That of the ledger is of its own quick tests alone; raise that of all when it is measured whole.
COVERAGE := 52
COVERAGE_LEDGER := 94

# A set-up that was interrupted leaves packages that pip takes for installed. The mark tells the next call to start anew.
UNFINISHED := $(VENV)/.unfinished

# Downloads are dropped now and then: try three times, then say what to do. What has arrived is in pip's cache.
define install
for try in 1 2 3; do \
  $(BIN)/python -m pip install --quiet --retries 10 $(1) && break; \
  if [ $$try = 3 ]; then echo "make: packages cannot be installed; if a download was dropped, run the same command again" >&2; exit 1; fi; \
  echo "make: trying again" >&2; sleep 2; \
done
endef

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## make .venv from pyproject.toml; a second call does nothing

$(VENV)/.ready: pyproject.toml setup.py $(wildcard ledgerbeam/io/_native*.[ch])
	@if [ -e $(UNFINISHED) ]; then echo "make: the last set-up was interrupted; starting anew" >&2; rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(UNFINISHED) && rm -f $(VENV)/.ready $(VENV)/.docs $(VENV)/.release
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call install,--upgrade pip setuptools)
	@$(call install,--editable '.[dev$(COMMA)s3]')
	$(BIN)/python -m compileall -q ledgerbeam
	@mv $(UNFINISHED) $@ && touch $@

demo: setup ## the main job on real text: run, SIGKILL, rerun, proof
	$(BIN)/python examples/demo.py

test: setup ## the suite, in ten minutes on two cores; needs nothing but Python and what is on the machine
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'not engines and not slow and not long' --numprocesses auto --dist worksteal

slow: setup ## the tests that take longest: kills, faults, restarts, examples, and the pages typed in; ARGS="--part 1/4"
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'slow and not engines and not long' --numprocesses auto --dist worksteal $(ARGS)

long: setup ## whole jobs under hostile functions, files, ledgers and environments
	$(BIN)/python -m pytest tests --ignore tests/matrix -m 'long and not engines' --numprocesses auto --dist worksteal

coverage: setup ## the tests of `make test` with the lines and branches counted that they run; fails below the floor
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

servers: setup ## bring MinIO, fake-gcs-server, Azurite, Prism, Flink, Spark, Beam's boot program and a venv for Dataflow into .cache/, what is missing of them; SERVERS="minio prism" for some
	$(BIN)/python -m tests.servers make $(SERVERS)

image: servers ## build the worker image and run it as the worker pool of a Flink cluster (root, buildah)
	$(BIN)/python -m tests.servers image

matrix: servers ## the job on every engine, with kills; ends with one row for each; ARGS=--exchanges for exchanges on all of them, ARGS="-k spark" for one
	$(BIN)/python -m pytest tests/matrix --numprocesses 0 $(ARGS)

changes: servers ## what may change under a job on S3, and with the work done by a Flink cluster; on this disk: make long
	$(BIN)/python -m pytest tests/changes -m engines --numprocesses 0

conformance: setup ## peers in a venv of their own judge our formats, and their files are read by us
	scripts/conformance.sh

fault: setup ## the reliability suite: make fault KILLS=N
	$(BIN)/python -m tests.fault --kills $(KILLS)

mutants: setup ## report small changes of a module that no test notices: MODULE=ledger/lmdb/commit.py
	@test -n "$(MODULE)" || { echo "make: mutants: no module; name one below ledgerbeam/, such as MODULE=ledger/lmdb/commit.py" >&2; exit 2; }
	$(BIN)/python -m tests.mutation '$(MODULE)' $(ARGS)

bench: setup ## every table of speed against peers and the physical limit; ARGS=--small is quick
	scripts/bench.sh $(ARGS)

docs: $(VENV)/.docs ## the site of the documentation, in .cache/site; a warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --quiet
	@echo "$(CACHE)/site/index.html"

release: $(VENV)/.release ## dist/: sdist, manylinux wheel and pure wheel of what is committed, checked; uploads nothing
	scripts/release.sh $(BIN)/python

$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(VENV)/.ready
	@mv $(VENV)/.ready $(UNFINISHED)
	@$(call install,--editable '.[$*]')
	@mv $(UNFINISHED) $(VENV)/.ready && touch $@

clean: ## remove what setup, servers and tests made
	rm -rf $(VENV) $(CACHE) ledgerbeam/io/*.so build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.PHONY: help setup demo test slow long coverage lowest oldest-beam hooks lint servers image matrix changes conformance fault mutants bench docs release clean
