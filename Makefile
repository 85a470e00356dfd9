# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell sh tools/find_python.sh)
CACHE  ?= $(HOME)/.cache/volplane
BESIDE ?= -n auto --maxprocesses=4 --dist=loadfile
BASE   ?= HEAD~1
IMAGES ?= 300
REQUESTS ?= 10000
TORTURE ?= tests/fuzz/test_hostile_requests.py tests/security/test_crash_images.py tests/security/test_data_directory_fuzz.py
PLAN_TESTS ?= tests/rules tests/properties tests/controllers tests/scheduler tests/sidecars \
	tests/fsck/test_plan.py tests/cloud/test_rules.py tests/cloud/test_snapshots.py $(wildcard tests/node/test_*plan*.py)

.DEFAULT_GOAL := help
.PHONY: help setup packages peers demo test test-pythons coverage lint bench bench-compare soak torture proto \
	reference published-schema deploy changelog dist docs lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: packages $(VENV)/.ready ## put everything into .venv

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
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

test-pythons: setup peers ## a short run of the suite with every other supported Python on this machine
	VOLPLANE_CACHE=$(CACHE) $(BIN)/python -m tools.pythons

coverage: setup ## line and branch coverage of all plan.py and rules/ (must be 100 %)
	$(BIN)/coverage run -m pytest -q $(PLAN_TESTS)
	$(BIN)/coverage report

lint: setup ## ruff, mypy, import contracts, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell *.md *.yml docs changelog.d src tools tests examples

docs: setup ## build the documentation into build/docs, to be read offline
	@$(PYTHON) tools/peers.py --cache $(CACHE) mkdocs
	NO_MKDOCS_2_WARNING=1 $(CACHE)/bin/mkdocs build --strict --quiet
	@echo "open build/docs/index.html"

bench: setup ## measure; prints one table and writes bench-<time>.json
	$(BIN)/python -m tests.bench $(BENCH)

bench-compare: setup ## measure this tree and BASE=<commit> in turns; prints the ratios (BENCH="--only a,b --rounds 3")
	$(BIN)/python tools/bench_compare.py $(BASE) $(BENCH)

soak: setup peers ## random lives of volumes on our own drivers (DRIVERS="ebs efs", SOAK="--soak 10m --json soak.json")
	$(BIN)/python -m tests.soak $(DRIVERS) $(SOAK)

torture: setup peers ## crash images, damaged files and hostile requests in their long forms, with figures: hours, as root
	VOLPLANE_CACHE=$(CACHE) VOLPLANE_CRASH_IMAGES=$(IMAGES) VOLPLANE_DAMAGE_ALL=1 VOLPLANE_FUZZ_REQUESTS=$(REQUESTS) \
	unshare --mount --propagation slave $(BIN)/python -m pytest -q -s $(TORTURE)

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

dist: setup ## build packages, archives and the kubectl plugin into dist/ (DIST="--platform linux-amd64")
	$(BIN)/python -m tools.dist $(DIST)

lock: ## pin all dependencies, with hashes
	$(BIN)/python tools/lock.py

clean: ## remove what set-up and the tools made
	rm -rf $(VENV) .coverage build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
