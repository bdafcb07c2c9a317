# Everything from a fresh machine: `make demo` and `make test` need Python >= 3.10 and a C++ compiler.
# With a GPU and nvcc they build the kernels for that GPU, else none. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
VENV ?= .venv
# How many GPUs CUDA shows to this process; empty if none.
GPUS := $(shell $(PYTHON) -c 'import ctypes; cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(); cuda.cuInit(0); \
	cuda.cuDeviceGetCount(ctypes.byref(count)); print(count.value or "")' 2>/dev/null)
# Without a GPU the newest release that package indexes have as a CPU-only wheel, a tenth of the download.
TORCH ?= $(if $(GPUS),torch==2.14.1,torch==2.13.0)
PYTEST_ARGS ?=
DEMO_ARGS ?=
PROOF_ARGS ?=
WHEEL ?=

BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
EXTENSION := deconv_ext/_C.abi3.so
HOST_CORE := build/host_core/.stamp

# torch's build helper runs the ninja that it finds on the path.
export PATH := $(BIN):$(PATH)

# make builds kernels only if a GPU can run them or the environment asks for them; setup.py itself needs no GPU.
ifneq ($(FORCE_CUDA)$(USE_CUDA),)
KERNELS :=
else ifneq ($(TORCH_CUDA_ARCH_LIST),)
KERNELS := FORCE_CUDA=1
else ifeq ($(GPUS),)
KERNELS := USE_CUDA=0
NO_KERNELS := no GPU is visible
else ifeq ($(shell command -v nvcc)$(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc),)
KERNELS := USE_CUDA=0
NO_KERNELS := nvcc is missing
endif

CSRC := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
EMULATOR := $(shell find tests/emulator tests/host_core -name '*.h' -o -name '*.cpp' -o -name '*.cu')
# What decides about the extension besides the sources; the build starts again when it changes.
BUILD_SETTINGS := $(TORCH) $(KERNELS) $(FORCE_CUDA) $(USE_CUDA) $(TORCH_CUDA_ARCH_LIST)

# ninja's progress without the compiler's commands: [3/74] csrc/families/launch.cu
PROGRESS := sed -u -E 's~^(\[[0-9]+/[0-9]+\]) .* ([^ ]*/)?((csrc|build/instances)/[^ ]+\.(cpp|cu)) .*~\1 \3~'

.PHONY: help build demo test test-slow kernels lint format docs wheel wheel-retag wheel-audit wheel-proof sdist-proof clean distclean FORCE
.DELETE_ON_ERROR:
.NOTPARALLEL:  # pip must not run twice at once in one environment

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13
	@echo
	@echo 'Variables: PYTHON, VENV, TORCH (here $(TORCH)), PYTEST_ARGS, DEMO_ARGS,'
	@echo 'PROOF_ARGS, WHEEL; TORCH_CUDA_ARCH_LIST, MAX_JOBS, FORCE_CUDA=1 or USE_CUDA=0 as setup.py explains them.'

build: $(EXTENSION)  ## the environment and the extension

demo: $(EXTENSION) $(STAMPS)/demo  ## upsample and colour a photograph through the operator and through torch
	$(PY) -m deconv_ext demo $(DEMO_ARGS)

# One process a core; torch's own threads would only wait for each other.
test test-slow: export OMP_NUM_THREADS ?= 1
test test-slow: $(EXTENSION) $(STAMPS)/demo $(STAMPS)/test $(HOST_CORE)
TESTS = $(PY) -m pytest tests --numprocesses auto --dist $(if $(GPUS),loadgroup,worksteal)

test:  ## the tests that this machine can run, but the slow ones
	$(TESTS) -m 'not slow' $(PYTEST_ARGS)

test-slow:  ## the slow ones
	$(TESTS) -m slow $(PYTEST_ARGS)

FAST_NVCC = $(if $(shell nvcc --help | grep -e --Ofast-compile),NVCC_APPEND_FLAGS=--Ofast-compile=max)
kernels: $(STAMPS)/torch  ## compile the kernels for 9.0a with little optimization, to see that they compile; needs no GPU
	FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST='$(or $(TORCH_CUDA_ARCH_LIST),9.0a)' $(FAST_NVCC) \
	$(PY) setup.py build_ext --force --build-temp build/kernels --build-lib build/kernels | $(PROGRESS)
	$(PY) -c 'import torch; torch.ops.load_library("build/kernels/deconv_ext/_C.abi3.so")'

