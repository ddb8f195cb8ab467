# Targets are one line of intent; anything longer is a Python module.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ENV ?= example
# For all that touches a cloud or a cluster: never `example` because nobody said otherwise.
NAMED_ENV = $(if $(filter file,$(origin ENV)),$(error make $@ touches a cloud or a cluster: got no ENV; allowed: a module of infra/environments; fix: make $@ ENV=NAME),$(ENV))
OUT ?= out
TARGET ?= local
REPEAT ?= 1
ROOT := $(CURDIR)
export PATH := $(ROOT)/.venv/bin:$(ROOT)/.node/node_modules/.bin:$(PATH)
export CHECKPOINT_DISABLE := 1
export PYTHONDONTWRITEBYTECODE :=
PY := .venv/bin/python

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Start

.PHONY: setup demo drill
setup: .venv/.ready ## Python environment and Node under .venv; nothing global
.venv/.ready: requirements/dev.txt .ci/bootstrap.py
	@$(PYTHON) .ci/bootstrap.py

demo: setup ## The main job: train, score and serve under evictions, and a report (5 minutes)
	@$(PY) -m holdfast demo --out $(OUT)/demo

drill: setup $(if $(filter cluster node,$(TARGET)),tools) ## Evict on purpose and judge: TARGET=local|cluster|node (node: root, Debian) [REPEAT=3]
	@$(if $(filter node,$(TARGET)),$(PY) -m workloads.library.tests.node.install && $(PY) -m tests.tools.build kubelet)
	@$(PY) -m $(if $(filter cluster node,$(TARGET)),workloads.library.tests.drill.rig $(TARGET),holdfast drill run --target $(TARGET)) --repeat $(REPEAT) --out $(OUT)/drills

##@ Check

.PHONY: test test-fast test-process test-plan check
test: setup check tools cdktf-cli ## Everything that needs no cloud, no GPU and no Docker
	@$(PY) -m tests.tiers all

test-fast: setup ## Logic, layers, goldens
	@$(PY) -m tests.tiers fast

test-process: setup tools cdktf-cli ## Real processes, real signals, real PostgreSQL
	@$(PY) -m tests.tiers process

test-plan: setup tools cdktf-cli ## Real Terraform plan with the real google provider
	@$(PY) -m tests.tiers plan

check: setup ## Format, lint, types, workflows
	@ruff format --check --quiet . && ruff check --quiet . && basedpyright
	@$(PY) -m tests.check_workflows

.PHONY: fmt lock
fmt: setup ## Format and mend what ruff can
	@ruff check --quiet --fix . ; ruff format --quiet .

lock: setup ## Locks of every dependency group, with hashes and without addresses
	@$(PY) .ci/lock.py

.PHONY: test-cluster test-kind test-node test-gpu test-alert kill-matrix test-mutants fuzz
test-cluster: setup tools ## Real control plane with hundreds of simulated nodes
	@$(PY) -m tests.tiers cluster

test-node: setup tools ## Real kubelets and real Spot shutdowns (root, Debian)
	@$(PY) -m workloads.library.tests.node.install && $(PY) -m tests.tools.build kubelet && $(PY) -m tests.tiers node

test-kind: setup tools ## The cluster tier on a real kind cluster, and real pods of ours (Docker, kind)
	@$(PY) -m tests.tiers kind

test-gpu: setup ## Pinned staging and nccl (a GPU)
	@$(PY) -m tests.tiers gpu

test-alert: setup tools ## Play the bad and good histories of ALERT (name or slug) in Prometheus's engine
	@$(PY) -m tests.monitoring.alerting.play $(ALERT)

test-mutants: setup tools ## Break the product in one place at a time: named tests must notice each
	@$(PY) -m workloads.library.tests.mutants

fuzz: setup ## Hostile input at every border, for an hour: SECONDS=3600 [SEED=n]
	@$(PY) -m workloads.library.tests.fuzz --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

kill-matrix: setup ## 200 kills of the trainer, then of batch workers (long); RESULTS=FILE goes on where it stopped
	@$(PY) -m workloads.library.tests.bench.kill_matrix $(if $(RESULTS),--results $(RESULTS))
	@$(PY) -m workloads.library.tests.bench.batch_kills

.PHONY: soak-checkpoint
soak-checkpoint: setup ## 200 kills of a stranger's loop and 50 of each framework's script, each exact to the last bit (long)
	@$(PY) -m workloads.library.tests.bench.stranger_kills

.PHONY: bench-synth bench-checkpoint bench-training bench-batch bench-placement bench-cluster bench-monitoring bench-lint bench-server bench-month bench-elastic soak-elastic
bench-synth: setup ## Each bench prints a table and last a JSON line with its goals
	@$(PY) -m workloads.library.tests.bench.synth

bench-checkpoint: setup tools
	@$(PY) -m workloads.library.tests.bench.checkpoint

bench-training: setup
	@$(PY) -m workloads.library.tests.bench.training

bench-batch: setup
	@$(PY) -m workloads.library.tests.bench.batch

bench-placement: setup
	@$(PY) -m workloads.library.tests.bench.placement $(if $(TRACES),--traces $(TRACES))

bench-cluster: setup tools
	@$(PY) -m workloads.library.tests.bench.cluster

bench-monitoring: setup tools
	@$(PY) -m workloads.library.tests.bench.monitoring

bench-lint: setup
	@$(PY) -m workloads.library.tests.bench.lint

bench-server: setup tools
	@$(PY) -m workloads.library.tests.bench.server $(if $(SECTIONS),--sections $(SECTIONS))

