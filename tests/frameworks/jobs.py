"""One job of tests/frameworks: a framework's script under a launcher, on a backend, undisturbed or with a rank that dies.

What happened is read from the notes that scripts/common.py writes.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import environment

LIMIT_S = 400
# A job hangs when its processes have computed less than IDLE_CPU_S in IDLE_S. Time alone would not tell on a busy machine; and torchrun gives
# a worker 30 s to end, in which nothing happens.
IDLE_S, IDLE_CPU_S = 45, 1.5
RESTARTS = 2
RANKS = 2


@dataclass
class Framework:
    name: str
    script: str
    variables: dict = field(default_factory=dict)
    own: str = ""  # its own launcher, if that calls PyTorch's inside its process: accelerate or fabric
    is_replicated: bool = False  # torchft: a job for each rank
    preloaded: str = ""  # what `muster run --preload` may import once for all attempts, beside torch


FRAMEWORKS = {
    "accelerate": Framework("Accelerate, DDP", "accelerate_ddp.py", own="accelerate", preloaded="accelerate"),
    "accelerate-fsdp2": Framework("Accelerate, FSDP2", "accelerate_ddp.py", {"FRAMEWORKS_FSDP": "1"}, own="accelerate", preloaded="accelerate"),
    "trainer": Framework("Transformers' Trainer", "trainer.py", own="accelerate", preloaded="transformers,accelerate"),
    "lightning": Framework("Lightning, ddp", "lightning_ddp.py"),
    "fabric": Framework("Lightning Fabric, ddp", "fabric_ddp.py", own="fabric"),
    "deepspeed-1": Framework("DeepSpeed, ZeRO 1", "deepspeed_zero.py", {"FRAMEWORKS_STAGE": "1"}, preloaded="deepspeed"),
    "deepspeed-2": Framework("DeepSpeed, ZeRO 2", "deepspeed_zero.py", {"FRAMEWORKS_STAGE": "2"}, preloaded="deepspeed"),
    "deepspeed-3": Framework("DeepSpeed, ZeRO 3", "deepspeed_zero.py", {"FRAMEWORKS_STAGE": "3"}, preloaded="deepspeed"),
    "torchft": Framework("torchft, two replicas", "torchft_ddp.py", is_replicated=True, preloaded="torchft"),
}
LAUNCHERS = ("torchrun", "own", "muster", "preload", "hook")
OURS = ("muster", "preload", "hook")
BACKENDS = ("gloo", "muster")


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def launcher_name(framework, launcher):
    own = {"accelerate": "accelerate launch", "fabric": "fabric run", "": "python -m torch.distributed.run"}[framework.own]
    return {"torchrun": "torchrun", "own": own, "muster": "muster run", "preload": "muster run --preload", "hook": f"{own}, with the hook"}[launcher]


def command(framework, launcher, ranks):
    """(words, variables) that start `ranks` ranks of the framework's script."""
    script = os.path.join(environment.SCRIPTS, framework.script)
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}", script]
    if launcher == "torchrun":
        return ["torchrun", *options], {}
    if launcher == "muster":
        return [environment.MUSTER, "run", *options], {}
    if launcher == "preload":
        modules = ",".join(["torch", "torch.distributed", *framework.preloaded.split(",")]) if framework.preloaded else "torch,torch.distributed"
        return [environment.MUSTER, "run", f"--preload={modules}", *options], {}
    hook = {"MUSTER_LAUNCH": "1"} if launcher == "hook" else {}
    if framework.own == "accelerate":
        return ["accelerate", "launch", "--multi_gpu", f"--num_processes={ranks}", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no",
                f"--main_process_port={free_port()}", f"--max_restarts={RESTARTS}", script], hook
    if framework.own == "fabric":
        return ["fabric", "run", "--accelerator=cpu", "--strategy=ddp", f"--devices={ranks}", f"--main-port={free_port()}", script], dict(
            hook, PET_MAX_RESTARTS=str(RESTARTS))
    return ["python", "-m", "torch.distributed.run", *options], hook


def stragglers(folder):
    """Processes of a job that outlive its launcher: its folder stands in their environment."""
    mark = f"FRAMEWORKS_FOLDER={folder}\0".encode()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid() and mark in open(f"/proc/{name}/environ", "rb").read() + b"\0":
                yield int(name)


