# make run    answer a prompt with the bundled model: environment, build and model are made when missing
# make test   every test
# make lint   ruff, mypy and the layers
# make build  the extension, beside its package
# make bench  the machine's limits and kvwise's own cells
# make bench-peers    the same beside llama.cpp, OpenVINO, vLLM and transformers, which it installs
# make bench-quality  what each kind of weights and KV costs in perplexity, beside llama.cpp, which it installs
# make studies        each study anew on this machine, its results beside its code
# make selftest       every instruction set's kernels against the scalar ones, without Python
# make cross-aarch64  the same for aarch64, cross-compiled and run under qemu-user
# Overridable: PYTHON (3.11 or newer), CXX, PROMPT, TEST_ARGS, BENCH_WORK (a folder), BENCH_ARGS,
# STUDIES (names), TRACE (a file of Azure's lengths).

PYTHON ?=
export PROMPT ?= Why is the sky blue?
TEST_ARGS ?=

BIN := .venv/bin
RUN_READY := .venv/.ready-to-run
DEV_READY := .venv/.ready-to-test
BUILT := build/dev/.built
NATIVE := src/kvwise/backends/native
NATIVE_SOURCES := $(wildcard $(NATIVE)/csrc/* $(NATIVE)/csrc/*/*)
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Installs the project from its tree without building it: the extension is built beside its package.
IN_PLACE := --no-build-isolation -C wheel.cmake=false -C editable.mode=inplace -e

# $(call check,PYTHON) finds what building needs, or ends with one line that says what to install.
check = $(eval FOUND := $(shell sh tools/prerequisites.sh $(1)))$(if $(filter kvwise,$(FOUND)),$(error $(FOUND)))
# $(call need,PROGRAM,PACKAGE) ends with one line when PROGRAM is missing.
need = $(if $(shell command -v $(1)),,$(error kvwise needs $(1): install $(2) (Debian, Ubuntu: apt-get install $(2))))
CMAKE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake

.DEFAULT_GOAL := run
.PHONY: run test lint build bench bench-peers bench-quality studies selftest cross-aarch64 clean FORCE

run: $(RUN_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BIN)/kvwise run -- "$$PROMPT"

test: $(DEV_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BIN)/python -m pytest $(TEST_ARGS)

lint: $(DEV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

build: $(BUILT)

BENCH := PYTHONPATH=benchmarks $(BIN)/python -m peers --threads 2
# Ours alone. The first run writes the random-weight models that it measures: 3 GB in BENCH_WORK.
bench: $(DEV_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BIN)/python benchmarks/startup.py
	@$(BENCH) $(if $(BENCH_WORK),--work $(BENCH_WORK)) --weights 8-bit,4-bit $(BENCH_ARGS)

# Everybody, each peer installed into an environment of its own under BENCH_WORK first: 25 GB and hours. What is
# measured is kept: BENCH_ARGS='--resume --minutes 9' goes on where the last run ended.
bench-peers: $(DEV_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BENCH) $(if $(BENCH_WORK),--work $(BENCH_WORK)) --peers all --install \
	    --json benchmarks/results/peers.json --publish $(BENCH_ARGS)

bench-quality: $(DEV_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@PYTHONPATH=benchmarks $(BIN)/python -m quality $(if $(BENCH_WORK),--work $(BENCH_WORK)) --install $(BENCH_ARGS)

# Every folder with a text of its own is a study; only pages takes a trace.
STUDIES ?= $(subst _,-,$(notdir $(patsubst %/about.md,%,$(wildcard src/kvwise/studies/*/about.md))))
studies: $(DEV_READY) $(BUILT)
	@$(foreach name,$(STUDIES),$(BIN)/kvwise study $(name) --out src/kvwise/studies/$(subst -,_,$(name)) \
	    $(if $(filter pages,$(name)),$(if $(TRACE),--trace $(TRACE))) &&) true

selftest: $(RUN_READY)
	@$(CMAKE) -S . -B build/selftest -G Ninja -DKVWISE_SELFTEST=ON --log-level=WARNING >/dev/null
	@$(CMAKE) --build build/selftest -- --quiet
	@build/selftest/kernel_selftest

CROSS_CXX ?= aarch64-linux-gnu-g++
QEMU ?= qemu-aarch64
cross-aarch64: $(RUN_READY)
	$(call need,$(CROSS_CXX),g++-aarch64-linux-gnu)
	$(call need,$(QEMU),qemu-user)
	@$(CMAKE) -S . -B build/aarch64 -G Ninja -DKVWISE_SELFTEST=ON -DCMAKE_SYSTEM_NAME=Linux \
	    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(CROSS_CXX) -DCMAKE_EXE_LINKER_FLAGS=-static \
	    --log-level=WARNING >/dev/null
	@$(CMAKE) --build build/aarch64 -- --quiet
	@$(QEMU) -cpu max build/aarch64/kernel_selftest neon

clean:
	rm -rf build dist $(NATIVE)/_native*.so

.venv/bin/python:
	$(call check,$(PYTHON))
	@echo "kvwise: making .venv with $(FOUND)"
	@$(FOUND) -m venv .venv

$(RUN_READY): pyproject.toml | .venv/bin/python
	@echo "kvwise: installing what it needs"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(PIP_INSTALL) scikit-build-core nanobind cmake ninja
	@$(PIP_INSTALL) $(IN_PLACE) .
	@touch $@

$(DEV_READY): $(RUN_READY)
	@echo "kvwise: installing what its tests need"
	@$(PIP_INSTALL) $(IN_PLACE) '.[dev]'
	@touch $@

# A tree that was configured for another environment is configured anew.
$(BUILT): CMakeLists.txt $(NATIVE_SOURCES) $(RUN_READY) $(if $(wildcard $(NATIVE)/_native*.so),,FORCE)
	$(call check,$(BIN)/python)
	@echo "kvwise: building the extension: a minute or two the first time"
	@test build/dev/CMakeCache.txt -nt .venv/pyvenv.cfg || rm -rf build/dev
	@mkdir -p build/dev
	@$(CMAKE) -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release \
	    -DKVWISE_INPLACE=ON -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" --log-level=WARNING >build/dev/configure.log 2>&1 \
	    || { cat build/dev/configure.log; exit 1; }
	@$(CMAKE) --build build/dev -- --quiet
	@touch $@

FORCE:
