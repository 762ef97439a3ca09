#!/usr/bin/env python3
# What fsdp is for: under one limit of memory ddp cannot train a model, and fsdp can. And what the host has of the state is
# what the formula says.
# computes: yes
import contextlib
import os
import re
import subprocess
import sys
import time

import trainers

# 6 blocks of 3.1 million parameters: 76 MB each for parameters, gradients and what AdamW remembers twice. Little else: short
# sequences. ddp: 4 times 76 MB a rank. fsdp: 3 times a host, 1 shared out over the ranks, and two units a rank.
WIDE = ("--n-layer=6", "--n-head=8", "--n-embd=512", "--block-size=16", "--batch=4", "--evaluate-every=0", "--report-every=1",
        "--sample=0", "--steps=2")
LIMIT = 500 << 20


def hierarchy():
    """Root of the control groups for memory, and the file of the limit; None: there are none, or not for us."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        own = "/"
        with open("/proc/self/cgroup", encoding="ascii") as file:
            for line in file:
                number, controllers, path = line.rstrip("\n").split(":", 2)
                if "memory" in controllers.split(",") or (number == "0" and name == "memory.max"):
                    own = path
        for folder in (root + own, root):
            if os.path.exists(f"{folder}/cgroup.procs") and os.access(folder, os.W_OK) and \
                    (name == "memory.limit_in_bytes" or "memory" in read(f"{folder}/cgroup.subtree_control").split()):
                return folder, name
    return None


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def limited(limit):
    """A control group in which that much memory may be used; gives a function for a child to enter it."""
    root, name = hierarchy()
    folder = f"{root}/muster-test-{os.getpid()}"
    os.mkdir(folder)
    try:
        write(f"{folder}/{name}", str(limit))
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            with contextlib.suppress(OSError):
                write(f"{folder}/{swap}", str(limit if "memsw" in swap else 0))
        yield lambda: write(f"{folder}/cgroup.procs", "0")
    finally:
        while read(f"{folder}/cgroup.procs"):  # those that were killed are still leaving
            time.sleep(0.01)
        os.rmdir(folder)


def train(sharding, enter):
    command = trainers.command(2, "gpt", *WIDE, f"--sharding={sharding}")
    done = subprocess.run(command, env=trainers.ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=150, check=False, preexec_fn=enter)
    return done.returncode, done.stdout


def fsdp_trains_where_ddp_cannot():
    with limited(LIMIT) as enter:
        code, text = train("ddp", enter)
        assert code != 0 and re.search("out-of-memory|no room for", text), text
        assert "step 2/2" not in text, text
        assert "the state is not kept in memory: " in text, text
        code, text = train("fsdp", enter)
        assert code == 0 and "step 2/2: loss" in text, text
        assert "the state is not kept in memory: " in text and "no room for" in text, text


if hierarchy() is None:
    print("SKIP: no control group for memory that this user may make")
    sys.exit(77)
trainers.main([fsdp_trains_where_ddp_cannot])
