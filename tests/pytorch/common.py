"""For tests of the backend, what needs no PyTorch: where things are, and the tests of a module, one after the other."""

import glob
import os
import sys
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("MUSTER_BINARY", os.path.join(TOP, "build", "muster"))))
PACKAGE = os.path.join(BUILD, "python")
sys.path.insert(1, os.path.join(TOP, "tests"))
import cases  # noqa: E402

# DistributedDataParallel and the profiler import torch._dynamo, which takes a second: ranks.py does so once, not each rank. Who needs neither says
# False.
NEEDS_DYNAMO = True

if not glob.glob(os.path.join(glob.escape(PACKAGE), "muster", "_torch_*")):
    print("SKIP: the backend was not built (tools/build-backend)")
    sys.exit(77)


def main(names):
    """Runs the functions test_... of a module, each with a line."""
    failed = []
    for name, test in list(names.items()):
        if name.startswith("test_") and (any(one in name for one in sys.argv[1:]) or (len(sys.argv) < 2 and cases.wanted(name))):
            begun = time.monotonic()
            try:
                test()
                print(f"ok {name} ({time.monotonic() - begun:.1f} s)", flush=True)
            except Exception:  # noqa: BLE001
                traceback.print_exc()
                failed.append(name)
                print(f"FAILED {name}", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
