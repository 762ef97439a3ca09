#!/usr/bin/env python3
# `muster bench` with real ranks: every operation, type and reduction is right at odd sizes, and what its traces say joins.
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engines"))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402
import installations  # noqa: E402
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
OPERATIONS = "all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_to_all sendrecv barrier".split()


def bench(*arguments, **environment):
    done = subprocess.run([BINARY, "bench", *arguments], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment}, check=False)
    if done.returncode != 0 or "# wrong elements: 0\n" not in done.stdout:
        sys.exit(f"bench {' '.join(arguments)} {environment}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def rows(text):
    return [line.split() for line in text.splitlines() if re.match(r" *[0-9]", line)]


def every_operation_is_right():
    for ranks, environment in (("2", {}), ("3", {}), ("4", {}), ("3", {"MUSTER_SHM": "0", "MUSTER_CMA": "0"})):
        text = bench("all", "--ranks", ranks, "-b", "4", "-e", "1300000", "-f", "67", "-n", "2", "-w", "1", **environment)
        for name in OPERATIONS:
            hosts = f"{ranks} hosts" if "MUSTER_SHM" in environment else "1 host"
            assert f"# {name}, {ranks} ranks on {hosts}, private" in text, (name, text)
        assert len(rows(text)) >= 2 * (len(OPERATIONS) - 1) + 1, text
    bench("all", "--ranks", "2", "-b", "8", "-e", "1M", "-f", "512", "-n", "2", "--memory", "own", "-r", "1")


def every_type_and_reduction_is_right():
    whole = cases.wanted("each_type_with_each_reduction")
    for kind in "int8 uint8 int16 int32 int64 float16 bfloat16 float32 float64".split():
        for reduction in "sum prod min max avg band bor bxor".split():
            if ("float" in kind and reduction.startswith("b")) or not (whole or kind == "int16" or reduction == "max"):
                continue
            bench("all_reduce", "--ranks", "2", "-b", "1000", "-e", "1000", "-n", "1", "-d", kind, "-o", reduction)


def columns_are_those_of_nccl_tests():
    text = bench("all_reduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-n", "5")
    assert "algbw" in text and "busbw" in text and "#wrong" in text and "in place" in text, text
    assert [row[:5] for row in rows(text)] == [["1024", "256", "float32", "sum", "-1"], ["4096", "1024", "float32", "sum", "-1"]]
    assert all(len(row) == 13 for row in rows(text)), text


def traces_join():
    with tempfile.TemporaryDirectory() as folder:
        bench("all_reduce", "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "3", MUSTER_TRACE=folder)
        assert len(glob.glob(folder + "/rank-*.json")) == 2, os.listdir(folder)
        joined = os.path.join(folder, "joined")
        done = subprocess.run([BINARY, "trace", "merge", folder, "-o", joined], capture_output=True, text=True, check=True)
        assert done.stderr.startswith("2 traces from 1 host"), done.stderr
        with open(joined, encoding="utf-8") as text:
            events = json.load(text)["traceEvents"]
    calls = {1: {}, 2: {}}
    for event in events:
        if event["name"] == "all_reduce" and event["args"]["count"] == 256:
            calls[event["pid"]][event["args"]["sequence"]] = event
    assert len(calls[1]) >= 6 and calls[1].keys() == calls[2].keys(), calls
    waits = {(e["pid"], round(e["ts"], 3)): e["dur"] for e in events if e["name"] == "wait"}
    for sequence, call in calls[1].items():
        other = calls[2][sequence]
        assert call["ts"] <= other["ts"] + other["dur"] and other["ts"] <= call["ts"] + call["dur"], (call, other)
        # Each waits until the later one has come.
        last = max(call["ts"], other["ts"])
        for pid, one in ((1, call), (2, other)):
            until = one["ts"] + waits[pid, round(one["ts"], 3)]
            assert abs(until - min(last, one["ts"] + one["dur"])) < 0.01, (one, other, until)


# Rank 1 runs in a time namespace whose monotonic clock shows 5,000 s more, as another host's might.
def clocks_of_two_hosts_are_compared():
    elsewhere = ["unshare", "-T", "--monotonic", "5000"]
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode != 0:
        print("SKIPPED: time namespaces cannot be made here")
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks, port = [], str(jobs.free_port())
        for rank, before in (("0", []), ("1", elsewhere)):
            environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": port, "MUSTER_TRACE": folder}
            ranks.append(subprocess.Popen([*before, BINARY, "bench", "-b", "1K", "-e", "1K", "-n", "200"], env=environment,
                                          stdout=subprocess.DEVNULL))
        assert [rank.wait(60) for rank in ranks] == [0, 0]
        joined = os.path.join(folder, "joined")
        done = subprocess.run([BINARY, "trace", "merge", folder, "-o", joined], capture_output=True, text=True, check=True)
        assert "2 traces from 2 hosts" in done.stderr and "it shared with others" in done.stderr, done.stderr
        with open(joined, encoding="utf-8") as text:
            begins = [event["ts"] for event in json.load(text)["traceEvents"] if event.get("name") == "all_reduce"]
    assert max(begins) - min(begins) < 60e6, (min(begins), max(begins))  # not 5,000 s


# What is measured is the machine's; that it is a table which groups then use is ours.
def a_tuned_table_can_be_used():
    few, whole = {"all_reduce", "broadcast"}, cases.wanted("a_table_of_all_operations")
    with_algorithms = set(OPERATIONS) - {"sendrecv", "barrier"} if whole else few
    for environment, medium, operations in (({}, "private", with_algorithms), ({"MUSTER_SHM": "0"}, "messages", few)):
        what = [*(["all"] if whole and not environment else operations), "--ranks", "2", "-b", "64", "-e", "64K", "-f", "1024"]
        done = subprocess.run([BINARY, "bench", "--tune", *what], capture_output=True, text=True, timeout=200,
                              env={**os.environ, **environment}, check=False)
        assert done.returncode == 0, done
        rules = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
        # Operations that one algorithm alone can carry out in this medium are left out.
        assert few <= {rule[0] for rule in rules} <= operations, done.stdout
        assert all(rule[1:3] == [medium, "2"] for rule in rules), done.stdout
        with tempfile.NamedTemporaryFile("w", suffix=".choice") as table:
            table.write(done.stdout)
            table.flush()
            bench(*what, "-n", "1", MUSTER_CHOICE_FILE=table.name, **environment)


# MPICH under muster run --mpi, and each MPI under its own mpirun.
def the_engine_can_be_mpi():
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    what = ["all", "--engine", "mpi", "-b", "4", "-e", "100000", "-f", "67", "-n", "2", "-w", "1"]
    for starter in ("mpirun.mpich", "mpirun.openmpi"):
        if not shutil.which(starter):
            print(f"SKIPPED: {starter} is not installed")
            continue
        done = subprocess.run([starter, "-n", "2", BINARY, "bench", *what], stdin=installations.mpirun_input(), capture_output=True,
                              text=True, timeout=200, env={**os.environ, **as_root}, check=False)
        assert done.returncode == 0 and "# wrong elements: 0\n" in done.stdout, done
        assert "# all_reduce, 2 ranks on 1 host, private buffers, engine mpi (as asked for)" in done.stdout, done.stdout
    if shutil.which("mpirun.mpich"):
        assert "engine mpi (as asked for)" in bench(*what, "--ranks", "2")


def mistakes_are_explained():
    for words, text in ((["bench", "allreduce"], "no operation"), (["bench", "-o", "bor"], "integers"),
                        (["bench", "-r", "7", "--ranks", "2"], "the root is one of 0 to 1"),
                        (["bench", "--engine", "glue", "--ranks", "1"], "it can be 'auto', 'muster', 'mpi'"),
                        (["help", "bnech"], "did you mean muster bench?")):
        done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0 and text in done.stderr and "ChildFailedError" not in done.stderr, (words, done)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([BINARY, "bench", "barrier", "--ranks", "1", "-n", "1"], stdout=full, text=True, timeout=60,
                              stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0 and "could not be written" in done.stderr, done


jobs.isolate()  # where it can be had: so that no port is taken by a stranger
every_operation_is_right()
the_engine_can_be_mpi()
every_type_and_reduction_is_right()
columns_are_those_of_nccl_tests()
traces_join()
clocks_of_two_hosts_are_compared()
a_tuned_table_can_be_used()
mistakes_are_explained()
