# `make help` lists the targets. Settings (overridable on the command line):
include versions.mk

PYTHON   ?= python3
VENV     ?= .venv
BIN      := $(VENV)/bin
# Where built cluster programs and images are kept between runs.
CACHE    ?= /var/cache/glm5
# embedded: the project's own one-node Kubernetes; current: the context that your kubeconfig points at.
CLUSTER  ?= embedded
REGISTRY ?= glm5.local
export CACHE CLUSTER REGISTRY API_PORT STATE VERSION SGLANG_VERSION SGLANG_IMAGE DEBIAN_RELEASE

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Demo (as root)
.PHONY: demo demo-down
demo: ## From a bare machine to a table of decode figures: CLUSTER=embedded, or current with REGISTRY=
	@PYTHONPATH=hack $(PYTHON) -m demo up

demo-down: ## Remove the demo: the embedded cluster whole, or what the demo put into the current one
	@PYTHONPATH=hack $(PYTHON) -m demo down

##@ Develop
.PHONY: bench-operator venv lint types promtool test-unit test-backend test-cluster test-autoscaling test generate
$(VENV)/.ready: constraints.txt requirements-dev.txt operator/pyproject.toml backend/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt -e operator -e backend
	@touch $@

venv: $(VENV)/.ready ## Make the developer's virtual environment in .venv

lint: venv ## Check form with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv ## Check types with mypy
	$(BIN)/mypy

test-unit: venv ## Unit tests: seconds, no cluster
	$(BIN)/pytest tests/unit -m "not sglang"

kernel: venv ## Build the CUDA kernel's library (SM90 and SM120) beside its source
	$(BIN)/python -m glm5_mla.kernels.native.build

generate: venv ## Write CRD, install manifest, dashboards and references anew (helm on the PATH, or the cluster's)
	PATH="$$PATH:$(dir $(lastword $(wildcard $(CACHE)/bin/*/helm)))" $(BIN)/python hack/generate.py
	PYTHONPATH=hack $(BIN)/python -m monitoring

# Such as: --objects 100 1000 --idle-seconds 600 60
BENCH_OPERATOR ?=
bench-operator: venv ## The operator with 100 and 1,000 objects on a control plane (as root): docs/benchmarks/operator.json
	$(BIN)/python hack/bench_operator.py $(BENCH_OPERATOR)

test-cluster: venv ## Tests on a real cluster, which they start and stop (as root; KEEP_CLUSTER=1 leaves it up)
	$(BIN)/pytest tests/cluster -m "not autoscaling"

test-autoscaling: venv ## Autoscaling by a real KEDA and by prometheus-adapter, built first (as root; not part of `make test`)
	$(BIN)/pytest tests/cluster/test_autoscaling.py

promtool: ## Build promtool, which tests of rules and dashboards skip without (Go)
	@$(CLUSTER_TOOL) build promtool

test: lint types promtool test-unit test-backend test-cluster ## All checks: lint, types, unit tests, SGLang's, the cluster's

