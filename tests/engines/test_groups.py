#!/usr/bin/env python3
# A sample of what `make engines` runs: process groups, messages, ddp and fsdp on the engine 'mpi' with the system's MPIs, at 2, 3 and 4
# ranks, started by mpirun and by muster run, and process groups on the engine 'nccl' with a double of NCCL. tests/engines/run does the work.
import os
import subprocess
import sys

import installations

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import cases  # noqa: E402

BUILD = os.path.dirname(os.path.abspath(os.environ["MUSTER_BINARY"]))
# Programs, each with the tests that it is to run.
SAMPLE = {
    "mpirun": {"collectives_matrix_test": "on_hosts_of_two", "group_message_test": "short_messages_wait_for_nobody",
               "fsdp_test": "it_trains_as_one_process", "group_core_test": "who_waits_gives_the_core_away"},
    "muster run": {"group_split_test": "subsets_by_list", "ddp_test": "hosts_apart"},
}
if not os.path.exists(os.path.join(BUILD, "tests", "engines", "programs")):
    print("SKIP: the tests of process groups are not built")
    sys.exit(77)
# The programs of src/comm/nccl are unit tests, which run anyway.
DOUBLE, DOUBLE_SAMPLE = "NCCL 2.29 (double)", {"group_split_test": "subsets_by_list", "group_message_test": "short_messages_wait_for_nobody", "ddp_test": "hosts_apart"}


def run(library, more, program, test):
    command = [os.path.join(HERE, "run"), "--only", library, *more, "--program", program, "--timeout", "120"]
    done = subprocess.run(command + (["--test", test] if test else []), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    row = next((line for line in done.stdout.splitlines() if line.startswith(f"| {library} |")), "").split("|")
    assert done.returncode == 0 and len(row) > 4 and int(row[3]) > 0 and int(row[4]) == 0, f"{library}, {program}:\n{done.stdout}"
    print(f"ok {library}, {program}: {row[3].strip()} passed in {row[7].strip()} s", flush=True)


double = next(double for double in installations.NCCL_DOUBLES if double.name == DOUBLE)
reason = double.find(BUILD)
if reason:
    print(f"SKIPPED {DOUBLE}: {reason}", flush=True)
else:
    for program, test in DOUBLE_SAMPLE.items():
        run(DOUBLE, [], program, test)
for mpi in installations.MPIS:
    if mpi.variable:
        continue
    reason = mpi.find(None)
    if reason:
        print(f"SKIPPED {mpi.name}: {reason}", flush=True)
        continue
    for starter, programs in SAMPLE.items():
        for program, test in programs.items():
            if cases.wanted(f"{program}_on_{mpi.name.replace(' ', '_')}"):
                run(mpi.name, ["--starter", starter], program, test)