bench-month: setup tools
	@$(PY) -m workloads.library.tests.bench.month

bench-elastic: setup
	@$(PY) -m workloads.library.tests.bench.elastic

soak-elastic: setup ## 300 kills of elastic gangs at every point (long)
	@$(PY) -m workloads.library.tests.bench.elastic_kills

##@ Platform (ENV=NAME; what touches no cloud takes example)

.PHONY: render lint lint-all apply operators operators-pin images images-base
render: setup ## Write the manifests of every environment
	@$(PY) -m workloads render

lint: setup ## Judge the rendered manifests
	@$(PY) -m holdfast lint workloads/rendered

lint-all: setup ## Our linter, and beside it kube-score and Checkov for generic hardening: FILES="PATH..."
	@$(PY) -m tests.tools.beside $(or $(FILES),workloads/rendered)

apply: setup ## Apply the platform half of ENV to the current cluster, and remove what it no longer holds: no GPU
	@$(PY) -m workloads apply $(NAMED_ENV) $(if $(YES),--yes)

images: setup ## Build the wheel, then build and push the images of ENV (buildx, buildah or Cloud Build) and write their digests
	@$(if $(wildcard workloads/library),$(PY) .ci/wheel.py --wheel-only --out-dir vendor)
	@$(PY) -m workloads images build $(NAMED_ENV)

images-base: setup ## Record what the base image's tag means today
	@$(PY) -m workloads images base

operators-pin: setup ## Copy the images of JobSet, Kueue, Envoy and the Cloud SQL proxy into the registry of ENV, and write their digests
	@$(PY) -m workloads images copy $(NAMED_ENV)

operators: setup ## JobSet and Kueue as pinned into the current cluster; waits until their webhooks answer
	@$(PY) -m workloads operators apply $(NAMED_ENV) $(if $(YES),--yes)

.PHONY: synth plan rules check-env leftovers upgrade-check doctor doctor-cluster snapshots inventory outputs bootstrap deploy diff destroy
synth: setup ## Terraform JSON of every stack of ENV
	@$(PY) -m infra synth $(ENV)

plan: setup provider ## Real plan of ENV into out/plan/ENV
	@$(PY) -m infra plan $(ENV)

rules: setup ## What the platform refuses, with reasons
	@$(PY) -m infra rules

check-env: setup ## Judge ENV without Terraform
	@$(PY) -m infra check $(ENV)

leftovers: setup ## What GKE left in the project of ENV after a destroy
	@$(PY) -m infra leftovers $(NAMED_ENV)

upgrade-check: setup ## What a merge of REF would move or destroy in ENV
	@$(PY) -m infra upgrade-check $(REF) --env $(ENV)

doctor: setup ## What a deployment of ENV needs and lacks
	@$(PY) -m infra doctor $(NAMED_ENV)

doctor-cluster: setup ## What the cluster of ENV lacks before a first job
	@$(PY) -m workloads doctor $(NAMED_ENV)

snapshots: setup provider ## Record the plan inventories, addresses, chart specifications and pictures anew
	@$(PY) -m tests.plan.inventory
	@$(PY) -m workloads.library.tests.report.chart_goldens
	@$(PY) .ci/site/pictures.py

inventory: setup provider ## Record the plan of ENV, an environment of yours; make test-plan holds it from then on
	@$(PY) -m tests.plan.inventory $(ENV)

outputs: setup ## How to reach the cluster of ENV, its buckets, images and dashboards
	@$(PY) -m infra outputs $(NAMED_ENV)

bootstrap: setup ## Make what ENV needs before its first deployment: APIs, service agents, the bucket of the state
	@$(PY) -m infra bootstrap $(NAMED_ENV)

deploy: setup cdktf-cli ## Deploy ENV
	@$(PY) -m infra deploy $(NAMED_ENV)

diff: setup cdktf-cli ## What a deployment of ENV would change
	@$(PY) -m infra diff $(NAMED_ENV)

destroy: setup cdktf-cli ## Destroy ENV; stops while anything is protected
	@$(PY) -m infra destroy $(NAMED_ENV)

.PHONY: prove janitor
prove: setup cdktf-cli ## COSTS MONEY: deploy ENV, work on Spot, take its machines, judge, destroy; MAX_USD=20
	@$(PY) -m infra prove $(NAMED_ENV) --max-usd $(MAX_USD)

janitor: setup cdktf-cli ## What interrupted proofs of ENV left; YES=1 removes it
	@$(PY) -m infra janitor $(NAMED_ENV) $(if $(YES),--yes)

##@ Tools

.PHONY: docs wheel
docs: setup ## The site of all pages of the tree, with references, in out/docs/site
	@PYTHONPATH=. $(PY) .ci/site/build.py --out-dir $(OUT)/docs

wheel: setup ## The library `holdfast` as wheel and sdist in out/wheel
	@$(PY) .ci/wheel.py

.PHONY: tools provider cdktf-cli system-packages clean
tools: setup ## Pinned test tools, built once into the user's cache
	@$(PY) -m tests.tools.build

provider: setup
	@$(PY) -m tests.tools.build terraform-provider-google

cdktf-cli: .node/.ready ## The cdktf command under .node
.node/.ready: requirements/node/package-lock.json .venv/.ready
	@mkdir -p .node && cp requirements/node/package*.json .node/
	@npm ci --prefix .node --no-audit --no-fund --loglevel=error && touch $@

system-packages: ## Debian packages that the tests use (root)
	@$(PYTHON) .ci/system_packages.py

clean: ## Everything that can be made again
	@rm -rf out cdktf.out .node .venv
