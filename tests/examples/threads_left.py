"""Runs a worker's script as if it had been started itself, and says how many threads it has left: SCRIPT [ARGUMENT...]."""

import os
import runpy
import sys

sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
print(f"threads left: {len(os.listdir('/proc/self/task'))}", flush=True)
