# Every command a contributor needs. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is written for modules when they are first used; most are never. It must be written then: tests start
# hundreds of interpreters, and pytest rewrites every test module that it has no bytecode of.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-compile --quiet --constraint constraints.txt

SETUP_STAMP := $(VENV)/.setup.stamp
BENCH_STAMP := $(VENV)/.bench.stamp
TRIAL := build/trial
NATIVE_SOURCES := $(foreach kind,pyx pxi pxd c h,$(wildcard src/everlog/native/*.$(kind) src/everlog/native/*/*.$(kind)))

CRASH_ROUNDS ?= 300
CRASH_TIMEOUT_S ?= 7200
SEEDS ?= 0..199
ROUNDS ?= 200
ifdef MINUTES
SOAK_SECONDS := $(shell expr $(MINUTES) \* 60)
endif
SOAK_SECONDS ?= 600
SOAK_MARGIN_S := 300
export CRASH_ROUNDS SOAK_SECONDS
FUZZ_SECONDS ?= 20
HISTORIES ?= 40
SECONDS ?= 15
SYMBOLS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo check quick test lint wheel bench bench-queue bench-engine bench-books bench-server bench-client bench-archive bench-spark bench-page crash sim mutants proof proof-page sanitize test-object-store soak soak-server soak-others histories api docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(SETUP_STAMP) ## Create .venv, install the pinned versions and build the native code

demo: setup ## Run the whole chain, leave demo-report/index.html: SECONDS=15 SYMBOLS=4, SERVE=1 for the console
	$(BIN)/python -m examples.demo --seconds $(SECONDS) --symbols $(SYMBOLS) $(if $(SERVE),--serve)

# Two processes that share the tests: each begins with a half, and the one that is done first takes from the other.
# A test that no signal interrupts (native code, a callback that swallows it) ends its process and the run.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --max-worker-restart 0 \
	-o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true

# Every test, but with a fifth of the examples and seeds of those that try many, and commands that are copies of a
# process. Lint, most of which uses one core, runs beside the tests.
check: setup ## For the inner loop: lint, and the tests that need neither Spark nor a browser
	$(MAKE) --jobs=2 lint quick

quick: setup
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m 'not (crash or soak or spark or browser or object_store)'

test: lint docs wheel ## Everything a change must pass: lint, docs, packaging, all tests
	$(PYTEST)

lint: setup ## Style, formatting, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(wildcard src/everlog/native/*/*.[ch])
	$(BIN)/mypy --strict src tools
	$(BIN)/lint-imports

