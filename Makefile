# Everything that a user or a CI job runs. `make` lists it.
SHELL := bash
.DEFAULT_GOAL := help

VENV ?= .venv
CONSTRAINTS ?= constraints.txt
# pytest processes; each test may start ranks of its own
TEST_PROCESSES ?= 2
CACHE := $(or $(QUANTFLEET_CACHE),.cache)
DEMO := $(CACHE)/demo
KUBERNETES := $(CACHE)/kubernetes/bin
SETUP := $(VENV)/.quantfleet-setup
PYTEST := $(VENV)/bin/python -m pytest
TWO_NODES := PYTHONPATH=testbed:tests/support $(VENV)/bin/python -m two_nodes
# decoder layers of the cut copies of the demo model that tests use
CUT_LAYERS := 2 8

.PHONY: help setup demo-data images kubernetes cluster-programs cluster-up cluster-down demo lint format generate test test-unit test-distributed test-controlplane cluster-test soak bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(SETUP)  ## make the virtual environment with everything pinned

$(SETUP): pyproject.toml $(CONSTRAINTS) scripts/setup.sh
	scripts/setup.sh $(VENV) $(CONSTRAINTS)
	@touch $@

demo-data: setup  ## fetch and convert the real model and text (93 MB down, 1 GB on disk)
	$(VENV)/bin/python scripts/fetch_demo.py --layers $(CUT_LAYERS)

images: setup  ## build the images of worker and operator (root, Debian; minutes, where inputs changed)
	scripts/install_packages.sh
	$(VENV)/bin/python scripts/build_images.py

kubernetes:  ## build the etcd, Kubernetes and helm that tests start (7 min of Go, once)
	scripts/build_kubernetes.sh $(KUBERNETES)

cluster-programs: kubernetes  ## the same and what nodes need: Debian packages, kubelet and the like
	scripts/install_packages.sh
	scripts/build_kubernetes.sh $(KUBERNETES) kubelet kube-proxy kube-router coredns pause
	if docker info >/dev/null 2>&1; then scripts/build_kubernetes.sh $(KUBERNETES) kind; fi

cluster-up: cluster-programs images  ## a Kubernetes of two real nodes on this machine (root, Debian)
	$(TWO_NODES) up

cluster-down: setup  ## remove it, or what a crash left of it
	$(TWO_NODES) down

demo: demo-data  ## quantize the real model with two ranks and compare perplexities
	$(VENV)/bin/quantfleet run examples/smollm2-w8a8.yaml \
	  --volume models=$(DEMO)/models --volume data=$(DEMO)/data --volume out=demo

lint: setup  ## formatting, lints, types and import directions
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(PYTEST) -q tests/layout

format: setup  ## format the code and mend what can be mended
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

generate: setup  ## write the CRD, the chart's copy of it and the reference of fields anew
	$(VENV)/bin/python scripts/generate.py

test: lint demo-data kubernetes cluster-programs images  ## lint, then every test but the soak
	$(PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m "not (cluster or soak)"
	$(PYTEST) -m "cluster and not soak" tests/images tests/cluster

test-unit: setup  ## the tests that need no other ranks, no demo data, no Kubernetes
	$(PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m "not (distributed or demo or controlplane or cluster or soak)"

test-distributed: demo-data  ## the tests that start several ranks
	$(PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m "distributed and not soak"

test-controlplane: setup kubernetes  ## the tests on a real Kubernetes control plane
	$(PYTEST) -n $(TEST_PROCESSES) --dist worksteal -m "controlplane and not soak"

cluster-test: demo-data cluster-programs images  ## the tests on real nodes; brings the cluster up and down
	$(PYTEST) -m "cluster and not soak" tests/images tests/cluster

soak: demo-data cluster-programs images  ## the long lists in full (hours)
	$(VENV)/bin/python scripts/fetch_demo.py --layers $(CUT_LAYERS) 8
	$(PYTEST) -n $(TEST_PROCESSES) --dist loadgroup -m "soak and not cluster" --timeout 3600
	$(PYTEST) -m "soak and cluster" --timeout 3600

bench: demo-data kubernetes  ## speed, memory and 1,000 jobs, a JSON line a figure
	PYTHONPATH=scripts:tests/support $(VENV)/bin/python -m benchmarks --demo $(DEMO)

clean:  ## remove what was built, but not the fetched model and text
	rm -rf $(VENV) demo dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
