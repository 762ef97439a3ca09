#!/usr/bin/env python3
# muster doctor on this machine: what it prints, and that it finds what has been broken for it.
# waits: yes
"""Usage: test_doctor.py [CASE ...]; MUSTER_BINARY names the program.

Runs in a network of its own where it can have one, so that ports, names and interfaces are the test's.
"""
import contextlib
import json
import os
import pty
import resource
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
from jobs import Skip, check  # noqa: E402

PATIENCE_S = 60
CHECKS = (
    "names interfaces ports clock limits memory temporary kernel processors gpus infiniband nccl environment".split()
)
LEVELS = ["ok", "note", "warning", "error"]
isolated = None  # or why there is no network of our own


def doctor(*arguments, variables=None, before=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "GLOO_", "PET_", "OMP_"))}
    return subprocess.run(
        [jobs.muster_binary(), "doctor", *arguments],
        env={**clean, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=before,
        check=False,
    )


def findings(*arguments, **more):
    done = doctor("--json", *arguments, **more)
    answer = json.loads(done.stdout)
    found = answer["findings"]
    check(done.stderr == "", done.stderr)
    for level in LEVELS:
        check(answer["counts"][level] == sum(f["level"] == level for f in found), f"{answer['counts']} of {found}")
    for finding in found:
        check(finding["level"] in ("ok", "note") or finding["advice"], f"nothing to do: {finding}")
    expected = 1 if answer["counts"]["error"] else 0
    check(done.returncode == expected, f"exit {done.returncode} with {answer['counts']}")
    return found


def expect(found, check_name, level, text):
    for finding in found:
        if finding["check"] == check_name and finding["level"] == level and text in finding["what"]:
            return finding
    raise jobs.Failed(f"no {level} of {check_name} with '{text}' in {found}")


# ---------------------------------------------------------------------------


def every_check_speaks():
    found = findings()
    check(list(dict.fromkeys(f["check"] for f in found)) == CHECKS, f"{found}")
    listed = doctor("--list").stdout.splitlines()
    check([line.split()[0] for line in listed] == [*CHECKS, "nodes", "network"], f"{listed}")


def only_what_was_asked_for():
    found = findings("--only=kernel,processors")
    check({f["check"] for f in found} == {"kernel", "processors"}, f"{found}")


def a_line_of_run_is_taken():
    done = doctor("--nnodes=1", "--nproc-per-node", "2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--only=kernel", "--json",
                  "train.py", "--only=nonsense")
    check(done.returncode == 0 and {f["check"] for f in json.loads(done.stdout)["findings"]} == {"kernel"}, f"{done}")


def wrong_lines_are_usage():
    for line, text in (
        (["--only", "kernels"], "'kernels' is not a check"),
        (["--only"], "--only needs a value"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--rdzv-endpoint", "a:b"], "port number"),
        (["--only", "nodes,network"], "need --nnodes"),
        (["--nnodes", "0"], "a number from 1 to 1024"),
        (["--nnodes", "2"], "--nnodes needs --rdzv-endpoint"),
        (["--rdzv-endpoint", ",".join(f"h{i}" for i in range(10))], "more than 9"),
    ):
        done = doctor(*line)
        check(done.returncode == 2 and text in done.stderr, f"{line}: {done}")
    check(doctor("--help").stdout.startswith("usage: muster doctor"), "--help")


def text_has_colours_on_terminals_alone():
    plain = doctor("--only=kernel").stdout
    check("\x1b" not in plain and "kernel" in plain, plain)
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(ours, "rb", 0)) as terminal:
        child = subprocess.Popen([jobs.muster_binary(), "doctor", "--only=kernel"], stdout=theirs)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # EIO when the other end is closed
            while chunk := terminal.read(65536):
                text += chunk
        child.wait(PATIENCE_S)
    check(b"\x1b[" in text, text)


def a_port_that_is_free():
    port = jobs.free_port()
    expect(findings("--only=ports", f"--rdzv-endpoint=127.0.0.1:{port}"), "ports", "ok", f"127.0.0.1:{port} is free")


def a_port_that_a_stranger_has():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = findings("--only=ports", f"--rdzv-endpoint=127.0.0.1:{port}")
    check(str(port) in expect(found, "ports", "error", "no store")["advice"], f"{found}")


def a_port_that_a_store_has():
    with subprocess.Popen([jobs.muster_binary(), "store", "--port=0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip().rpartition(":")[2]
            expect(findings("--only=ports", f"--rdzv-endpoint=127.0.0.1:{port}"), "ports", "note", "Muster's TCPStore")
        finally:
            server.terminate()


def a_port_that_a_job_has():
    port = jobs.free_port()
    command = [jobs.muster_binary(), "run", "--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=muster"]
    command += [f"--rdzv-endpoint=127.0.0.1:{port}", "--no-python", "sh", "-c", "echo started; read line; exit 0"]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as job:
            try:
                check(job.stdout.readline() == "started\n", "the job has not started")
                found = findings("--only=ports", f"--rdzv-endpoint=127.0.0.1:{port}")
                expect(found, "ports", "warning", "--rdzv-backend=muster")
            finally:
                job.stdin.close()
                check(job.wait(PATIENCE_S) == 0, "the job does not mind being looked at")


def an_interface_that_does_not_exist():
    found = findings("--only=interfaces", variables={"GLOO_SOCKET_IFNAME": "nosuch0"})
    expect(found, "interfaces", "error", "there is no interface nosuch0")
    found = findings("--only=interfaces", variables={"NCCL_SOCKET_IFNAME": "=nosuch0"})
    expect(found, "interfaces", "error", "NCCL_SOCKET_IFNAME==nosuch0")


def a_host_that_does_not_exist():
    found = findings("--only=names", "--rdzv-endpoint=no-such-host.invalid")
    expect(found, "names", "error", "no-such-host.invalid")


def a_name_server_that_never_answers():
    """It takes the time-out, and is said; everything else is there as well."""
    if isolated:
        raise Skip(isolated)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, tempfile.TemporaryDirectory() as folder:
        silent.bind(("127.0.0.1", 53))
        for name, text in (
            ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:30\n"),
            ("nsswitch.conf", "hosts: files dns\n"),
            ("hosts", "127.0.0.1 localhost\n"),
        ):
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
            jobs.bind_mount(os.path.join(folder, name), f"/etc/{name}")
        found = findings("--rdzv-endpoint=far-away.example")
        expect(found, "names", "error", "the look-up of far-away.example, a host of the endpoint, has not ended")
        expect(found, "ports", "note", "far-away.example was not tried")
        expect(found, "kernel", "ok", "Linux")
        for name in ("resolv.conf", "nsswitch.conf", "hosts"):
            check(jobs._libc.umount2(f"/etc/{name}".encode(), jobs.MNT_DETACH) == 0, f"umount /etc/{name}")


def a_folder_that_takes_no_files():
    found = findings("--only=temporary", variables={"TMPDIR": "/nowhere"})
    expect(found, "temporary", "error", "/nowhere: No such file")
    expect(findings("--only=temporary", variables={"TMPDIR": "/proc"}), "temporary", "error", "/proc")
    with tempfile.TemporaryDirectory() as folder:
        expect(findings("--only=temporary", variables={"TMPDIR": folder}), "temporary", "ok", folder)
        check(os.listdir(folder) == [], "something is left behind")


def limits_that_are_low():
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    expect(findings("--only=limits", before=lower), "limits", "warning", "at most 256 open files")


def processors_that_are_fewer():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("one processor")
    found = findings("--only=processors", before=lambda: os.sched_setaffinity(0, cpus[:1]))
    expect(found, "processors", "note", "1 of the")


def variables_that_mislead():
    found = findings("--only=environment", variables={"PET_NODES": "4", "PET_NNODES": "4"})
    expect(found, "environment", "warning", "PET_NODES is read by nobody")
    expect(found, "environment", "note", "PET_NNODES=4")
    found = findings("--only=nccl", variables={"NCCL_IB_DISABLE": "maybe"})
    expect(found, "nccl", "warning", "NCCL_IB_DISABLE=maybe")


CASES = [
    every_check_speaks,
    only_what_was_asked_for,
    a_line_of_run_is_taken,
    wrong_lines_are_usage,
    text_has_colours_on_terminals_alone,
    a_port_that_is_free,
    a_port_that_a_stranger_has,
    a_port_that_a_store_has,
    a_port_that_a_job_has,
    an_interface_that_does_not_exist,
    a_host_that_does_not_exist,
    a_name_server_that_never_answers,
    a_folder_that_takes_no_files,
    limits_that_are_low,
    processors_that_are_fewer,
    variables_that_mislead,
]


def main():
    global isolated
    isolated = jobs.isolate(hostname="localhost", mounts=True)
    skipped = 0
    for case in CASES:
        if sys.argv[1:] and case.__name__ not in sys.argv[1:]:
            continue
        try:
            case()
            print(f"ok      {case.__name__}", flush=True)
        except Skip as why:
            skipped += 1
            print(f"SKIPPED {case.__name__}: {why}", flush=True)
    print(f"{len(CASES) - skipped} cases, {skipped} skipped")


main()