##@ Monitoring
.PHONY: dashboards-check dashboards-render bench-exporter
RENDER     := hack/render-dashboards
DASHBOARDS := $(wildcard charts/glm5-operator/dashboards/*.json)
PROMETHEUS ?= http://127.0.0.1:9090
MINUTES    ?= 15
$(RENDER)/node_modules/.ready: $(RENDER)/package.json
	npm install --prefix $(RENDER) --no-audit --no-fund --no-package-lock --ignore-scripts --silent
	@touch $@

dashboards-check: $(RENDER)/node_modules/.ready ## Check the dashboards against Grafana's published schema (Node)
	node $(RENDER)/check-schema.mjs $(DASHBOARDS)

dashboards-render: $(RENDER)/node_modules/.ready ## Pictures of the last MINUTES= from PROMETHEUS= in build/ (Node, Chromium)
	@mkdir -p build
	@for board in $(DASHBOARDS); do node $(RENDER)/render.mjs --dashboard $$board --prometheus $(PROMETHEUS) \
	    --minutes $(MINUTES) --out build/$$(basename $$board .json).png || status=1; done; exit $${status:-0}

bench-exporter: venv ## What the exporter costs at 8 ranks and 200 steps/s, into docs/benchmarks/exporter.json
	$(BIN)/python -m glm5_mla.bench.exporter --out docs/benchmarks/exporter.json

##@ Measure (on a machine with a GPU and SGLang; PYTHON is that SGLang's)
.PHONY: kernel bench-kernel bench-server bench-eight bench-tables gpu-session
# What these targets run: PYTHON with this package before what PYTHONPATH names.
ON_CARD = PYTHONPATH=backend/src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON)
BENCH_ARGUMENTS ?= --numerics --stamps --timing-rounds 14 --profile whole-pool --profile never-cuda \
  --wave active-rows,whole-pool,never-flashinfer,never-cuda --wave sglang-triton,timed-1,untimed-1,timed-2,untimed-2
SERVER_JSON := docs/benchmarks/server-h200.json
bench-server: ## Decode steps of real servers by mode, context and batch, into docs/benchmarks/server-h200.json
	$(ON_CARD) -m glm5_mla.bench.server --out $(SERVER_JSON) $(BENCH_ARGUMENTS)

EIGHT_OUT := build/bench-eight
bench-eight: ## Decode steps over all GPUs of this machine (tensor parallel), into docs/benchmarks/gpus-N.json
	rm -f $(EIGHT_OUT)/gpus-*.json
	$(ON_CARD) hack/gpu_session.py --out $(EIGHT_OUT) --only bench-gpus; status=$$?; \
	  cp $(EIGHT_OUT)/gpus-*.json docs/benchmarks/; exit $$status

bench-kernel: ## One layer of decode attention, ours and what else is installed, into docs/benchmarks/kernel-h200.json
	$(ON_CARD) -m glm5_mla.bench.kernel --output docs/benchmarks/kernel-h200.json

gpu-session: ## All that wants cards, in lanes and bounded time, into OUT=build/gpu-session (STEPS=a,b: only those)
	$(ON_CARD) hack/gpu_session.py --out $(or $(OUT),build/gpu-session) --only "$(STEPS)"

bench-tables: ## Print the tables of docs/benchmarks from their JSON (JSON=: another file; NEW=: merge these runs into it first)
	$(PYTHON) hack/server_table.py $(or $(JSON),$(SERVER_JSON)) $(NEW)
	$(PYTHON) hack/kernel_table.py docs/benchmarks/kernel-h200.json

##@ Images
.PHONY: images sglang-env test-triton
# All of them, or those that IMAGES= names (operator, server-cpu, server).
images: ## Build the images with buildah and say where their archives are (as root)
	@PYTHONPATH=hack $(PYTHON) -m images $(IMAGES)

SGLANG_VENV := .venv-sglang
# Shared by all checkouts on this machine, one per content of images/server-cpu.
SGLANG_CPU = $(CACHE)/sglang-cpu-$(shell find images/server-cpu -type f -not -name '*.pyc' -not -name Dockerfile | sort | xargs cat | sha256sum | cut -c1-12)

$(SGLANG_VENV)/.ready: $(shell find images/server-cpu -type f -not -path '*/__pycache__*') backend/pyproject.toml constraints.txt
	@mkdir -p $(CACHE)
	flock $(SGLANG_CPU).lock $(PYTHON) images/server-cpu/create_env.py $(SGLANG_CPU)
	$(PYTHON) -m venv --clear --without-pip $(SGLANG_VENV)
	@echo 'import site; site.addsitedir("$(SGLANG_CPU)/lib/python3.11/site-packages")' > $(SGLANG_VENV)/lib/python3.11/site-packages/sglang_cpu.pth
	$(SGLANG_CPU)/bin/pip --python $(SGLANG_VENV)/bin/python install -q --disable-pip-version-check -c constraints.txt pytest pytest-timeout jiter hatchling editables
	$(SGLANG_CPU)/bin/pip --python $(SGLANG_VENV)/bin/python install -q --disable-pip-version-check --no-deps --no-build-isolation -e backend
	@touch $@

sglang-env: $(SGLANG_VENV)/.ready ## The real SGLang on a CPU, with our backend, in .venv-sglang

test-backend: test-triton ## Tests that need the real SGLang: units, kernels, and a server of the tiny model on the CPU
	$(SGLANG_VENV)/bin/python -m pytest tests/unit/backend tests/server -m sglang

# The real Triton (0.9 GB) lies beside the environment, whose stand-in SGLang needs on a CPU. Shared by all checkouts.
TRITON = $(CACHE)/triton-$(shell sed -n 's/^triton==//p' constraints.txt)
$(TRITON)/.ready: | $(SGLANG_VENV)/.ready
	@mkdir -p $(CACHE)
	flock $(TRITON).lock sh -c 'test -e $@ || $(SGLANG_CPU)/bin/pip install -q --disable-pip-version-check --no-deps \
	  --upgrade --target $(TRITON) -c constraints.txt triton && touch $@'

test-triton: $(SGLANG_VENV)/.ready $(TRITON)/.ready ## Run our Triton kernels in Triton's interpreter, and compile them for SM90 and SM120
	PYTHONPATH=$(TRITON) $(SGLANG_VENV)/bin/python -m pytest tests/triton

##@ Embedded Kubernetes (as root)
# A real one-node cluster in namespaces of its own; PROFILE=control-plane is one without a node, which can run beside it.
PROFILE ?= full
CLUSTER_TOOL := PYTHONPATH=hack $(PYTHON) -m cluster
.PHONY: cluster-up cluster-down cluster-status cluster-env
cluster-up: ## Build what is missing and start the cluster, or use the healthy one
	@$(CLUSTER_TOOL) up --profile $(PROFILE)

cluster-down: ## Stop the cluster and remove all of it but what was built
	@$(CLUSTER_TOOL) down --profile $(PROFILE)

cluster-status: ## Say whether the cluster is healthy, and how to talk to it
	@$(CLUSTER_TOOL) status --profile $(PROFILE)

cluster-env: ## Print the line for your shell that points kubectl at it
	@$(CLUSTER_TOOL) env --profile $(PROFILE)