# The wheel is built from the source distribution, so both are complete, and tried in a new environment.
wheel: setup ## Build dist/*.tar.gz and from it dist/*.whl, install that in a new environment and try it
	rm -rf dist $(TRIAL)
	$(BIN)/python -m build --no-isolation --outdir dist . > build/wheel.log 2>&1 || { tail -n 40 build/wheel.log; exit 1; }
	$(PYTHON) -m venv $(TRIAL)
	$(TRIAL)/bin/python -m pip install --disable-pip-version-check --no-input --quiet --constraint constraints.txt dist/*.whl
	cd build && ../$(TRIAL)/bin/python ../tests/packaging/smoke.py

bench: bench-queue bench-engine bench-server bench-client bench-books bench-archive bench-spark ## All benchmarks

# Each benchmark leaves its numbers for `make bench-page`.
build/bench:
	mkdir -p $@

bench-queue: $(BENCH_STAMP) | build/bench ## The queue side by side with its peers
	$(BIN)/python -m benchmarks.queue --json build/bench/queue.json

bench-books: $(BENCH_STAMP) | build/bench ## Order books side by side with their peers
	$(BIN)/python -m benchmarks.books --json build/bench/books.json

bench-engine: setup | build/bench ## The topics engine inside one process
	$(BIN)/python -m benchmarks.engine --json build/bench/engine.json

bench-archive: setup | build/bench ## The archive beside plain zstd and cp
	$(BIN)/python -m benchmarks.archive --json build/bench/archive.json

bench-spark: setup | build/bench ## Queues and topics in Spark, beside its own sources
	$(BIN)/python -m benchmarks.spark --json build/bench/spark.json

bench-server: $(BENCH_STAMP) | build/bench ## The topics server side by side with Redis and NATS, its scheduler and routers
	$(BIN)/python -m benchmarks.server --json build/bench/server.json
	$(BIN)/python -m benchmarks.engine --only deliver --only routers

bench-client: $(BENCH_STAMP) | build/bench ## The Python clients side by side with redis-py and nats-py
	$(BIN)/python -m benchmarks.client --json build/bench/client.json

bench-page: setup ## Write docs/internals/benchmarks.md and the README's table from the last runs
	$(BIN)/python -m benchmarks.page build/bench

crash: setup ## Kill processes CRASH_ROUNDS times and check what survives
	$(BIN)/python -m pytest tests/crash tests/simulation tests/spark -m crash --timeout=$(CRASH_TIMEOUT_S) \
		-p tests.support.counted --numprocesses 2 --dist worksteal

test-object-store: setup ## Races, fencing and failover on a real S3 server (versitygw): ROUNDS=200
	$(BIN)/python -m tests.support.versitygw
	FAILOVER_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests -m object_store --timeout=$(CRASH_TIMEOUT_S)

sim: setup ## Simulate the topics engine with faults and power losses, SEEDS=FIRST..LAST
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

histories: setup ## Kill servers under concurrent clients and check the histories of all topics and jobs: HISTORIES=40 kills
	$(BIN)/python -m tests.histories --kills $(HISTORIES)

mutants: setup ## Plant faults in a copy of the source: a check must notice each
	$(BIN)/python -m tools.proof run mutants

proof: setup ## All long checks that have no result in build/proof yet, or PART=NAME again
	$(BIN)/python -m tools.proof run $(PART)

proof-page: setup ## Write the figures of the last runs into docs/internals/proof.md
	$(BIN)/python -m tools.proof page build/proof

sanitize: setup ## Native and queue tests and fuzzing of every parser with ASan and UBSan: FUZZ_SECONDS=20 each
	$(BIN)/python -m tools.sanitize --seconds $(FUZZ_SECONDS)

soak: setup ## Queue and server under load, side by side: MINUTES=10, or SOAK_SECONDS
	$(MAKE) --no-print-directory -j2 -Otarget soak-server soak-others

# The number of seconds is given to each test. The server has a process of its own; the two others that take so
# long follow each other, so all of it takes a little more than twice that.
soak-server:
	$(BIN)/python -m pytest tests/soak/test_server_soak.py -m soak -s --timeout=$$(( $(SOAK_SECONDS) + $(SOAK_MARGIN_S) ))

soak-others:
	$(BIN)/python -m pytest tests -m soak --deselect tests/soak/test_server_soak.py --timeout=$$(( $(SOAK_SECONDS) + $(SOAK_MARGIN_S) ))

api: setup ## Write the pages of docs/reference that are made from the code anew
	$(BIN)/python -m tools.reference_pages

docs: setup ## Build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

clean: ## Remove what was built; .venv stays and is completed by the next setup
	rm -rf build dist demo-report src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f src/everlog/native/*.so src/everlog/native/*/*.so $(SETUP_STAMP) $(BENCH_STAMP)

$(SETUP_STAMP): pyproject.toml setup.py constraints.txt $(NATIVE_SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "everlog needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + ". Name a newer one: make PYTHON=python3.12 setup")'
	@echo "Setting up $(VENV): packages of constraints.txt (most of it Spark), then $(words $(filter %.pyx,$(NATIVE_SOURCES))) native modules are compiled. Minutes, the first time."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) setuptools Cython wheel
	@mkdir -p build
	@{ $(PIP_INSTALL) --verbose --verbose --no-build-isolation --editable '.[dev,market,spark,connect]' 2>&1; \
		echo "exit code $$?"; } | tee build/setup.log | sed -un 's/^ *\(Downloading .*[0-9] MB).*\|compil[a-z]* everlog.*\|Installing collected packages\).*/  \1/p'
	@tail -n 1 build/setup.log | grep -qx 'exit code 0' || { tail -n 40 build/setup.log; exit 1; }
	@touch $@

# Order-only on setup: a rebuild of the native code does not change what the peers need.
$(BENCH_STAMP): pyproject.toml constraints.txt | $(SETUP_STAMP)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	@touch $@
