#!/usr/bin/env python3
# An installed tree, wherever it lies: the program, its pages and completions, and a library that a C program can link.
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BINARY = os.environ["MUSTER_BINARY"]
WANTED = ["bin/muster", "share/man/man1/muster.1", "share/man/man1/muster-run.1", "share/man/man1/muster-store.1",
          "share/man/man1/muster-trace.1", "share/man/man1/muster-bench.1",
          "share/bash-completion/completions/muster", "share/bash-completion/completions/torchrun",
          "share/zsh/site-functions/_muster", "include/muster/stop.h", "include/muster/store.h", "include/muster/record.h", "include/muster/status.h",
          "share/doc/muster/docs/ddp.md", "share/doc/muster/docs/formats/choice.md"]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def find(folder, name):
    found = [os.path.join(here, name) for here, _, files in os.walk(folder) if name in files]
    if not found:
        sys.exit(f"{name} is not installed")
    return found[0]


def try_library(prefix, folder, static):
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(find(prefix, "muster.pc")))
    flags = run("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "muster", env=environment).split()
    if static:
        flags = [find(prefix, "libmuster.a") if flag == "-lmuster" else flag for flag in flags]
    else:
        flags.append("-Wl,-rpath," + os.path.dirname(find(prefix, "libmuster.so")))
    program = os.path.join(folder, "meet-static" if static else "meet")
    run(os.environ.get("CC", "cc"), "-Wall", "-Werror", "-o", program, os.path.join(TOP, "examples", "c", "meet.c"), *flags)
    needs_library = "libmuster" in run("ldd", program)
    if needs_library == static:
        sys.exit(f"{program} {'needs' if static else 'does not need'} libmuster.so")
    lines = run(os.path.join(prefix, "bin", "muster"), "run", "--standalone", "--nproc-per-node=3", "--no-python", program)
    for rank in range(3):
        if f"rank {rank} of 3 is process" not in lines:
            sys.exit(f"rank {rank} did not greet:\n{lines}")


# Every initializer, and the calls of the README's program, as C++ with all warnings.
CPLUSPLUS = """#include <muster/muster.h>
int main() {
    muster_group_options group = MUSTER_GROUP_OPTIONS_INIT;
    muster_store_options store = MUSTER_STORE_OPTIONS_INIT;
    muster_ddp_options ddp = MUSTER_DDP_OPTIONS_INIT;
    muster_syncbn_options norm = MUSTER_SYNCBN_OPTIONS_INIT;
    muster_sampler_options sampler = MUSTER_SAMPLER_OPTIONS_INIT;
    muster_snapshot_options snapshot = MUSTER_SNAPSHOT_OPTIONS_INIT;
    muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    muster_adadelta_options adadelta = MUSTER_ADADELTA_OPTIONS_INIT;
    muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    bool right = group.timeout_ms == MUSTER_GROUP_TIMEOUT_MS && store.wait_for_workers && !store.is_host &&
                 store.timeout_ms == MUSTER_STORE_TIMEOUT_MS && ddp.bucket_bytes == MUSTER_DDP_BUCKET_BYTES &&
                 ddp.rebuild && ddp.broadcast_buffers && !ddp.find_unused && norm.momentum == 0.1 && norm.eps == 1e-5 &&
                 sampler.world_size == 1 && sampler.shuffle && !sampler.drop_last && snapshot.keep == 2 &&
                 sgd.learning_rate == 1e-3 && !sgd.nesterov && adadelta.rho == 0.9 && adadelta.epsilon == 1e-6 &&
                 adamw.beta2 == 0.999 && adamw.weight_decay == 1e-2;
    muster_group *world = nullptr;
    float gradient[4] = {1, 2, 3, 4};
    right = right && muster_group_create_env(&group, &world) == MUSTER_OK &&
            muster_all_reduce(world, gradient, gradient, 4, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, nullptr) == MUSTER_OK &&
            gradient[3] == 4;
    muster_group_free(world);
    return right ? 0 : 1;
}
"""


def try_cplusplus(prefix, folder):
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        print(f"{compiler} is not installed: the headers are not tried in C++")
        return
    source, program = os.path.join(folder, "all.cpp"), os.path.join(folder, "all")
    with open(source, "w") as file:
        file.write(CPLUSPLUS)
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(find(prefix, "muster.pc")))
    flags = run("pkg-config", "--cflags", "--libs", "muster", env=environment).split()
    flags.append("-Wl,-rpath," + os.path.dirname(find(prefix, "libmuster.so")))
    run(compiler, "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", program, source, *flags)
    run(os.path.join(prefix, "bin", "muster"), "run", "--standalone", "--nproc-per-node=2", "--no-python", program)


def try_start(prefix):
    """The program starts without the library of mathematics: each agent would spend time on loading it."""
    if "libm.so" in run("ldd", os.path.join(prefix, "bin", "muster")):
        sys.exit("muster needs libm: which function of it?")


def try_uninstall(folder):
    """A stage is removed, and the live installation that was made after it stays."""
    build, prefix = os.path.dirname(BINARY), os.path.join(folder, "live")
    stage = os.path.join(folder, "stage")
    run("cmake", "--install", build, "--prefix", prefix, env=dict(os.environ, DESTDIR=stage))
    run("cmake", "--install", build, "--prefix", prefix)
    run(os.path.join(TOP, "tools", "uninstall"), build, prefix, os.path.relpath(stage))
    left = [os.path.join(here, name) for here, _, files in os.walk(stage) for name in files]
    if left or not all(os.path.exists(os.path.join(prefix, name)) for name in WANTED):
        sys.exit(f"make uninstall has left {left} of the stage, or has removed files elsewhere")
    run(os.path.join(TOP, "tools", "uninstall"), build, prefix)
    if os.path.exists(os.path.join(prefix, "include", "muster")) or os.path.exists(os.path.join(prefix, "bin", "muster")):
        sys.exit("make uninstall has left the live installation")


def try_inputs():
    """What `make install` builds first has no test in it."""
    build = os.path.dirname(BINARY)
    if not shutil.which("ninja") or not os.path.exists(os.path.join(build, "build.ninja")):
        return
    listed = subprocess.run(["ninja", "-C", build, "-t", "inputs", "installed"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:  # ninja 1.11 and later
        inputs = [os.path.relpath(os.path.join(build, name), TOP) for name in listed.stdout.split()]
        tests = [name for name in inputs if re.search(r"_test\.c|^(tests|bench|fuzz|examples)/", name)]
        if tests or not any("libmuster" in name for name in inputs):
            sys.exit(f"make install builds {tests}")


def main():
    for tool in (os.environ.get("CC", "cc"), "cmake", "pkg-config"):
        if not shutil.which(tool):
            print(f"SKIP: {tool} is not installed")
            sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="muster-install-") as folder:
        staged = os.path.join(folder, "staged")
        run("cmake", "--install", os.path.dirname(BINARY), "--prefix", staged)
        try_inputs()
        prefix = os.path.join(folder, "moved")
        os.rename(staged, prefix)
        for name in WANTED:
            if not os.path.exists(os.path.join(prefix, name)):
                sys.exit(f"{name} is not installed")
        for static in (False, True):
            try_library(prefix, folder, static)
        try_cplusplus(prefix, folder)
        try_start(prefix)
        try_uninstall(folder)


main()
