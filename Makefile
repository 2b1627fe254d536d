# One command for each thing a person wants. Every target makes its own .venv and installs what it
# needs; nothing is assumed but Python >= 3.11 with venv, and make.

.DEFAULT_GOAL := help
.PHONY: help demo torch test test-engines engines cover lint format types docs pins walk sim chaos soak conformance programs bench bench-growth bench-charts bench-rivals bench-rendezvous bench-rendezvous-growth clean

# The Python to build on: PYTHON if given, else the first of these that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Nothing but what the file lists is installed, and each file only if its hash is among the listed.
PINNED := $(PIP) --require-hashes --requirement
TORCH := 2.13.0

# How many simulated histories `make sim` runs.
SEEDS ?= 10000
# The first of their seeds; drawn afresh if it is not given, and printed.
START ?=
# Passed on to pytest: make test ARGS="-k lease -x"
ARGS ?=

help:
	@echo "make demo          a job loses a worker, then a node, and its result is right"
	@echo "make torch         install torch for CPU and numpy, for programs that use them"
	@echo "make test          all tests but those of engines (installs torch, etcd; ARGS=... to pytest)"
	@echo "make engines       install what tests of ssh, MPI and Slurm need (Debian, as root)"
	@echo "make test-engines  jobs on real ssh, MPI launchers and Slurm; skips what is missing"
	@echo "make cover         branch coverage of the pure files: all of it"
	@echo "make lint          ruff, the layers and the documents"
	@echo "make format        let ruff lay out the code"
	@echo "make types         mypy, strict"
	@echo "make sim SEEDS=n   n simulated stores, clusters, jobs, RRefs and calls, fresh seeds"
	@echo "make chaos KILLS=n n workers of real jobs are killed, and agents too"
	@echo "make soak CALLS=n  n calls between eight workers under faults, each accounted for"
	@echo "make conformance   torch's own RPC tests, with torch and with ours (half an hour)"
	@echo "make programs      what others wrote for torch, with torch and with ours (minutes)"
	@echo "make bench         measure beside torch: every aim, met or missed (ARGS=\"--row NAME --quick\")"
	@echo "make bench-growth  how figures grow with peers, threads, workers, processes, ranks"
	@echo "make bench-charts  draw the last run as SVG (RUN=file.json FOLDER=folder)"
	@echo "make bench-rivals  install gRPC, Ray, rpyc and pyzmq, to be measured too"
	@echo "make bench-rendezvous NODES=n   seconds for n nodes to meet"
	@echo "make bench-rendezvous-growth    how joins, restarts and exits grow with the nodes"
	@echo "make walk          how many files live calls pass through (ARGS=--files lists them)"
	@echo "make docs          write what is generated, and check all documents"
	@echo "make pins          write requirements/*.txt with hashes, from requirements/*.in"
	@echo "make clean         remove what the other targets made"

demo: .venv/.demo
	@$(BIN)/python examples/demo.py

torch: .venv/.torch

test: .venv/.test .venv/.lint
	$(BIN)/python -m pytest -n auto --dist loadfile --ignore tests/engines $(ARGS)

# What tests/engines/ runs jobs on; tests whose package is missing are skipped, and name it.
ENGINES := iproute2 openssh-client openssh-server openmpi-bin mpich munge slurmctld slurmd slurm-client

engines:
	@missing=$$(for one in $(ENGINES); do \
	dpkg-query -W -f '$${Status}' $$one 2>/dev/null | grep -q 'ok installed' || echo $$one; done); \
	if [ -z "$$missing" ]; then echo "all engines are there"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	echo "not installed, which takes root and apt-get:" $$missing; \
	elif { apt-get -qq update || true; } && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install \
	--no-install-recommends -y $$missing >/dev/null; then echo "installed:" $$missing; \
	else echo "could not be installed:" $$missing; fi

test-engines: .venv/.test
	$(BIN)/python -m pytest $(ARGS) tests/engines

# Each pure file (pyproject.toml lists them) by its own tests; not by those that draw what they try,
# which would find all of it on most days.
PURE := s|^ *"src/holdfast/\(\([a-z0-9_/]*/\)\{0,1\}\)\([a-z0-9_]*\)\.py",|tests/unit/\1test_\3.py|p
cover: .venv/.test
	$(BIN)/python -m coverage run -m pytest --quiet -m "not hypothesis" $(ARGS) $$(sed -n '$(PURE)' pyproject.toml)
	$(BIN)/python -m coverage report

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/check.py

format: .venv/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.test .venv/.lint
	$(BIN)/mypy

walk: .venv/.demo
	@$(BIN)/python docs/walk.py $(ARGS)

docs: .venv/.demo
	$(BIN)/python docs/check.py --write