def computed_s(folder):
    """Processor time of a job's processes that are there now."""
    ticks = 0
    for pid in stragglers(folder):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def wait(launchers, folder):
    """Until all have ended, or the job hangs. Their exit codes; None of one that has not ended."""
    began = marked_at = time.monotonic()
    mark = 0.0
    while any(one.poll() is None for one in launchers):
        now = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            next(one for one in launchers if one.returncode is None).wait(timeout=1)
        computed = computed_s(folder)
        if abs(computed - mark) > IDLE_CPU_S:  # less: a process has ended
            mark, marked_at = computed, now
        if now - marked_at > IDLE_S or now - began > LIMIT_S:
            break
    return [one.poll() for one in launchers]


def end(launchers, folder):
    """Ends a job's launchers and all else of it. How many other processes there were."""
    known = [one.pid for one in launchers]
    left = [pid for pid in stragglers(folder) if pid not in known]
    for pid in [one.pid for one in launchers if one.poll() is None] + left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for one in launchers:
        one.wait()
    return len(left)


class Outcome:
    """What a job did. `problem` is empty if it ended well."""

    def __init__(self, folder, codes, began, took_s, log):
        self.took_s = took_s
        self.began = began
        self.log = log
        self.notes = []
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(folder, "notes"), encoding="utf-8") as file:
                self.notes = [json.loads(line) for line in file]
        self.codes = codes
        killed = [note["time"] for note in self.notes if "killed" in note]
        self.killed_at = killed[0] if killed else None
        self.problem = self.find_problem()

    def find_problem(self):
        if None in self.codes:
            return "hangs"
        if any(self.codes):
            return "fails"
        if len(self.last("finished")) != RANKS:
            return "ends early"
        return ""

    def last(self, key):
        """{rank: its newest value of `key`}"""
        return {note["rank"]: note[key] for note in self.notes if key in note}

    @property
    def digest(self):
        return self.last("finished").get(0)

    @property
    def restarts(self):
        return max((note.get("attempt", 0) for note in self.notes), default=0)

    @property
    def until_step_s(self):
        """From the kill to the moment when every rank has done a step that was not begun before it."""
        if self.killed_at is None or self.problem:
            return None
        again = [note["time"] for note in self.notes if "resumed" in note and note["time"] > self.killed_at]
        first = {}
        for note in self.notes:
            if "step" in note and again and note["time"] > min(again):
                first.setdefault(note["rank"], note["time"])
        return max(first.values()) - self.killed_at if len(first) == RANKS else None


@contextlib.contextmanager
def lighthouse(variables, log):
    """torchft's server, on a port of its own choice."""
    words = ["torchft_lighthouse", f"--min_replicas={RANKS}", "--bind=127.0.0.1:0", "--heartbeat_timeout_ms=1000", "--quorum_tick_ms=20"]
    apart = {name: value for name, value in variables.items() if name != "FRAMEWORKS_FOLDER"}  # it is to outlive the job
    server = subprocess.Popen(words, env=dict(apart, RUST_LOG="info"), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        found = None
        while not found and time.monotonic() < deadline and server.poll() is None:
            with open(log.name, encoding="utf-8", errors="replace") as file:
                found = re.search(r"Lighthouse listening on:? \S*:(\d+)", file.read())
            time.sleep(0.02)
        if not found:
            raise RuntimeError(f"torchft's lighthouse has not begun: see {log.name}")
        yield f"http://127.0.0.1:{found.group(1)}"
    finally:
        server.kill()
        server.wait()


def run(framework, launcher, backend, is_to_die, python, caches):
    """Starts the job, waits for its end (LIMIT_S), and ends what is left of it."""
    with tempfile.TemporaryDirectory(prefix="muster-frameworks-") as folder, contextlib.ExitStack() as stack:
        variables = dict(environment.variables(python, caches), FRAMEWORKS_FOLDER=folder, TMPDIR=folder, FRAMEWORKS_KILL=str(int(is_to_die)),
                         **framework.variables)
        if backend == "muster":
            variables["MUSTER_AS_GLOO"] = "1"
        path = os.path.join(folder, "log")
        log = stack.enter_context(open(path, "wb"))
        if framework.is_replicated:
            variables["TORCHFT_LIGHTHOUSE"] = stack.enter_context(lighthouse(variables, log))
        began = time.monotonic()
        launchers, left = [], 0
        try:
            for replica in range(RANKS if framework.is_replicated else 1):
                words, more = command(framework, launcher, 1 if framework.is_replicated else RANKS)
                launchers.append(subprocess.Popen(words, env=dict(variables, **more, REPLICA_GROUP_ID=str(replica)), cwd=folder,
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))
            codes = wait(launchers, folder)
            took_s = time.monotonic() - began
        finally:
            left = end(launchers, folder)
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        outcome = Outcome(folder, codes, began, took_s, text)
        if left and None not in codes:
            outcome.problem = outcome.problem or f"leaves {left} processes"
        return outcome
