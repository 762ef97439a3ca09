# The front door: each job is one target here, whatever builds underneath (CMake, in build*/).
#
# `make test` and `make demo` set up what they need by themselves (tools/setup says what it installs);
# the other targets expect that `make setup` (or one of those two) has run once.

BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
CC ?= cc
# ON in CI: a newer compiler's new warning must not keep a user from building.
WERROR ?= OFF
# Seconds that each fuzzer runs in `make fuzz`.
FUZZ_SECONDS ?= 60
# How often `make soak` repeats what: a quarter of an hour.
SOAK_ARGS ?= --restarts 100 --elastic 100 --elastic-gloo 50 --sigkill 1000
# Arguments handed to the benchmark programs by `make bench`.
BENCH_ARGS ?=

VENV_PYTHON := $(CURDIR)/.venv/bin/python
# The interpreter that has PyTorch. Not exported as a default: a make that sets up .venv first would hand "none yet" to the
# make that runs the tests.
ifneq ($(wildcard $(VENV_PYTHON)),)
export MUSTER_TEST_PYTHON ?= $(VENV_PYTHON)
endif
export MUSTER_BINARY ?= $(abspath $(BUILD))/muster

# CMake must not see this make's job server: it has its own.
CMAKE := env -u MAKEFLAGS -u MFLAGS cmake
GENERATOR := $(if $(shell command -v ninja),Ninja,Unix Makefiles)

# Older thread sanitizers cannot live with much randomness in addresses.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# Sanitized tests wait less and compute more.
SLOWER = MUSTER_TEST_JOBS=$${MUSTER_TEST_JOBS:-4}

# $(call configure,folder,extra options): once a folder. $(call compile,folder).
configure = test -f $(1)/build.ninja || test -f $(1)/Makefile || $(CMAKE) -S . -B $(1) -G "$(GENERATOR)" \
    -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DMUSTER_WERROR=$(WERROR) $(2)
compile = $(CMAKE) --build $(1) --parallel $(JOBS)

.DEFAULT_GOAL := all
.PHONY: all help setup demo demo-gpt demo-pytorch demo-elastic test test-all check asan ubsan tsan fuzz torture soak soak-kill soak-pauses soak-meet soak-end soak-preload soak-shrink soak-messages soak-posted soak-late soak-snapshots soak-fsdp soak-worlds soak-kept soak-chaos bench lint lint-deep format \
        layers circles install uninstall clean distclean

all: ## build everything; the program is build/muster
	@$(call configure,$(BUILD),)
	@$(call compile,$(BUILD))

.PHONY: program
program: ## build what `make install` installs: program and libmuster, without tests and benchmarks
	@$(call configure,$(BUILD),)
	@$(call compile,$(BUILD)) --target installed

.PHONY: backend
backend: all ## build the backend "muster" of torch.distributed into build/python (docs/pytorch.md)
	@MUSTER_BINARY=$(abspath $(BUILD))/muster tests/run-python tools/build-backend torch

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: ## install what building and testing need (packages, .venv); quick when nothing is missing
	@tools/setup test

# Configured again, since setup may just have brought what an earlier build lacked.
demo: ## train MNIST on 2 workers in C, kill one half-way, watch the group heal
	@tools/setup demo
	@$(call configure,$(BUILD),)
	@$(CMAKE) $(BUILD) >/dev/null
	@$(call compile,$(BUILD)) --target muster examples
	@tools/demo

demo-gpt: ## train a GPT on 2 ranks in C, kill one, read the text that it writes (a minute)
	@tools/setup demo
	@$(call configure,$(BUILD),)
	@$(CMAKE) $(BUILD) >/dev/null
	@$(call compile,$(BUILD)) --target muster examples
	@tools/demo-gpt

demo-pytorch: ## MNIST with PyTorch's DistributedDataParallel (needs PyTorch)
	@tools/setup test
	@$(MAKE) --no-print-directory program
	@tools/demo-pytorch

demo-elastic: ## a two-node job on this machine: a node joins, a node leaves (needs PyTorch)
	@tools/setup test
	@$(MAKE) --no-print-directory program
	@tools/demo-elastic

test: ## set up, build, test: every unit, and a corner of every family (tests/tiers)
	@tools/setup test
	@$(MAKE) --no-print-directory run-tests

test-all: ## the same with every test and every case there is (a quarter of an hour, or more)
	@MUSTER_TEST_ALL=1 $(MAKE) --no-print-directory test

# A second make, so that a .venv which has just been made is seen.
.PHONY: run-tests
run-tests: all
	@tools/run-tests $(BUILD)

check: all ## those of `make test` that are in C: no Python, no PyTorch
	@tools/run-tests $(BUILD) -LE python

# One build for the address and undefined-behaviour sanitizers and, where there is clang, the fuzzers. Warnings are errors in
# gcc's builds alone: clang has others under the same names.
CLANG := $(shell command -v clang)
.PHONY: asan-build tsan-build
asan-build:
	@$(call configure,build-asan,-DMUSTER_SANITIZE=address$(comma)undefined $(if $(CLANG),-DCMAKE_C_COMPILER=$(CLANG) -DMUSTER_FUZZERS=ON -DMUSTER_WERROR=OFF))
	@$(call compile,build-asan)

asan: asan-build ## the C tests under the address and undefined-behaviour sanitizers
	@ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
	    MUSTER_BINARY=$(CURDIR)/build-asan/muster $(SLOWER) tools/run-tests build-asan -LE 'python|no-sanitizer'

ubsan: ## the C tests under the undefined-behaviour sanitizer alone
	@$(call configure,build-ubsan,-DMUSTER_SANITIZE=undefined)
	@$(call compile,build-ubsan)
	@UBSAN_OPTIONS=print_stacktrace=1 MUSTER_BINARY=$(CURDIR)/build-ubsan/muster \
	    $(SLOWER) tools/run-tests build-ubsan -LE 'python|no-sanitizer'

# Without programs that cannot start a thread, as far as the usual build tells.
tsan-build: all
	@$(call configure,build-tsan,-DMUSTER_SANITIZE=thread)
	@$(CMAKE) build-tsan -DMUSTER_LEFT_OUT="$$(tools/one-threaded $(BUILD))" >/dev/null
	@$(call compile,build-tsan)

# Without what is simulated, in one thread, and without those that take minutes: tsan-long.
tsan: tsan-build ## the C tests under the thread sanitizer
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 MUSTER_BINARY=$(CURDIR)/build-tsan/muster \
	    $(SLOWER) $(NO_ASLR) tools/run-tests build-tsan -LE 'python|no-sanitizer|sim|tsan-long'

.PHONY: tsan-long
tsan-long: tsan-build ## those that take minutes under the thread sanitizer
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 MUSTER_BINARY=$(CURDIR)/build-tsan/muster \
	    $(SLOWER) $(NO_ASLR) tools/run-tests build-tsan -L tsan-long

fuzz: asan-build ## libFuzzer on every parser, FUZZ_SECONDS each (needs clang)
	@tools/run-fuzzers build-asan $(FUZZ_SECONDS)

torture: all ## fail the n-th allocation and the n-th system call, for every n
	@MUSTER_TEST_ALL=1 tools/run-tests $(BUILD) -L torture

soak: all ## SOAK_ARGS times what must never go wrong, with counts and times (docs/performance.md)
	@tests/regress/soak $(SOAK_ARGS)

soak-meet: all ## do all ranks meet again? backends x nodes x failures x workers, each COUNT times (3; CONTRIBUTING.md)
	@tests/regress/soak-meet --count $(or $(COUNT),3) $(MEET_ARGS)

soak-end: all ## how jobs end: nodes that are done, final failures, victims; COUNT times each (10)
	@tests/regress/soak-end --count $(or $(COUNT),10) $(END_ARGS)

soak-preload: all ## kill COUNT (1000) workers that are forks of a preload server, with threads and data loaders in the script
	@tests/regress/soak-preload --count $(or $(COUNT),1000) $(if $(SEED),--seed $(SEED))

