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
unit: build ## unit, golden, property, integration and crash tests
	@cargo test --locked -j $(JOBS) --workspace

.PHONY: smoke
smoke: build ## released clients and independent readers against the binary; a trace of its syncs
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/smoke.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/sync_trace.py --weir $(WEIR) --target $(TARGET)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/sync_trace.py --weir $(WEIR) --target $(TARGET) --expect-unsynced

.PHONY: test
test: ## everything that CI runs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory smoke

.PHONY: interop
interop: build ## the daemon against a real Fluss cluster (needs Java 17 and Maven)
	@python=$$(.ci/python $(TARGET)) && $$python tests/interop/real_cluster.py --weir $(WEIR) --target $(TARGET)

.PHONY: bench
bench: deps ## throughput beside the limits of this machine, as JSON (release build)
	@cargo build --locked --release -j $(JOBS) --workspace --bins
	@cargo bench --locked -j $(JOBS) -p weir-tests --bench whole_path

.PHONY: clean
clean: ## removes what was built
	@cargo clean
