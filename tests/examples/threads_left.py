"""Runs a worker's script as if it had been started itself, and says how many threads it has left: SCRIPT [ARGUMENT...]."""

import os
import runpy
import sys
import time

sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")


def count():
    return len(os.listdir("/proc/self/task"))


deadline = time.monotonic() + 5  # the kernel shows a thread for a moment after it has been joined
while count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(f"threads left: {count()}", flush=True)
