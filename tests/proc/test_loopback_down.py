#!/usr/bin/env python3
# Where loopback is down, a job and the doctor say so at once.
import os
import subprocess
import sys

BINARY = os.environ["MUSTER_BINARY"]
ALONE = ["unshare", "--map-root-user", "--user", "--net"]


def main():
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0:
        print("SKIP: no network namespace can be made here")
        return 77
    run = subprocess.run([*ALONE, BINARY, "run", "--standalone", "--no-python", "true"], capture_output=True, text=True,
                         timeout=50, check=False)
    assert run.returncode == 1 and "ip link set lo up" in run.stderr, run
    assert len(run.stderr.splitlines()) == 1, run.stderr
    doctor = subprocess.run([*ALONE, BINARY, "doctor", "--only", "interfaces"], capture_output=True, text=True, check=False)
    assert doctor.returncode == 1 and "loopback is down" in doctor.stdout, doctor
    return 0


if __name__ == "__main__":
    sys.exit(main())
