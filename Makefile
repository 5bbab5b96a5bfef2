# make run    answer a prompt with the bundled model: environment, build and model are made when missing
# make test   every test
# make lint   ruff, mypy and the layers
# make build  the extension, beside its package
# make bench  the benchmarks
# Overridable: PYTHON (3.11 or newer), CXX, PROMPT, TEST_ARGS.

PYTHON ?=
PROMPT ?= Why is the sky blue?
TEST_ARGS ?=

BIN := .venv/bin
RUN_READY := .venv/.ready-to-run
DEV_READY := .venv/.ready-to-test
BUILT := build/dev/.built
NATIVE := src/kvwise/backends/native
NATIVE_SOURCES := $(wildcard $(NATIVE)/csrc/* $(NATIVE)/csrc/*/*)
PREREQUISITES := sh tools/prerequisites.sh $(PYTHON)

.DEFAULT_GOAL := run
.PHONY: run test lint build bench clean FORCE

run: $(RUN_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BIN)/kvwise run "$(PROMPT)"

test: $(DEV_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@$(BIN)/python -m pytest $(TEST_ARGS)

lint: $(DEV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

build: $(BUILT)

bench: $(RUN_READY) $(BUILT)
	@$(BIN)/python -m kvwise.checkpoint.bundled --quiet
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf build dist $(NATIVE)/_native*.so

# The one line on failure is make's own: prerequisites.sh prints a path, or what to install.
.venv/bin/python:
	$(eval FOUND := $(shell $(PREREQUISITES)))
	$(if $(filter /%,$(FOUND)),,$(error $(FOUND)))
	@echo "kvwise: making .venv with $(FOUND)"
	@$(FOUND) -m venv .venv

# The build's own tools come first, so that the project is installed without building it a second time elsewhere.
$(RUN_READY): pyproject.toml | .venv/bin/python
	@echo "kvwise: installing what it needs"
	@$(BIN)/python -m pip install -q --disable-pip-version-check scikit-build-core nanobind cmake ninja
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation \
	    -C wheel.cmake=false -C editable.mode=inplace -e .
	@touch $@

$(DEV_READY): $(RUN_READY)
	@echo "kvwise: installing what its tests need"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation \
	    -C wheel.cmake=false -C editable.mode=inplace -e '.[dev]'
	@touch $@

$(BUILT): CMakeLists.txt $(NATIVE_SOURCES) $(RUN_READY) $(if $(wildcard $(NATIVE)/_native*.so),,FORCE)
	@echo "kvwise: building the extension"
	@test ! -f build/dev/CMakeCache.txt || test build/dev/CMakeCache.txt -nt .venv/pyvenv.cfg || rm -rf build/dev
	@mkdir -p build/dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release \
	    -DKVWISE_INPLACE=ON -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" --log-level=WARNING >build/dev/configure.log 2>&1 \
	    || { cat build/dev/configure.log; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build build/dev -- --quiet
	@touch $@

FORCE:
