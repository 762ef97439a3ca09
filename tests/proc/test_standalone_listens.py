#!/usr/bin/env python3
# --standalone listens on loopback alone, whatever store the workers use: seen in a network of the test's own.
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
LOOPBACK = {"tcp": {"0100007F"}, "tcp6": {"0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}}
# A worker that prints where anybody in its network listens.
WORKER = """
for family in ("tcp", "tcp6"):
    with open(f"/proc/net/{family}") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[3] == "0A":
                print("listens", family, fields[1].split(":")[0], flush=True)
"""


def listeners(options, **environment):
    done = subprocess.run([BINARY, "run", *options, "--no-python", sys.executable, "-c", WORKER],
                          capture_output=True, text=True, timeout=50, env={**os.environ, **environment}, check=True)
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("listens")]


def main():
    lack = jobs.isolate()
    if lack:
        print(f"SKIPPED: {lack}")
        sys.exit(77)
    for secret in ("", "a secret that is not needed"):
        for shared in ("0", "1"):
            seen = listeners(["--standalone"], MUSTER_SECRET=secret, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=shared)
            if not seen or any(address not in LOOPBACK[family] for family, address in seen):
                sys.exit(f"--standalone listens at {seen}")
    # The same eyes do see a job for several nodes, which listens for others.
    seen = listeners(["--rdzv-backend=muster", "--rdzv-endpoint=0.0.0.0:29400", "--rdzv-conf=is_host=1", "--nnodes=1"])
    if all(address in LOOPBACK[family] for family, address in seen):
        sys.exit(f"nothing but loopback is seen: {seen}")


main()
