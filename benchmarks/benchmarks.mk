# Targets that measure. The Makefile includes this file and lists the targets.

PEERS   := .venv-peers/.stamp
HOROVOD := build/horovod-0.28.1

peers: $(PEERS)

# A system that can't be installed is left out, and the report says so.
$(PEERS): benchmarks/requirements.txt
	tools/new-environment.sh "$(PYTHON)" .venv-peers 1.23.5
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -r $<
	.venv-peers/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 || \
	    echo "hvdlite: no Gloo beside it: PyTorch could not be installed"
	$(MAKE) horovod || echo "hvdlite: no Horovod beside it: it could not be built"
	touch $@

# Horovod's build uses C++ 14, but PyTorch's headers need C++ 17.
horovod:
	rm -rf $(HOROVOD)
	PATH=$(CURDIR)/.venv-peers/bin:$$PATH .venv-peers/bin/pip download --quiet --no-deps \
	    --disable-pip-version-check --no-build-isolation --no-binary horovod -d build horovod==0.28.1
	tar -xzf $(HOROVOD).tar.gz -C build
	sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' \
	    $(HOROVOD)/CMakeLists.txt $(HOROVOD)/horovod/torch/CMakeLists.txt
	PATH=$(CURDIR)/.venv-peers/bin:$$PATH HOROVOD_WITH_MXNET=1 HOROVOD_WITH_MPI=1 \
	    HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
	    .venv-peers/bin/pip install --quiet --disable-pip-version-check --no-build-isolation $(HOROVOD)

bench: install peers small-peers
	rm -f build/bench.json
	$(BIN)/python -m benchmarks.run $(if $(QUICK),--quick) $(ARGS)
	$(BIN)/python -m benchmarks.report

# Runs only the update suites of `bench`.
bench-update: install peers
	rm -f build/bench.json
	$(BIN)/python -m benchmarks.run --only update $(if $(QUICK),--quick) $(ARGS)
	$(BIN)/python -m benchmarks.run --only held_ $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.report sharding.md

bench-pytorch: install peers $(FRAMEWORKS_DEPS)
	$(FRAMEWORKS)/bin/python -m benchmarks.pytorch --page docs/pytorch.md $(ARGS)

bench-small: install small-peers $(FRAMEWORKS_DEPS)
	$(FRAMEWORKS)/bin/python -m benchmarks.small --page docs/benchmarks.md $(ARGS)

# --no-deps: Intel MPI requires a libfabric that was never released, but its wheel contains one.
small-peers: .venv-intel/.stamp .venv-mpich/.stamp build/deepspeed/.stamp build/ucc/loop.so
.venv-%/.stamp:
	tools/new-environment.sh "$(PYTHON)" .venv-$* 2
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps \
	    $(if $(filter intel,$*),impi-rt==2021.19.0,mpich==5.0.2) && touch $@ || \
	    { rm -rf .venv-$*; echo "hvdlite: $* MPI is left out: it could not be installed"; }

# Downloads only the two source files of DeepSpeed's operation, and compiles them.
build/deepspeed/.stamp: $(FRAMEWORKS_DEPS)
	rm -rf $(@D) && mkdir -p $(@D)
	$(FRAMEWORKS)/bin/pip install --quiet --target $(@D)/ninja ninja && \
	$(FRAMEWORKS)/bin/pip download --quiet --no-deps --no-binary deepspeed --no-build-isolation \
	    -d $(@D) deepspeed==0.19.8 && \
	tar -C $(@D) --strip-components=4 -xzf $(@D)/deepspeed-*.tar.gz --wildcards '*/csrc/cpu/comm' && \
	PATH=$$PWD/$(@D)/ninja/bin:$$PATH $(FRAMEWORKS)/bin/python -c "$(COMPILE_DEEPSPEED)" && touch $@ || \
	    { rm -rf $(@D); echo "hvdlite: DeepSpeed's operation is left out: it could not be compiled"; }

COMPILE_DEEPSPEED = from torch.utils.cpp_extension import load; load('deepspeed_shm_comm', \
    ['build/deepspeed/shm.cpp', 'build/deepspeed/shm_interface.cpp'], \
    extra_cflags=['-O2', '-fopenmp'], build_directory='build/deepspeed')

