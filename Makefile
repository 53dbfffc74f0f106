# Every target says what it does: run `make` to see them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE      := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/drover
VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
DEMO_FLAGS ?=
FUZZ_TIME  ?= 10s
BENCH_TIME ?= 1s
CHAOS_FLAGS ?=
SOAK_FLAGS ?=
TEST_FLAGS ?=
BENCH_PROXY_FLAGS ?=
BENCH_MOVE_FLAGS ?=
PROFILES_FLAGS ?=

# pinned is the version of a tool that tools/go.mod names.
pinned = $(shell scripts/setup.sh tool-version $(1))

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the stack's servers into ~/.cache/drover (nothing when they are there; 12-20 minutes when not)
	@scripts/setup.sh

.PHONY: drivers
drivers: ## Install PyMongo and mongosh for the tests of other drivers (into ~/.cache/drover)
	@scripts/drivers.sh

.PHONY: build
build: ## Build bin/drover
	go build -ldflags '-X drover/cli.Version=$(VERSION)' -o bin/drover ./cmd/drover

.PHONY: release
release: ## Build static binaries for Linux (amd64, arm64) with checksums, into dist
	scripts/release.sh $(VERSION) dist

.PHONY: stack
stack: setup build ## Start every server on this machine and show where it is (stop it with bin/drover dev down)
	bin/drover dev up

.PHONY: demo
demo: setup build ## Move a hot chunk under load and check every write (DEMO_FLAGS="--keep --deaf-proxy --sabotage ...")
	bin/drover demo $(DEMO_FLAGS)

.PHONY: test
test: setup drivers build ## Run all tests on a stack of their own, which is stopped afterwards
	scripts/test.sh $(TEST_FLAGS)

.PHONY: check
check: rules lint ## Run all that needs no server: rules and linters

.PHONY: rules
rules: ## Check determinism of workflows, import rules and what go vet knows
	@scripts/setup.sh workflowcheck
	go vet ./...
	go test ./internal/archtest -count=1
	$(CACHE)/workflowcheck-$(call pinned,workflowcheck)/bin/workflowcheck -config .workflowcheck.yaml -test=false ./workflows/... ./internal/flow/...

.PHONY: lint
lint: ## Run golangci-lint (its first build takes a few minutes)
	@scripts/setup.sh golangci-lint
	$(CACHE)/golangci-lint-$(call pinned,golangci-lint)/bin/golangci-lint run

.PHONY: unit
unit: ## Run the tests that need no server
	go test ./... -short

.PHONY: integration
integration: ## Run all tests on the stack that `make stack` started
	REQUIRE_STACK=1 go test ./... -count=1 -timeout 40m $(TEST_FLAGS)

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZ_TIME
	scripts/fuzz.sh $(FUZZ_TIME)

.PHONY: bench
bench: ## Run the benchmarks for BENCH_TIME each
	go test ./... -run '^$$' -bench . -benchmem -benchtime $(BENCH_TIME)

.PHONY: bench-proxy
bench-proxy: setup ## Measure the proxy against a forwarder that only copies bytes, into bench/out/proxy.json
	go run ./bench/proxy $(BENCH_PROXY_FLAGS)

.PHONY: chaos
chaos: setup build ## Kill every component at every step of a move, into bench/out/chaos.json (CHAOS_FLAGS="-cells 'worker@'")
	go run ./bench/chaos $(CHAOS_FLAGS)

.PHONY: soak
soak: setup build ## Switch a chunk 1,000 times with random kills, into bench/out/soak.json (SOAK_FLAGS="-switches 50")
	go run ./bench/soak $(SOAK_FLAGS)

.PHONY: histories
histories: ## Record the histories that test/histories replays anew, on the stack that `make stack` started
	DROVER_RECORD=$(CURDIR)/test/histories REQUIRE_STACK=1 go test ./test/scenario ./workers -count=1 -timeout 40m $(TEST_FLAGS)

.PHONY: mixed
mixed: ## Replace a binary of commit OLD by this one in the middle of a move, on the stack that `make stack` started
	scripts/mixed.sh $(OLD)

.PHONY: sim
sim: build ## Simulate fleets: half a year of faults, and balancing, into bench/out/remediate.json and balance.json
	bin/drover sim remediate --out bench/out/remediate.json
	bin/drover sim balance --out bench/out/balance.json

.PHONY: bench-switch
bench-switch: setup build ## Switch a chunk back and forth under load, into bench/out/switch.json (BENCH_SWITCH_FLAGS="-chunk-mb 1000 ...")
	go run ./bench/switch $(BENCH_SWITCH_FLAGS)

.PHONY: profiles
profiles: ## Hold fences before clients that retry in different ways, into bench/out/profiles.json (needs no server)
	go run ./bench/profiles $(PROFILES_FLAGS)

.PHONY: bench-move
bench-move: setup build ## Measure import, apply and validation beside other tools, into bench/out/move.json (BENCH_MOVE_FLAGS="-parts cached -scale 0.5 -limit 1m")
	go run ./bench/move $(BENCH_MOVE_FLAGS)

.PHONY: generate
generate: ## Write the generated files anew
	go generate ./...

.PHONY: clean
clean: ## Stop the stacks of this checkout and remove what was built and stored; the cache of servers stays
	@for stack in .drover/stack.json .drover/test/stack.json; do \
		if [ -e "$$stack" ] && [ -x bin/drover ]; then DROVER_STACK="$$PWD/$$stack" bin/drover dev reset; fi; \
	done
	rm -rf bin .drover demo-report.json
