# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= python3
CACHE  ?= $(HOME)/.cache/volplane
BESIDE ?= -n auto --maxprocesses=4 --dist=loadfile
BASE   ?= HEAD~1
PLAN_TESTS ?= tests/rules tests/properties tests/controllers tests/scheduler tests/sidecars \
	tests/cloud/test_rules.py tests/cloud/test_snapshots.py $(wildcard tests/node/test_*plan*.py)

.DEFAULT_GOAL := help
.PHONY: help setup packages peers demo test coverage lint bench bench-compare proto reference published-schema \
	deploy changelog lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: packages $(VENV)/.ready ## put everything into .venv

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') >/dev/null || true
	@touch $@

packages: ## install the Debian packages that are missing (as root)
	@sh tools/packages.sh

peers: ## build the upstream programs that the tests run against, outside the repository
	@$(PYTHON) tools/peers.py --cache $(CACHE) $(PEERS)
	@$(PYTHON) tools/debian_vm.py --cache $(CACHE)

demo: setup ## a claim and a pod, data written, the pod moved, data read back; everything removed
	$(BIN)/volplane demo

test: setup peers ## the whole test suite
	VOLPLANE_CACHE=$(CACHE) $(BIN)/python -m pytest $(BESIDE) $(TESTS)

coverage: setup ## line and branch coverage of all plan.py and rules/ (must be 100 %)
	$(BIN)/coverage run -m pytest -q $(PLAN_TESTS)
	$(BIN)/coverage report

lint: setup ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## measure; prints one table and writes bench-<time>.json
	$(BIN)/python -m tests.bench $(BENCH)

bench-compare: setup ## measure this tree and BASE=<commit> in turns; prints the ratios (BENCH="--only a,b --rounds 3")
	$(BIN)/python tools/bench_compare.py $(BASE) $(BENCH)

proto: setup ## generate the Python of all *.proto files
	$(BIN)/python -m volplane.csi.proto
	$(BIN)/python -m volplane.store.etcd.proto
	$(BIN)/python -m volplane.node.containers.cri.proto

reference: setup ## write docs/reference.md from the code
	$(BIN)/python tools/reference.py

published-schema: setup ## renew the facts in api/published_schema.json from the published schema
	$(BIN)/python tools/published_schema.py

deploy: setup ## write deploy/kubernetes from the chart
	$(BIN)/python tools/deploy.py

changelog: setup ## collect changelog.d into CHANGELOG.md for VERSION=x.y.z
	$(BIN)/towncrier build --yes --version $(VERSION)

lock: ## pin all dependencies, with hashes
	$(BIN)/python tools/lock.py

clean: ## remove what set-up and the tools made
	rm -rf $(VENV) .coverage build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
