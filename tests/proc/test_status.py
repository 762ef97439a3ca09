#!/usr/bin/env python3
# muster status of real jobs: one that fails and starts again, one with a secret, one of c10d, and what is none.
# waits: yes
"""Usage: test_status.py [CASE ...]; MUSTER_BINARY names the program.

A worker waits for its exit code in a FIFO of its rank and attempt, so that opening that FIFO is the sign that it runs.
"""
import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
from jobs import check  # noqa: E402

PATIENCE_S = 60
WORKER = 'read code < "$FOLDER/$RANK.$TORCHELASTIC_RESTART_COUNT"; exit $code'


# One of libmuster. It opens its FIFO when its group is made.
GROUP_WORKER = """
import ctypes, os, sys
library = ctypes.CDLL(os.environ["LIBRARY"])
group = ctypes.c_void_p()
if library.muster_group_create_env(None, ctypes.byref(group)) != 0:
    sys.exit(99)
with open(f"{os.environ['FOLDER']}/{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}") as fifo:
    os._exit(int(fifo.readline()))
"""


class Job:
    """`nodes` agents with `workers` each: shell scripts that wait for their exit code, or Python's `worker`."""

    def __init__(self, folder, nodes, *options, backend="muster", attempts=2, workers=1, worker=None):
        self.folder, self.ranks = folder, nodes * workers
        self.port = jobs.free_port()
        for rank in range(self.ranks):
            for attempt in range(attempts):
                os.mkfifo(os.path.join(folder, f"{rank}.{attempt}"))
        self.log = open(os.path.join(folder, "log"), "wb")
        command = [jobs.muster_binary(), "run", f"--nnodes={nodes}", f"--nproc-per-node={workers}", "--max-restarts=3"]
        command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job7"]
        command += [*options, "--no-python", *([sys.executable, "-c", worker] if worker else ["sh", "-c", WORKER])]
        library = os.path.join(os.path.dirname(jobs.muster_binary()), "libmuster.so")
        self.agents = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=self.log, env={**os.environ, "FOLDER": folder, "LIBRARY": library}
            )
            for _ in range(nodes)
        ]

    def runs(self, attempt):
        """Waits until all workers of the attempt run. Their FIFOs, by rank."""
        return [open(os.path.join(self.folder, f"{rank}.{attempt}"), "w", encoding="ascii") for rank in range(self.ranks)]

    def end(self, fifos):
        for fifo in fifos:
            fifo.write("0\n")
            fifo.close()
        for agent in self.agents:
            check(agent.wait(PATIENCE_S) == 0, "the job does not mind being asked")

    def kill(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(PATIENCE_S)
        self.log.close()


@contextlib.contextmanager
def job_of(nodes, *options, **more):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, nodes, *options, **more)
        try:
            yield job
        finally:
            job.kill()