soak-shrink: all ## COUNT trainings (12) whose workers die and are not started again: do the others learn as well?
	@MUSTER_BINARY=$(abspath $(BUILD))/muster MUSTER_TEST_RUNS=$(or $(COUNT),12) MUSTER_TEST_EPOCHS=10 python3 tests/examples/test_mnist_shrink.py

soak-messages: all ## COUNT rounds (1200) of messages and collectives mixed at random, on hosts of all kinds; SEED=n
	@$(BUILD)/src/comm/message_mix_test $(or $(COUNT),1200) $(SEED)

soak-posted: all ## COUNT ends (300) of ranks with sends and receives posted, over rings and TCP, and as many over TLS; SEED=n
	@$(BUILD)/src/comm/group_ends_test $(or $(COUNT),300) $(SEED)
	@$(BUILD)/src/comm/with_tls $(BUILD)/src/comm/group_ends_test $(or $(COUNT),300) $(SEED)

soak-late: all ## a rank comes LATE seconds (10 45 120) late to every operation, or is stopped for so long; over TCP and TLS
	@for late in $(or $(LATE),10 45 120); do for bytes in 4 400000 16000000; do for with in "" $(BUILD)/src/comm/with_tls; do \
	  echo "$$late s, $$bytes bytes $$with"; \
	  $$with $(BUILD)/tests/comm/comm_late --seconds $$late --bytes $$bytes --at-once 12 || exit 1; done; done; done

soak-snapshots: all ## COUNT lives (1000000) of snapshots and checkpoints on a disk that loses power
	@$(BUILD)/src/train/snapshot_crash_test $(or $(COUNT),1000000) $(SEED)
	@$(BUILD)/src/train/checkpoint_crash_test $(or $(COUNT),1000000) $(SEED)

soak-fsdp: all ## COUNT sharded trainings (1000) of which a rank ends or is stopped at any instant
	@$(BUILD)/tests/train/fsdp_deaths --count $(or $(COUNT),1000) $(if $(SEED),--seed $(SEED))

soak-worlds: all ## checkpoints between all pairs of worlds up to SIZE ranks (16), with fsdp and with ddp
	@$(BUILD)/src/train/checkpoint_worlds_test $(or $(SIZE),16)
	@$(BUILD)/tests/train/fsdp_worlds $(or $(SIZE),16)

soak-chaos: all ## COUNT jobs (200) that keep their state: kills, stops and arrivals of every kind, from job SEED (1) on; CHAOS_ARGS="--backend c10d"
	@MUSTER_BINARY=$(abspath $(BUILD))/muster python3 tests/examples/chaos.py --count $(or $(COUNT),200) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

soak-kept: all ## kill COUNT (1112) ranks, guardians and hosts in each of nine kinds of jobs whose state is kept; all bits must be as without
	@for way in "gpt --sharding fsdp" "gpt --sharding ddp" "mnist" "gpt --sharding fsdp --victim guardian" "gpt --sharding fsdp --parts-every 3" \
	        "gpt --sharding ddp --parts-every 3" \
	        "gpt --sharding ddp --victim agent --hosts 2 --per-host 1" "gpt --sharding hybrid --victim agent --hosts 2 --backend muster" \
	        "gpt --sharding fsdp --victim agent --hosts 2 --per-host 1 --copies 5"; do \
	    echo "$$way"; \
	    MUSTER_BINARY=$(abspath $(BUILD))/muster python3 tests/examples/kills.py --count $(or $(COUNT),1112) --program $$way $(if $(SEED),--seed $(SEED)) || exit 1; \
	done

.PHONY: soak-pytorch
soak-pytorch: backend ## kill, stop and fail COUNT (300) ranks in calls of torch.distributed, end as many with messages posted, make GROUPS (10000) groups, and train for long
	@MUSTER_BINARY=$(abspath $(BUILD))/muster MUSTER_TEST_STEPS=100 $(MUSTER_TEST_PYTHON) tests/pytorch/test_training.py
	@MUSTER_BINARY=$(abspath $(BUILD))/muster $(MUSTER_TEST_PYTHON) tests/pytorch/soak --count $(or $(COUNT),300) --ends $(or $(COUNT),300) --groups $(or $(GROUPS),10000) \
	    $(if $(SEED),--seed $(SEED))

