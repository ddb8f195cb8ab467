# Targets for the library itself: wheel, tiers of its own, figures. The Makefile includes this file where it exists.

##@ Library

.PHONY: template test-node test-gpu test-llm test-torch test-next-provider test-mutants fuzz kill-matrix bench-synth bench-checkpoint bench-gpu bench-training bench-batch bench-placement bench-cluster bench-monitoring bench-lint bench-server bench-llm bench-month bench-elastic bench-peers bench-peer-kills bench-resize-kills bench-hardware site wheel
template: setup ## A repository that a team keeps, with the library pinned: OUT=../acme-platform [ENV=acme] [HISTORY=FILE]
	@$(PY) .ci/template.py $(if $(filter file,$(origin OUT)),$(error make template: got no OUT; allowed: a folder that does not exist; fix: make template OUT=../acme-platform),$(OUT)) $(if $(filter file,$(origin ENV)),,--env $(ENV)) $(if $(HISTORY),--history $(HISTORY))

wheel: setup ## The library `holdfast` as wheel and sdist in out/wheel
	@$(PY) .ci/wheel.py

site: setup ## The site of all pages of the tree, with search and references, in out/site/html
	@PYTHONPATH=. $(PY) .ci/site/build.py --out-dir $(OUT)/site

test-node: setup tools ## Real kubelets and real Spot shutdowns (root, Debian)
	@$(PY) -m workloads.library.tests.node.install && $(PY) -m tests.tools.build kubelet && $(PY) -m tests.tiers node

test-gpu: setup ## Pinned staging, copies during steps, nccl and gangs (a GPU)
	@$(PY) -m tests.tiers gpu

test-llm: setup ## The rendered commands and probes of a service on the real vLLM, without a GPU (6 GB, minutes)
	@$(PY) -m tests.tiers llm

test-torch: setup ## Training and checkpoints with older PyTorch: TORCH=oldest, oldest-gangs or middle, else all (6 GB each, minutes)
	@$(PY) -m workloads.library.tests.older_torch $(TORCH)

test-next-provider: setup tools cdktf-cli ## Plans with the next major release of the google provider (its build takes 10 minutes, once), and the cdktn command line
	@$(PY) -m tests.tools.build terraform-provider-google-8
	@$(PY) -m tests.tiers next-provider

test-mutants: setup tools ## Break the product in one place at a time: named tests must notice each
	@$(PY) -m workloads.library.tests.mutants

fuzz: setup ## Hostile input at every border, for an hour: SECONDS=3600 [SEED=n]
	@$(PY) -m workloads.library.tests.fuzz --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

kill-matrix: setup ## 200 kills of the trainer, then of batch workers (long)
	@$(PY) -m workloads.library.tests.bench.kill_matrix
	@$(PY) -m workloads.library.tests.bench.batches.kills

bench-synth: setup ## Each bench prints a table and last a JSON line with its goals
	@$(PY) -m workloads.library.tests.bench.synth

bench-checkpoint: setup tools
	@$(PY) -m workloads.library.tests.bench.checkpoint $(if $(ONLY),--only $(ONLY)) $(if $(STOPS),--stops $(STOPS))

bench-gpu: setup
	@$(PY) -m workloads.library.tests.bench.gpu $(if $(MIB),--mib $(MIB)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-training: setup
	@$(PY) -m workloads.library.tests.bench.training $(if $(ONLY),--only $(ONLY))

bench-batch: setup
	@$(PY) -m workloads.library.tests.bench.batch $(if $(SECTIONS),--sections $(SECTIONS))

bench-placement: setup
	@$(PY) -m workloads.library.tests.bench.placement

bench-cluster: setup tools
	@$(PY) -m workloads.library.tests.bench.cluster

bench-monitoring: setup tools
	@$(PY) -m workloads.library.tests.bench.monitoring

bench-lint: setup
	@$(PY) -m workloads.library.tests.bench.lint

bench-server: setup tools
	@$(PY) -m workloads.library.tests.bench.server $(if $(SECTIONS),--sections $(SECTIONS))

bench-llm: setup
	@$(PY) -m workloads.library.tests.bench.llm $(if $(SECTIONS),--sections $(SECTIONS)) $(if $(VLLM_STREAMS),--vllm-streams $(VLLM_STREAMS)) $(if $(CONVERSATIONS),--conversations $(CONVERSATIONS))

bench-month: setup tools
	@$(PY) -m workloads.library.tests.bench.month

bench-elastic: setup
	@$(PY) -m workloads.library.tests.bench.elastic

bench-peers: setup tools
	@$(PY) -m workloads.library.tests.bench.peers $(if $(MB),--mb $(MB)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-peer-kills: setup
	@$(PY) -m workloads.library.tests.bench.peer_kills $(if $(KILLS),--kills $(KILLS))

bench-resize-kills: setup
	@$(PY) -m workloads.library.tests.bench.resize_kills $(if $(KILLS),--kills $(KILLS))

bench-hardware: setup
	@$(PY) -m workloads.library.tests.bench.hardware $(if $(SECTIONS),--sections $(SECTIONS))
