#!/usr/bin/env python3
# A rank in a memory cgroup of its own, beside the launcher's, is ended by the kernel: the report says that memory was the cause.
# timeout: 60
"""Root, a hierarchy of memory cgroups that can be written, and the kernel's log are needed for that."""
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
LIMIT_BYTES = 40 << 20
HUNGRY = f"x = bytearray({LIMIT_BYTES * 4})"


def make_cgroup():
    """Its folder, or why there is none."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(root, f"muster-test-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(os.path.join(folder, limit), "w", encoding="ascii") as file:
                file.write(str(LIMIT_BYTES))
            return folder, None
        except OSError as why:
            os.rmdir(folder)
            return None, f"{limit}: {why.strerror}"
    return None, "no cgroup of memory can be made"


def main():
    folder, lack = make_cgroup()
    try:
        with open("/dev/kmsg", "rb"):
            pass
    except OSError as why:
        lack = lack or f"the kernel's log: {why.strerror}"
    try:
        if lack:
            print(f"SKIP: {lack}")
            return 77
        worker = f"if [ $RANK = 1 ]; then echo $$$$ > {folder}/cgroup.procs; exec {sys.executable} -S -c '{HUNGRY}'; fi; exec sleep 50"
        done = subprocess.run([BINARY, "run", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", worker], check=False,
                              capture_output=True, text=True, timeout=50)
        jobs.check(done.returncode == 1 and "the out-of-memory killer ended it" in done.stderr and "rank      : 1 " in done.stderr, done)
        # The same end without the kernel: nothing was short.
        done = subprocess.run([BINARY, "run", "--standalone", "--no-python", "sh", "-c", "kill -9 $$$$"], check=False, capture_output=True,
                              text=True, timeout=50)
        jobs.check(done.returncode == 1 and "the out-of-memory killer ended it" not in done.stderr, done)
    finally:
        for _ in range(100 if folder else 0):
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