# Versions and hashes of everything that lint, tests and programs install, for every Python from 3.11 on
# and every system. What is pinned stays, unless the .in file says otherwise; ARGS=--upgrade takes the
# newest.
UV := 0.13.7

pins: .venv/bin/python
	@$(BIN)/python -m venv .venv/pins
	@.venv/pins/bin/python -m pip install -qq --disable-pip-version-check uv==$(UV)
	@for name in lint numpy test programs; do \
	.venv/pins/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command "make pins" $(ARGS) \
	$$(test $$name = programs && echo --no-deps) \
	--output-file requirements/$$name.txt requirements/$$name.in || exit 1; done

sim: .venv/.test
	@broken=0; for one in store raft replica rendezvous agent rref once; do \
	$(BIN)/python -m tests.sim.$$one --seeds $(SEEDS) $(if $(START),--start $(START)) $(ARGS) \
	|| broken=1; done; exit $$broken

# How many workers `make chaos` kills; for ten of them, three agents.
KILLS ?= 200

chaos: .venv/.demo
	$(BIN)/python -m tests.chaos --kills $(KILLS) $(ARGS)

# How many calls `make soak` makes.
CALLS ?= 200000

soak: .venv/.demo
	$(BIN)/python -m tests.soak --calls $(CALLS) $(ARGS)

# make conformance ARGS=RpcTest
conformance: .venv/.test
	@$(BIN)/python -m tests.conformance.run $(ARGS)

# make programs ARGS="accelerate torchx"
programs: .venv/.programs
	@$(BIN)/python -m tests.programs.run $(ARGS)

bench: .venv/.test
	$(BIN)/python -m bench $(ARGS)

bench-growth: .venv/.test
	$(BIN)/python -m bench --growth $(ARGS)

# The run to draw, the last one unless it is given, and where its charts go.
RUN ?= $(lastword $(sort $(wildcard bench/results/*.json)))
FOLDER ?= bench/results/charts

bench-charts: .venv/.demo
	@test -n "$(RUN)" || { echo "there is no run to draw: make bench, or RUN=file.json" >&2; exit 2; }
	@$(BIN)/python -m bench.charts $(RUN) $(FOLDER)

bench-rivals: .venv/.bench

# How many nodes `make bench-rendezvous` lets join; its last line is our seconds.
NODES ?= 128

bench-rendezvous: .venv/.test
	@$(BIN)/python -m bench.rendezvous $(NODES)

# The sizes at which `make bench-rendezvous-growth` measures join, restart and exit barrier.
SIZES ?= 64 256 1024

bench-rendezvous-growth: .venv/.test
	@$(BIN)/python -m bench.rendezvous growth $(SIZES)

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage .coverage.* docs/_build
	find src tests bench examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

# What is installed, by stamps: each is made anew when a file that it depends on is newer.

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "holdfast needs Python 3.11 or newer; none was found \
	(give one: make PYTHON=/path/to/python3.12 ...)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "holdfast needs Python 3.11 or newer; $(PYTHON) is older, or does not run" >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "$(PYTHON) has no venv: install it (Debian: apt install \
	python3-venv)" >&2; rm -rf .venv; exit 2; }

.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "installing holdfast into .venv"
	@$(PIP) --editable .
	@touch $@

.venv/.lint: requirements/lint.txt .venv/.demo
	@echo "installing ruff, mypy and import-linter into .venv"
	@$(PINNED) requirements/lint.txt
	@touch $@

.venv/.bench: requirements/bench.txt .venv/.demo
	@echo "installing gRPC, Ray, rpyc and pyzmq into .venv"
	@$(PIP) --requirement requirements/bench.txt
	@touch $@

# Apart from what the tests import, and without what would replace torch.
.venv/.programs: requirements/programs.txt .venv/.test
	@echo "installing accelerate, lightning, torchft, torchrl and torchx into .venv/programs"
	@rm -rf .venv/programs
	@$(PIP) --no-deps --target .venv/programs --require-hashes --requirement requirements/programs.txt
	@touch $@

# torch for CPU where an index or a folder of wheels offers it, else whatever torch there is. So torch,
# and what it depends on, has no hashes: which build is right depends on the machine, and the one for
# CPU has a local version, which is served by other indexes than the rest.
.venv/.torch: requirements/numpy.txt .venv/.demo
	@echo "installing torch $(TORCH) into .venv (a minute or more)"
	@$(PIP) torch==$(TORCH)+cpu 2>/dev/null || $(PIP) torch==$(TORCH)
	@$(PINNED) requirements/numpy.txt
	@touch $@

.venv/.test: requirements/test.txt .venv/.torch
	@echo "installing etcd and pytest into .venv"
	@$(PINNED) requirements/test.txt
	@touch $@