.PHONY: frameworks
frameworks: backend ## train with Accelerate, Trainer, Lightning, DeepSpeed, torchft; kill and heal; beside torchrun (a gigabyte, half an hour)
	@MUSTER_BINARY=$(abspath $(BUILD))/muster tests/frameworks/run $(FRAMEWORKS_ARGS)
	@MUSTER_BINARY=$(abspath $(BUILD))/muster tests/frameworks/accelerate_suite

.PHONY: engines
engines: all ## run the tests of process groups, ddp and fsdp on the engines mpi and nccl, with four MPIs and doubles of NCCL (ENGINES_ARGS; an hour or more)
	@MUSTER_BINARY=$(abspath $(BUILD))/muster tests/engines/run $(ENGINES_ARGS)

# VERSIONS="2.10.0 2.15.0" (all of python/pytorch-versions), ONLY=launcher,mixed chooses rows
.PHONY: torch-matrix
torch-matrix: all ## run what meets PyTorch with each of VERSIONS (1.5 GB each, made once; CONTRIBUTING.md), rows ONLY=launcher,backend
	@MUSTER_BINARY=$(abspath $(BUILD))/muster tools/torch-matrix $(if $(ONLY),--only $(ONLY)) $(VERSIONS)

soak-pauses: all ## SOAK_ARGS pause whole jobs of every backend for up to a minute (four minutes)
	@tests/regress/soak-pauses $(SOAK_ARGS)

soak-kill: all ## kill COUNT launchers (10000) in the middle of everything and look for survivors
	@tests/proc/kill-agents $(or $(COUNT),10000) $(BUILD)

# SEED=n NODES=n BACKEND=muster|c10d ENDPOINTS=1|2|3 PREEMPT=1 PAUSE=1 CUTS=1 STRICT=1 TRACE=1 COUNT=n
SIM_ARGS = --seed $(or $(SEED),1) --count $(or $(COUNT),1) --nodes $(or $(NODES),0) \
    $(if $(BACKEND),--backend $(BACKEND)) $(if $(ENDPOINTS),--endpoints $(ENDPOINTS)) $(if $(PREEMPT),--preempt) $(if $(PAUSE),--pause) $(if $(CUTS),--cuts) \
    $(if $(STRICT),--strict) $(if $(TRACE),--trace)

.PHONY: sim sim-soak sim-program
sim-program:
	@$(call configure,$(BUILD),)
	@$(call compile,$(BUILD)) --target simulation

sim: sim-program ## one simulated job: SEED=n NODES=n BACKEND=muster|c10d|static TRACE=1 (docs/simulation.md)
	@$(BUILD)/tests/simulation/simulation $(SIM_ARGS)

sim-soak: sim-program ## COUNT=n simulated jobs from SEED=n on, with progress (docs/simulation.md)
	@$(BUILD)/tests/simulation/simulation $(SIM_ARGS) --count $(or $(COUNT),100000) --progress

bench: all ## muster and torchrun side by side (docs/performance.md)
	@bench/run $(BENCH_ARGS)

.PHONY: bench-rendezvous
bench-rendezvous: all ## time until many agents have their ranks, beside torchrun's (docs/performance.md)
	@bench/rendezvous/run $(BENCH_ARGS)

.PHONY: bench-preload
bench-preload: all ## PyTorch workers as forks of a preload server, beside usual starts and torchrun's (docs/performance.md)
	@MUSTER_BINARY=$(BUILD)/muster MUSTER_BENCH_BIN=$(BUILD)/bench bench/preload/run $(BENCH_ARGS)

.PHONY: bench-spares
bench-spares: all ## how soon a spare node works, with a preload server and without (docs/performance.md)
	@MUSTER_BINARY=$(BUILD)/muster MUSTER_BENCH_BIN=$(BUILD)/bench bench/spares/run $(BENCH_ARGS)

.PHONY: bench-failover
bench-failover: all ## what the loss of the serving host costs, over 1,000 kills (docs/performance.md)
	@MUSTER_BINARY=$(BUILD)/muster MUSTER_BENCH_BIN=$(BUILD)/bench bench/failover $(BENCH_ARGS)

.PHONY: bench-mpi
bench-mpi: all ## what the engine on MPI adds to MPI's own calls (docs/performance.md)
	MUSTER_BINARY=$(BUILD)/muster bench/engine_mpi

.PHONY: bench-ranks
bench-ranks: all ## what a group of 1,024 ranks costs on this machine, and how soon it knows of deaths (docs/performance.md)
	@for layout in "" --hosts=8 --tcp; do $(BUILD)/bench/ranks_bench $$layout $(BENCH_ARGS) || exit 1; done

.PHONY: bench-tcp
bench-tcp: all ## messages over one TCP stream, beside a bare connection (docs/performance.md)
	@$(BUILD)/bench/tcp_bench $(BENCH_ARGS)

.PHONY: bench-interfaces
bench-interfaces: all ## messages over several network interfaces, beside one of them (root; docs/performance.md)
	@$(BUILD)/bench/interfaces_bench $(BENCH_ARGS)

.PHONY: bench-hosts
bench-hosts: all ## collectives among four hosts made of network namespaces, beside Open MPI and gloo (root; docs/performance.md)
	@bench/hosts/run $(BENCH_ARGS)

.PHONY: bench-collectives
bench-collectives: all ## collectives of muster, Open MPI and PyTorch's gloo side by side (docs/performance.md)
	@bench/collectives/run $(BENCH_ARGS)

# The tools of the Python that has PyTorch, where there is one: the process-group backend is compiled for it.
.PHONY: wheel
wheel: ## the Python package: a wheel and an sdist in build/wheel (docs/python.md)
	@rm -rf $(BUILD)/wheel $(BUILD)/package/lib* $(BUILD)/package/bdist*
	@mkdir -p $(BUILD)/wheel $(BUILD)/package
	@cd python && MUSTER_PACKAGE_BUILD=$(abspath $(BUILD))/package $(or $(wildcard $(VENV_PYTHON)),python3) -c \
	    'import sys, setuptools.build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)' $(abspath $(BUILD))/wheel

.PHONY: wheels
wheels: ## wheels for other machines: glibc 2.28 and later, x86_64 and aarch64, in build/wheels/dist; TORCH='2.10.0 2.15.0': with their backends (docs/python.md)
	@tools/build-wheels $(addprefix --torch ,$(TORCH)) $(WHEELS_ARGS)

.PHONY: test-debian11 test-aarch64
test-debian11: ## install the wheel in a fresh Debian 11, and run jobs there (needs root, debootstrap, and make wheels before)
	@tools/test-debian11

test-aarch64: ## the unit tests, compiled for aarch64, in emulation (needs qemu-aarch64-static)
	@tools/test-aarch64

lint: all ## house rules, formatting, shellcheck; clang-tidy on what differs from the main branch (LINT_BASE= on all)
	@tools/lint $(BUILD)

lint-deep: all ## the same, with clang's analyzer looking for as long as it does by default, and at tests, too
	@LINT_BASE= MUSTER_LINT_NODES=225000 tools/lint $(BUILD)

format: ## rewrite the C files by .clang-format
	@tools/format

layers: ## no include points upwards or into another module's private header
	@tools/layers

circles: all ## how many files need each other in a circle: no more than tools/circles allows
	@tools/circles $(BUILD)

install: program ## install under PREFIX (default /usr/local)
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

uninstall: ## remove what `make install` with the same PREFIX and DESTDIR installs
	@CMAKE="$(CMAKE)" tools/uninstall $(BUILD) $(abspath $(PREFIX)) "$(DESTDIR)"

clean: ## remove the build folders
	@rm -rf build build-asan build-ubsan build-tsan

distclean: clean ## remove the build folders and the Python environment
	@rm -rf .venv

comma := ,