lint: $(STAMPS)/lint  ## ruff, clang-format, mypy, and the release's workflows (Python >= 3.11)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CSRC) $(EMULATOR)
	$(BIN)/mypy
	$(PY) tools/include_graph.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/cibuildwheel --print-build-identifiers --platform linux --archs x86_64,aarch64

format: $(STAMPS)/lint  ## put Python and C++ into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC) $(EMULATOR)

docs: $(EXTENSION) $(STAMPS)/docs  ## the documentation site, in build/docs; a warning is an error
	$(PY) -W ignore docs/generate.py
	$(PY) -W ignore -m sphinx --fail-on-warning --fresh-env --quiet docs build/docs
	@echo build/docs/index.html

wheel: $(STAMPS)/torch $(STAMPS)/wheel  ## the wheel, for free-threaded Python too, and the source archive, in dist
	$(PY) tools/wheel.py build

wheel-retag: $(STAMPS)/wheel  ## WHEEL=FILE under the tag of free-threaded Python, beside it
	$(PY) tools/wheel.py retag $(WHEEL)

wheel-audit: $(STAMPS)/wheel $(if $(WHEEL),,wheel)  ## the wheels (or WHEEL=FILE) through the release's gates
	$(PY) tools/wheel.py audit $(or $(WHEEL),dist/*.whl)

wheel-proof: wheel-audit  ## and the CPU tests against that same file in fresh environments
	$(PY) tools/wheel.py prove $(or $(WHEEL),dist/*-abi3-*.whl) $(PROOF_ARGS)

sdist-proof: $(STAMPS)/torch $(STAMPS)/wheel  ## the source archive, installed without kernels, and the quick CPU tests
	$(PY) tools/wheel.py sdist
	$(PY) tools/wheel.py prove dist/*.tar.gz --quick $(PROOF_ARGS)

clean:  ## remove what was built
	rm -rf build dist *.egg-info $(EXTENSION)

distclean: clean  ## and the virtual environment
	rm -rf $(VENV)

# --- the environment ------------------------------------------------------------------------------------------------

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# The name of the torch asked for: touched only when it changes.
$(STAMPS)/torch.name: FORCE | $(STAMPS)/venv
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

# The package itself is not installed but found through a .pth file, so the build below stays incremental.
$(STAMPS)/torch: $(STAMPS)/torch.name
	$(PIP) install '$(TORCH)' 'setuptools>=77' ninja numpy
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" | { read -r site; echo '$(CURDIR)' > "$$site/deconv_ext.pth"; }
	touch $@

# The packages of one of pyproject.toml's extras.
$(addprefix $(STAMPS)/,demo test lint docs): $(STAMPS)/%: $(STAMPS)/torch pyproject.toml
	$(PY) -c "from setuptools.config.pyprojecttoml import read_configuration as read; \
	print(*read('pyproject.toml')['project']['optional-dependencies']['$*'], sep='\n')" > $@.txt
	$(PIP) install -r $@.txt
	touch $@

$(STAMPS)/wheel: tools/requirements.txt $(STAMPS)/venv
	$(PIP) install -r $<
	touch $@

# --- the extension and the host core --------------------------------------------------------------------------------

build/settings: FORCE
	@mkdir -p build
	@echo '$(BUILD_SETTINGS)' | cmp -s - $@ || echo '$(BUILD_SETTINGS)' > $@

# --force: setuptools does not look at flags; ninja then decides what to compile.
$(EXTENSION): $(CSRC) csrc/launch/instances.py setup.py build/settings $(STAMPS)/torch
	$(if $(NO_KERNELS),@echo 'Building without CUDA kernels: $(NO_KERNELS). FORCE_CUDA=1 builds them all the same.')
	$(KERNELS) $(PY) setup.py build_ext --inplace --force | $(PROGRESS)
	touch $@

# For the tests alone: plans and index arithmetic without torch, and the kernels emulated on the CPU. CMake comes from
# pip, for a fresh machine has none.
$(HOST_CORE): $(CSRC) csrc/launch/instances.py $(EMULATOR) tests/emulator/rewrite.py CMakeLists.txt $(STAMPS)/test
	$(PIP) install cmake
	cmake -S . -B build/host_core -G Ninja -DPython_EXECUTABLE=$(PY)
	cmake --build build/host_core
	touch $@
