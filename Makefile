# Targets are one line of intent; anything longer is a Python module.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ENV ?= example
# For all that touches a cloud or a cluster: never `example` by default.
NAMED_ENV = $(if $(filter file,$(origin ENV)),$(error make $@ touches a cloud or a cluster: got no ENV; allowed: a module of infra/environments; fix: make $@ ENV=NAME),$(ENV))
OUT ?= out
ROOT := $(CURDIR)
export PATH := $(ROOT)/.venv/bin:$(ROOT)/.node/node_modules/.bin:$(PATH)
export CHECKPOINT_DISABLE := 1
export PYTHONDONTWRITEBYTECODE :=
PY := .venv/bin/python

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Start

.PHONY: setup demo drill
setup: .venv/.ready ## Install Python packages and Node under .venv; nothing global
.venv/.ready: requirements/dev.txt .ci/bootstrap.py
	@$(PYTHON) .ci/bootstrap.py

demo: setup ## Train, score and serve under preemptions, then show a report (5 minutes)
	@holdfast demo --out $(OUT)/demo

drill: setup ## Evict local processes on purpose and check the results
	@holdfast drill --target local --out $(OUT)/drills

##@ Check

.PHONY: test test-fast test-process test-plan check
test: setup check tools cdktf-cli ## Run all tests that need no cloud, GPU or Docker
	@$(PY) -m tests.tiers all

test-fast: setup ## Logic, layers, goldens
	@$(PY) -m tests.tiers fast

test-process: setup tools cdktf-cli ## Real processes, real signals, real PostgreSQL
	@$(PY) -m tests.tiers process

test-plan: setup tools cdktf-cli ## Real Terraform plan with the real google provider
	@$(PY) -m tests.tiers plan

check: setup ## Format, lint, types, workflow files, style, wording, spelling
	@ruff format --check --quiet . && ruff check --quiet .
	@$(MAKE) --jobs=2 check-types check-text

.PHONY: check-types check-text
check-types: setup
	@basedpyright

check-text: setup
	@$(PY) -m pytest --collect-only -qq -p no:xdist | { grep -vE '^([^ ]+: [0-9]+)?$$' || true; } # imports of every test
	@$(PY) -m tests.check_workflows
	@$(PY) -m tests.check_words
	@$(PY) -m tests.check_style
	@typos

.PHONY: coverage
coverage: setup ## Show the share of lines and branches that a tier runs (TIER=fast)
	@mkdir -p $(OUT)/coverage
	@$(PY) -m coverage erase
	@$(PY) -m coverage run -m tests.tiers $(or $(TIER),fast)
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report --skip-covered --sort=cover

.PHONY: fmt lock
fmt: setup ## Format and fix what ruff can
	@ruff check --quiet --fix . ; ruff format --quiet .

lock: setup ## Write the lock file of every dependency group, with hashes and without index addresses
	@$(PY) .ci/lock.py

.PHONY: test-cluster test-kind test-alert
test-cluster: setup tools ## A real control plane with hundreds of simulated nodes
	@$(PY) -m tests.tiers cluster

test-kind: setup tools ## The cluster tier on a real kind cluster, with real pods of the platform (Docker, kind)
	@$(PY) -m tests.tiers kind

test-alert: setup tools ## Replay good and bad metric histories of ALERT (name or slug) in Prometheus
	@$(PY) -m tests.monitoring.alerting.play $(ALERT)

##@ Platform (ENV=NAME; default without cloud access: example)

.PHONY: render lint apply operators operators-pin images images-base
render: setup ## Render the manifests of every environment
	@$(PY) -m workloads render

lint: setup ## Lint the rendered manifests
	@holdfast lint workloads/rendered

apply: setup ## Apply ENV's platform objects to the current cluster and delete old ones; needs no GPU
	@$(PY) -m workloads apply $(NAMED_ENV) $(if $(YES),--yes) $(if $(DRY_RUN),--dry-run)

images: setup ## Build the wheel, then build and push the images of ENV (buildx or buildah) and write their digests
	@$(if $(wildcard workloads/library),$(PY) .ci/wheel.py --wheel-only --out-dir vendor)
	@$(PY) -m workloads images build $(NAMED_ENV)

images-base: setup ## Record today's digest of the base image's tag
	@$(PY) -m workloads.images.base

operators-pin: setup ## Copy the images of JobSet, Kueue, Envoy, vLLM, DCGM and the Cloud SQL proxy into the registry of ENV, and write their digests
	@$(PY) -m workloads images copy $(NAMED_ENV)

operators: setup ## Install the pinned JobSet and Kueue in the current cluster; waits for their webhooks
	@$(PY) -m workloads apply $(NAMED_ENV) --operators $(if $(YES),--yes)

.PHONY: synth plan rules check-env leftovers upgrade-check doctor doctor-cluster snapshots inventory outputs bootstrap deploy diff destroy
synth: setup ## Write the Terraform JSON of every stack of ENV
	@$(PY) -m infra plan $(ENV) --synth

plan: setup provider ## Plan ENV with the real provider into out/plan/ENV
	@$(PY) -m infra plan $(ENV)

rules: setup ## List the platform's rules with reasons
	@$(PY) -m infra check --rules

check-env: setup ## Check ENV without Terraform
	@$(PY) -m infra check $(ENV)

leftovers: setup ## List resources that GKE left in ENV's project after a destroy
	@$(PY) -m infra leftovers $(NAMED_ENV)

upgrade-check: setup ## Show what a merge of REF would change or destroy in ENV
	@$(PY) -m infra plan $(ENV) --merge $(REF)

doctor: setup ## Check what a deployment of ENV needs
	@$(PY) -m infra doctor $(NAMED_ENV)

doctor-cluster: setup ## Check what the cluster of ENV needs before a first job
	@$(PY) -m workloads doctor $(NAMED_ENV)

snapshots: setup provider ## Record the plan inventories, addresses and chart specifications
	@$(PY) -m tests.plan.inventory
	@$(if $(wildcard workloads/library/tests),$(PY) -m workloads.library.tests.report.test_chart_goldens)

inventory: setup provider ## Record the plan of your environment ENV; make test-plan then compares with it
	@$(PY) -m tests.plan.inventory $(ENV)

outputs: setup ## Show how to reach the cluster of ENV, its buckets, images and dashboards
	@$(PY) -m infra outputs $(NAMED_ENV)

bootstrap: setup ## Create what ENV needs before its first deployment: APIs, service agents, state bucket
	@$(PY) -m infra bootstrap $(NAMED_ENV)

deploy: setup cdktf-cli ## Deploy ENV
	@$(PY) -m infra deploy $(NAMED_ENV)

diff: setup cdktf-cli ## Show what a deployment of ENV would change
	@$(PY) -m infra diff $(NAMED_ENV)

destroy: setup cdktf-cli ## Destroy ENV; stops at protected resources
	@$(PY) -m infra destroy $(NAMED_ENV)

.PHONY: prove
prove: setup cdktf-cli ## COSTS MONEY: deploy ENV, run jobs on Spot, preempt them, check, destroy; MAX_USD=20
	@$(PY) -m infra prove $(NAMED_ENV) --max-usd $(MAX_USD)

##@ Tools

.PHONY: tools provider cdktf-cli system-packages clean
tools: setup ## Build the pinned test tools once, in the user's cache
	@$(PY) -m tests.tools.build

provider: setup
	@$(PY) -m tests.tools.build terraform-provider-google

cdktf-cli: .node/.ready ## Install the cdktf command under .node
.node/.ready: requirements/node/package-lock.json .venv/.ready
	@mkdir -p .node && cp requirements/node/package*.json .node/
	@npm ci --prefix .node --prefer-offline --no-audit --no-fund --loglevel=error && touch $@

system-packages: ## Install the Debian packages that the tests use (root)
	@$(PYTHON) .ci/system_packages.py

clean: ## Delete generated files
	@rm -rf out cdktf.out .node .venv

# Targets of the library, which a template does not have.
-include workloads/library/library.mk