def status(*arguments, variables=None):
    return subprocess.run(
        [jobs.muster_binary(), "status", *arguments],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def report(*arguments, **more):
    done = status("--json", *arguments, **more)
    check(done.returncode == 0, f"{done}")
    return json.loads(done.stdout)


def fails(text, *arguments, **more):
    done = status(*arguments, **more)
    check(done.returncode == 1 and text in done.stderr and done.stdout == "", f"'{text}' is not what it says: {done}")


# ---------------------------------------------------------------------------


def a_job_that_fails_and_starts_again():
    with job_of(2) as job:
        endpoint = f"127.0.0.1:{job.port}"
        fifos = job.runs(0)
        first = report(endpoint)
        check(first["phase"] == "running" and first["round"] == 1 and first["workers"] == 2, f"{first}")
        members = first["members"]
        check([m["rank"] for m in members] == [0, 1], f"{members}")
        check({m["pid"] for m in members} == {agent.pid for agent in job.agents}, f"{members}")
        check([m["host"] for m in members].count(True) == 1, f"{members}")
        watch = subprocess.Popen(
            [jobs.muster_binary(), "status", endpoint, "--watch", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            check(json.loads(watch.stdout.readline())["round"] == 1, "the first line of --watch")
            fifos[1].write("7\n")
            fifos[1].close()
            again = job.runs(1)
            fifos[0].close()
            second = report(endpoint)
            check(second["phase"] == "running" and second["round"] == 2, f"{second}")
            check(second["charges"] == {"failures": 1, "changes": 0, "preemptions": 0}, f"{second}")
            check(second["limits"]["failures"] == 3, f"{second}")
            past = second["rounds"][0]
            check(past["cause"] == "failure" and past["ended"] and "failed" in past["why"], f"{past}")
            check("127.0.0.1" in past["why"] and past["running_ms"] >= 0, f"{past}")
            check([m["rank"] for m in second["members"]] == [0, 1], f"{second}")
            text = status(endpoint).stdout
            check('job "job7": running, round 2' in text and "charged: 1 failure of 3" in text, text)
            while json.loads(line := watch.stdout.readline())["round"] != 2:
                pass
            check(json.loads(line)["charges"]["failures"] == 1, line)
            job.end(again)
            for line in watch.stdout:
                check(json.loads(line)["round"] == 2, line)
            check(watch.wait(PATIENCE_S) == 0, "--watch ends well with its job")
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()


def the_engine_of_its_groups():
    with job_of(1, "--rdzv-conf=keep_alive_interval=1", workers=2, worker=GROUP_WORKER) as job:
        endpoint = f"127.0.0.1:{job.port}"
        fifos = job.runs(0)
        watch = subprocess.Popen(
            [jobs.muster_binary(), "status", endpoint, "--watch", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            found = json.loads(watch.stdout.readline())
            while not found["engine"]:  # with the next ALIVE; a change, so that it is a line
                found = json.loads(watch.stdout.readline())
            reason = "muster (one host, whose memory all ranks share)"
            check(found["engine"] == reason and found["round"] == 1, f"{found}")
            text = status(endpoint).stdout
            check(f"\nengine: {reason}, of rank 0's process group\n" in text, text)
            fifos[1].write("7\n")
            fifos[1].close()
            again = job.runs(1)
            while found["round"] == 1:
                found = json.loads(watch.stdout.readline())
            while not found["engine"]:  # of the new world
                found = json.loads(watch.stdout.readline())
            check(found["engine"] == reason and found["round"] == 2, f"{found}")
            fifos[0].close()
            job.end(again)
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()


def nodes_that_wait_for_others():
    with tempfile.TemporaryDirectory() as folder:
        port = jobs.free_port()
        command = [jobs.muster_binary(), "run", "--nnodes=2", "--rdzv-backend=muster", "--no-python"]
        command += [f"--rdzv-endpoint=127.0.0.1:{port}", "true"]
        with open(os.path.join(folder, "log"), "wb") as log:
            agent = subprocess.Popen(command, stderr=log)
            try:
                found = {"members": []}
                while not found["members"]:  # it starts, and its JOIN is on its way
                    check(agent.poll() is None, "the agent has ended")
                    done = status("--json", f"127.0.0.1:{port}")
                    found = json.loads(done.stdout) if done.returncode == 0 else found
                check(found["phase"] == "forming" and found["nodes"]["joined"] == 1, f"{found}")
                check("1 node of 2 to 2" in status(f"127.0.0.1:{port}").stdout, "the text")
            finally:
                agent.terminate()
                agent.wait(PATIENCE_S)


def a_secret_is_needed():
    with tempfile.NamedTemporaryFile("w") as file, job_of(1, secret_option(file.name)) as job:
        endpoint = f"127.0.0.1:{job.port}"
        fifos = job.runs(0)
        fails("secret", endpoint)
        fails("secret", endpoint, "--rdzv-id=job7", variables={"MUSTER_SECRET": "another-secret-of-16"})
        found = report(endpoint, "--rdzv-id=job7", f"--secret-file={file.name}")
        check(found["phase"] == "running" and found["round"] == 1, f"{found}")
        job.end(fifos)


def secret_option(path):
    """The option for a job with a secret in this file."""
    with open(path, "w", encoding="ascii") as file:
        file.write("a secret of more than 16 bytes\n")
    return f"--rdzv-conf=secret_file={path}"


def a_rendezvous_of_c10d():
    with job_of(2, backend="c10d") as job:
        endpoint = f"127.0.0.1:{job.port}"
        fifos = job.runs(0)
        found = report(endpoint, "--rdzv-id=job7")
        check(found["backend"] == "c10d" and found["phase"] == "running" and found["complete"], f"{found}")
        check("engine" not in found, f"{found}")
        check(sorted(m["rank"] for m in found["members"]) == [0, 1], f"{found}")
        check('job "job7": running' in status(endpoint, "--rdzv-id=job7").stdout, "the text")
        fails('no rendezvous named "job8"', endpoint, "--rdzv-id=job8")
        job.end(fifos)
        with open(job.log.name, encoding="utf-8") as log:
            said = log.read()
        check("dropped" not in said, f"the job's log has a warning of those who asked: {said}")


def nobody_is_there():
    fails("nothing answers at 127.0.0.1", f"127.0.0.1:{jobs.free_port()}")


def a_stranger_is_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        fails("neither a coordinator", f"127.0.0.1:{server.getsockname()[1]}")


def a_store_without_the_job_is_there():
    with subprocess.Popen(
        [jobs.muster_binary(), "store", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            port = server.stdout.readline().strip().rpartition(":")[2]
            fails('no rendezvous named "none"', f"127.0.0.1:{port}")
        finally:
            server.terminate()


def wrong_lines_are_usage():
    for line in ([], ["a", "b"], ["--fast"], ["a:b"], ["a", "--rdzv-id"]):
        check(status(*line).returncode == 2, f"{line}")
    check(status("--help").stdout.startswith("usage: muster status"), "--help")


def a_full_disk_is_told():
    with open("/dev/full", "wb") as full:
        for line in (["status", "--help"], ["store", "--help"], ["--version"], ["doctor", "--list"]):
            done = subprocess.run([jobs.muster_binary(), *line], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
            check(done.returncode == 1 and b"could not be written" in done.stderr, f"{line}: {done}")


def too_few_descriptors():
    for count in (4, 5, 8):
        done = subprocess.run(
            ["prlimit", f"--nofile={count}", jobs.muster_binary(), "status", "127.0.0.1:1"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )
        check(done.returncode == 1 and "ulimit -n" in done.stderr, f"{count}: {done}")


def watching_ends_with_its_reader():
    """As with `| head -1`: nothing changes any more, so that nothing is written either."""
    with job_of(1) as job:
        fifos = job.runs(0)
        watch = subprocess.Popen([jobs.muster_binary(), "status", f"127.0.0.1:{job.port}", "--watch"], stdout=subprocess.PIPE)
        check(watch.stdout.readline(), "the first report")
        watch.stdout.close()
        check(watch.wait(PATIENCE_S) == 0, "nobody reads it any more")
        job.end(fifos)


def a_terminal_is_drawn_anew_until_interrupted():
    with job_of(1) as job:
        fifos = job.runs(0)
        ours, theirs = pty.openpty()
        watch = subprocess.Popen(
            [jobs.muster_binary(), "status", f"127.0.0.1:{job.port}", "--watch"], stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        text = b""
        while text.count(b"\x1b[H\x1b[J") < 2:
            ready, _, _ = select.select([ours], [], [], PATIENCE_S)
            check(ready, f"nothing more is drawn: {text}")
            text += os.read(ours, 65536)
        watch.send_signal(signal.SIGINT)
        check(watch.wait(PATIENCE_S) == 0, "Ctrl-C is a good end")
        os.close(ours)
        check(b'job "job7": running, round 1' in text, text)
        job.end(fifos)


CASES = [
    a_job_that_fails_and_starts_again,
    the_engine_of_its_groups,
    nodes_that_wait_for_others,
    a_secret_is_needed,
    a_rendezvous_of_c10d,
    nobody_is_there,
    a_stranger_is_there,
    a_store_without_the_job_is_there,
    wrong_lines_are_usage,
    too_few_descriptors,
    a_full_disk_is_told,
    watching_ends_with_its_reader,
    a_terminal_is_drawn_anew_until_interrupted,
]


def main():
    jobs.isolate()  # where it can be had: so that no port is taken by a stranger
    for case in CASES:
        if sys.argv[1:] and case.__name__ not in sys.argv[1:]:
            continue
        case()
        print(f"ok      {case.__name__}", flush=True)


main()
