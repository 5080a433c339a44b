# The single entry. `make` lists the targets.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 1000
SIM ?= dledger.testing.sim
HOURS ?= 1
# The long ones come first; so all workers end together.
BY_FILE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: checklist help setup spark interop demo pipeline-demo chaos test check fix golden sim soak peers bench bench-report docs dist clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml setup.py scripts/setup $(wildcard dledger_mq/message/*.[ch])
	@scripts/setup $(VENV) $(PYTHON)
	@touch $@

$(VENV)/.spark-ready: $(VENV)/.ready scripts/setup-spark
	@scripts/setup-spark $(VENV)
	@touch $@

setup: $(VENV)/.ready  ## install into .venv what everything but the pipeline needs

spark: $(VENV)/.spark-ready  ## add Spark to .venv, most of a gigabyte: for the pipeline and its tests

interop: setup  ## fetch the real C++, Go, Node and Java clients into .interop (what cannot be had is skipped)
	@scripts/setup-interop $(BIN)/python

demo: setup  ## three machines with three groups, real clients; machines killed, nothing may be lost
	@$(BIN)/python -m jepsen.demo $(DEMO_ARGS)

pipeline-demo: spark  ## a streaming job between two topics, killed and killed again: every order exactly once
	@$(BIN)/python -m bench.pipeline exactly-once $(PIPELINE_DEMO_ARGS)

chaos: setup  ## the standing set of dledger-jepsen: half an hour; CHAOS_ARGS="--only queue/kill"
	@$(BIN)/dledger-jepsen suite $(CHAOS_ARGS)

checklist: setup  ## the 70 faults, row by row: an hour; rewrites docs/faults.md. CHECKLIST_ARGS="--row 9"
	@$(BIN)/dledger-jepsen checklist --record docs $(CHECKLIST_ARGS)

check: setup  ## format, lint, types and the quick tests: about a minute
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q -m "not slow and not integration" -n 2 $(BY_FILE)

test: interop spark  ## everything: format, lint, types, all tests with real processes and real clients
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n 3 $(BY_FILE)  # most wait for real processes, and two at a time leave cores idle

fix: setup  ## format and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

golden: setup  ## rewrite the expected outputs of scripts and generated pages; read the diff
	@REWRITE=1 $(BIN)/pytest -q tests/interaction tests/architecture

sim: setup  ## simulate whole groups under fresh seeds: SEEDS=1000, or SEED=n [SIM=broker.testing.sim] to replay one
	@$(BIN)/python -m $(SIM) $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))
	@$(if $(SEED),,$(BIN)/python -m broker.testing.sim --seeds $$(( $(SEEDS) / 10 )))

soak: setup  ## both simulators for hours on all cores: HOURS=1
	@nice $(BIN)/python -m broker.testing.soak --hours $(HOURS)

peers: interop  ## fetch Apache RocketMQ's own brokers into .interop, to measure beside them (what cannot be had is skipped)
	@scripts/setup-peers $(BIN)/python 4.9.7 5.3.3

bench: peers  ## ours beside Apache RocketMQ in one run, ten minutes; BENCH_ARGS="produce --help" for other measurements
	@$(BIN)/dledger-bench $(or $(BENCH_ARGS),compare)

bench-report: setup  ## cost curves by clients, size, queues and members into docs/performance.md: five minutes
	@$(BIN)/dledger-bench report $(REPORT_ARGS)

docs: setup  ## rewrite the generated pages
	@$(BIN)/python -m tests.architecture.generated_docs

dist: setup  ## sdist and wheel into dist/
	@rm -rf dist && $(BIN)/python -m build --quiet --outdir dist .

clean:  ## remove what the targets made
	rm -rf $(VENV) .interop .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