# Builds UCC from source, over a wheel's UCX; the wheel's .la files name paths of another machine.
UCC_SOURCE ?= https://github.com/openucx/ucc/archive/refs/tags/v1.8.0.tar.gz
build/ucc/.stamp:
	rm -rf $(@D) && mkdir -p $(@D)/ucx $(@D)/source
	.venv/bin/pip install --quiet --no-deps --target $(@D)/ucx libucx-cu12==1.22.0 && \
	find $(@D)/ucx -name '*.la' -delete && \
	curl -sSfL $(UCC_SOURCE) | tar -C $(@D)/source --strip-components=1 -xz && \
	(cd $(@D)/source && ./autogen.sh && ./configure --prefix=$(CURDIR)/$(@D) --without-cuda --with-mpi=no \
	    --with-ucx=$(CURDIR)/$(@D)/ucx/libucx && $(MAKE) install) > $(@D)/log 2>&1 && touch $@ || \
	    echo "hvdlite: UCC is left out: it could not be built ($(@D)/log)"

# With DT_RPATH and ORIGIN the loader finds the libraries of UCC's components, too, and finds them in
# a copy of the folder.
build/ucc/loop.so: benchmarks/ucc_loop.c build/ucc/.stamp
	test ! -e build/ucc/.stamp || $(CC) -O2 -shared -fPIC -I$(@D)/include $< -o $@ -L$(@D)/lib \
	    -L$(@D)/ucx/libucx/lib -Wl,--no-as-needed -lucc -lucp -lucs \
	    -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib:$$ORIGIN/ucx/libucx/lib'

# bench-cores and test-gpu also work on a machine without a network: copy a checkout to that machine.
# BEGAN: bench-cores and test-gpu take at most 4 minutes, including the compilation.
BEGAN := $(shell date +%s)
AWAY := build/away
AWAY_PYTHON ?= python3
WHEELS ?= .whl
AWAY_RUN = PYTHONPATH=$(CURDIR)/$(AWAY)/site:$(CURDIR):$$PYTHONPATH $(AWAY_PYTHON)

bench-cores: $(AWAY)/.stamp
	test ! -e build/deepspeed/shm.cpp || \
	    PATH=$$PWD/build/deepspeed/ninja/bin:$$PATH timeout 90 env $(AWAY_RUN) -c "$(COMPILE_DEEPSPEED)" || \
	    echo "hvdlite: DeepSpeed's operation is left out: it could not be compiled"
	$(AWAY_RUN) -m benchmarks.cores --seconds $$(($(BEGAN) + 240 - $$(date +%s))) $(ARGS)

# If the C library is not compiled in time, gpu.py runs no program, but writes its report.
COMPILE_SECONDS ?= 150
test-gpu:
	until=$$(($(BEGAN) + 230)); \
	timeout -k 5 $(COMPILE_SECONDS) $(MAKE) --no-print-directory $(AWAY)/.stamp || until=0; \
	$(AWAY_RUN) tests/gpu.py --until $$until $(ARGS)

$(AWAY)/.stamp: setup.py hvdlite/_build.py hvdlite/csrc/flags.txt $(wildcard hvdlite/core/*.[ch] hvdlite/csrc/*.[ch] hvdlite/csrc/*/*.[ch])
	mkdir -p $(AWAY)/site
	$(AWAY_PYTHON) -c "import cffi" 2>/dev/null || $(AWAY_PYTHON) -m pip install -q --no-index --no-deps \
	    --target $(AWAY)/site $(WHEELS)/*.whl
	$(AWAY_RUN) setup.py -q build_ext --inplace
	touch $@

# The core with simulated threads, clock and links; needs apt-get install libsimgrid-dev.
SIM      := build/sim/job
SIMULATED := base/os
WRAPPED  := comm_count_window coll_cheapest

sim: $(SIM)

# Compares the simulation with emulated hosts; needs root and some minutes.
sim-validate: install sim
	$(BIN)/python -m benchmarks.sim.validate

$(SIM): $(wildcard benchmarks/sim/*.[ch]) $(patsubst %,build/c/plain/%.o,$(filter-out $(SIMULATED),$(CORE)))
	@test -e /usr/include/simgrid/engine.h || { \
	    echo "SimGrid is not installed: apt-get install libsimgrid-dev"; exit 1; }
	@mkdir -p $(@D)
	@$(CC) $(filter-out -MMD -MP,$(C_FLAGS)) -O2 -Ibenchmarks/sim $(filter %.c %.o,$^) $(WRAPPED:%=-Wl,--wrap=%) \
	    -o $@ -lsimgrid -ldl -lm

# Needs root, because network namespaces emulate the hosts and links.
bench-hosts: install peers
	$(BIN)/python -m benchmarks.hosts --page docs/hosts.md

bench-report: install
	$(BIN)/python -m benchmarks.report
