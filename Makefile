# Weir. Two commands: `make demo` runs the main job on generated data, `make test` passes the tests.
# Both set up what they need on a Debian machine that has Rust.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
export CARGO_TARGET_DIR := $(TARGET)
WEIR := $(TARGET)/debug/weir
JOBS ?= 2

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: deps
deps: ## build tools, RocksDB and the cargo config (WEIR_ROCKSDB=auto|prebuilt|bundled)
	@.ci/deps

.PHONY: build
build: deps ## the weir binary, in the profile that demo and tests share
	@cargo build --locked -j $(JOBS) --workspace --bins

.PHONY: demo
demo: build ## loads TPC-H lineitem through the protocol, tiers it, verifies it and shows the lake
	@$(WEIR) demo --data-dir $(TARGET)/demo

.PHONY: fmt
fmt: ## formats the sources
	@cargo fmt --all

.PHONY: lint
lint: deps ## format, rules of this repository, clippy
	@cargo fmt --all -- --check
	@cargo test --locked -j $(JOBS) --workspace --test tidy -- --quiet
	@cargo clippy --locked -j $(JOBS) --workspace --all-targets -- -D warnings

.PHONY: unit
unit: build ## unit, golden, property, integration, simulation and crash tests
	@cargo test --locked -j $(JOBS) --workspace

.PHONY: smoke
smoke: build ## released clients and independent readers against the binary; a trace of its syncs
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/smoke.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/compatibility.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/s3.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/sync_trace.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/sync_trace.py --weir $(WEIR) --target $(TARGET) --expect-unsynced

# An hour for each target, of one core.
FUZZ_SECONDS ?= 52200
.PHONY: fuzz
fuzz: deps ## every decoder of outside bytes, guided by coverage, FUZZ_SECONDS of both cores in all
	@tests/fuzz/run $(FUZZ_SECONDS)

.PHONY: test
test: ## everything that CI runs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory smoke
	@FUZZ_SEED=1 $(MAKE) --no-print-directory fuzz FUZZ_SECONDS=120

.PHONY: interop
interop: build ## Java clients against our server, the daemon against a real Fluss cluster, Java Paimon against our tables (Java 17, Maven)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/java_clients.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/real_cluster.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/compatibility.py --java --write --weir $(WEIR) --target $(TARGET)

.PHONY: compatibility
compatibility: build ## writes lake-format/docs/compatibility.md; Java's cells are `make interop`'s
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/compatibility.py --write --weir $(WEIR) --target $(TARGET)

.PHONY: bench
bench: deps ## throughput beside the limits of this machine, as JSON (release build)
	@cargo build --locked --release -j $(JOBS) --workspace --bins --benches
	@cargo bench --locked -j $(JOBS) --workspace --bench whole_path
	@cargo bench --locked -j $(JOBS) --workspace --bench commit_cost
	@cargo test --locked -j $(JOBS) --workspace --test integration -- walls --nocapture | grep freshness

.PHONY: soak
soak: build ## 5,000 seeds of the simulation, the bugs planted for it, 200 rounds of kill -9 (hours)
	@WEIR_SIM_SEEDS=5000 cargo test --locked -j $(JOBS) --workspace --test sim
	@tests/sim/planted/find
	@WEIR_KILL_ROUNDS=200 cargo test --locked -j $(JOBS) --workspace --test crash

.PHONY: clean
clean: ## removes what was built
	@cargo clean
