"""What a worker can see of its launcher, and what the launcher says of its options: the same as under torchrun."""

import ipaddress
import itertools
import json
import os
import re
import signal
import socket
import sys

import forked
import jobs

RANDOM = {
    "MASTER_PORT": r"^\d+$",
    "TORCHELASTIC_RUN_ID": r"^.+$",
    "TORCHELASTIC_ERROR_FILE": r"/attempt_\d+/\d+/error\.json$",
    jobs.TAG: r"",
    "TMPDIR": r"",
}


def facts(scratch):
    found = {}
    for name in os.listdir(scratch.path("facts")):
        with open(scratch.path("facts", name), encoding="utf-8") as text:
            found[int(name)] = json.load(text)
    return found


def gather(launcher, options, arguments=(), env=None, nproc=2, stdin=None):
    """What the workers of one job saw, by rank."""
    with jobs.Scratch() as scratch:
        os.mkdir(scratch.path("facts"))
        options = [o.replace("PORT", str(jobs.free_port())) for o in options]
        script = [os.path.join(jobs.HERE, "facts_worker.py"), scratch.path("facts"), *arguments]
        if "--no-python" in options:
            script = [sys.executable, *script]
        process = scratch.run_to_end(
            launcher, *options, f"--nproc-per-node={nproc}", *script, code=0, env=scratch.env(**(env or {})), name="job"
        )
        seen = facts(scratch)
        jobs.check(sorted(seen) == list(range(nproc)), f"ranks {sorted(seen)}\n{process.tail()}")
        text = json.dumps(seen).replace(scratch.root, "SCRATCH")
        return {int(rank): what for rank, what in json.loads(text).items()}


def is_numeric_address_of(host, address):
    """Whether `address` is one of those that the name (or address) `host` stands for, written in numbers."""
    try:
        ipaddress.ip_address(address)
        return address in {found[4][0] for found in socket.getaddrinfo(host, None)}
    except (ValueError, OSError):
        return False


def may_differ(name, theirs, ours):
    if name == "MASTER_ADDR":  # on purpose: resolved once, by the launcher (docs/compatibility.md)
        return is_numeric_address_of(theirs, ours)
    return name in RANDOM and all(re.search(RANDOM[name], text) for text in (theirs, ours))


# Variables that only our launcher gives (docs/worker-contract.md).
OURS = {"MUSTER_HELD_SOCKET": r"^muster-held-[0-9a-f]{32}$"}


def compare_environments(theirs, ours, where):
    differences = []
    for name in sorted(set(theirs) | set(ours)):
        left, right = theirs.get(name), ours.get(name)
        if left is None and name in OURS and re.search(OURS[name], right):
            continue
        if left is None or right is None or (left != right and not may_differ(name, left, right)):
            differences.append(f"{name}: torchrun {left!r}, muster {right!r}")
    jobs.check(not differences, f"{where}: " + "; ".join(differences))


SITUATIONS = {
    "standalone": (["--standalone"], (), {}),
    "auto": ([], (), {}),
    "no python": (["--standalone", "--no-python"], ("a b", "$local_rank", "${local_rank}x", "$$", "$nope"), {}),
    "substitution": (["--standalone"], ("--gpu=${local_rank}", "", "-h", "--standalone"), {}),
    "static": (["--nnodes=1", "--master-addr=127.0.0.1", "--master-port=PORT", "--node-rank=0"], (), {}),
    "c10d": (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:PORT", "--rdzv-id=my run"], (), {}),
    "local addr": (["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:PORT", "--local-addr=127.0.0.1"], (), {}),
    "role": (["--standalone", "--role=trainer", "--max-restarts=2", "--signals-to-handle=SIGTERM"], (), {}),
    "virtual": (["--standalone", "--virtual-local-rank"], (), {"CUDA_VISIBLE_DEVICES": " 7 , 5 "}),
    "virtual unset": (["--standalone", "--virtual-local-rank"], (), {}),
    "own store": (["--standalone"], (), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    "no logs": (["--standalone", "--log-dir=/dev/null"], (), {}),
    "omp given": (["--standalone"], (), {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    "redirected": (["--standalone", "--redirects=3"], (), {}),
    "tee": (["--standalone", "--tee=3"], (), {}),
    "PET": ([], (), {"PET_STANDALONE": "1", "PET_ROLE": "petted", "PET_MAX_RESTARTS": "4"}),
}
PLAIN = ("session_leader", "group_leader", "parent_is_launcher", "cwd", "umask", "blocked", "ignored", "nice", "limits", "affinity")


def compare_situation(name):
    options, arguments, env = SITUATIONS[name]
    theirs = gather("torchrun", options, arguments, env)
    ours = gather("muster", options, arguments, env)
    for rank in theirs:
        where = f"{name}, rank {rank}"
        compare_environments(theirs[rank]["environment"], ours[rank]["environment"], where)
        jobs.check(theirs[rank]["argv"] == ours[rank]["argv"], f"{where}: {theirs[rank]['argv']} {ours[rank]['argv']}")
        left, right = theirs[rank]["orig_argv"], ours[rank]["orig_argv"]
        jobs.check(left[1:] == right[1:], f"{where}: torchrun {left}, muster {right}")
        for fact in PLAIN:
            left, right = theirs[rank][fact], ours[rank][fact]
            jobs.check(left == right, f"{where}: {fact}: torchrun {left}, muster {right}")
        extra = set(ours[rank]["descriptors"]) - set(theirs[rank]["descriptors"])
        jobs.check(not extra, f"{where}: descriptors leak into the worker: {ours[rank]['descriptors']}")


def case_worker_sees_what_torchrun_shows():
    """Environment, arguments, session, descriptors, signals and limits of workers are those under torchrun."""
    jobs.need_torch()
    jobs.isolate()
    os.environ.pop(forked.TEMPLATES, None)  # what is ignored here is to be inherited by all
    # Ignored by whoever starts the launcher, as nohup and a shell's "&" do: one that launchers handle, two that they do not.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    failures = []
    for name in SITUATIONS:
        try:
            compare_situation(name)
        except jobs.Failed as why:
            failures.append(str(why))
    jobs.check(not failures, "\n".join(failures))


def case_restart_count_is_seen():
    """TORCHELASTIC_RESTART_COUNT counts the restarts consumed."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process = scratch.run("muster", "--standalone", "--max-restarts=2", *jobs.worker(scratch, "--exit", "1"))
        process.expect(jobs.SOON_S, 1)
        seen = [s.attempt for s in scratch.channel.select("start")]
        jobs.check(seen == [0, 1, 2], f"{seen}")


def events_of(launcher):
    """The event lines of a failing job, without what differs from run to run."""
    with jobs.Scratch() as scratch:
        text = '[ $RANK = 0 ] && { sleep 0.3; exit 3; }; [ $RANK = 1 ] && exit 0; exec sleep 30'
        options = ["--standalone", "--nproc-per-node=3", "--max-restarts=1", "--event-log-handler=console"]
        command = [*options, "--role=r", "--no-python", "sh", "-c", text]
        process = scratch.run(launcher, *command, env=scratch.env(LOGLEVEL="INFO"))
        process.expect(60, 1)
        found = []
        for line in process.err().splitlines():
            if '{"name"' not in line:
                continue
            event = json.loads(line[line.index("{") :])
            about = event["metadata"]
            about["metadata"] = re.sub(r'("worker_pid": \[)\d+', r"\1PID", about["metadata"])
            for name in ("run_id", "worker_id", "hostname", "total_run_time", "duration_ms"):
                about[name] = type(about[name]).__name__
            if event["name"].endswith(("RENDEZVOUS", "ASSIGN_WORKER_RANKS")):
                # torchrun tells the world before; we the one that was found
                about["group_rank"] = None
                about["metadata"] = re.sub(r'("group_world_size": )(null|\d+)', r"\1N", about["metadata"])
            found.append(json.dumps(event))
        return found


def case_events_are_torchruns():
    """--event-log-handler=console: the same lines with the same fields in the same order."""
    jobs.need_torch()
    jobs.isolate()
    theirs, ours = events_of("torchrun"), events_of("muster")
    for left, right in itertools.zip_longest(theirs, ours):
        jobs.check(left == right, f"torchrun {left}\nmuster   {right}")
    jobs.check(len(ours) == 14, f"{len(ours)} events")


# Rank 1 fails when the others are ready to be stopped; {} is how. PyTorch's record() is for that one: the others only end.
FAILING = """
import os, signal, sys, time
rank = os.environ["RANK"]
if rank == "1":
    from torch.distributed.elastic.multiprocessing.errors import record
else:
    record = lambda function: function
@record
def main():
    open("ready." + rank, "w").close()
    while not all(os.path.exists("ready." + r) for r in "012"):
        time.sleep(0.01)
    if rank == "1":
        {}
    time.sleep(60)
main()
"""
FAILURES = {
    "exit code": "sys.exit(3)",
    "signal": "os.kill(os.getpid(), signal.SIGSEGV)",
    "exception": "raise ValueError('two\\nlines')",
}


def bars_by_rule(report):
    """The bars as "as wide as the text" where they are, else as they stand: a pid has five digits in one run, six in the next."""
    lines = report.splitlines()
    bars = [line for line in lines if line and set(line) in ({"="}, {"-"})]
    width = min(max(len(line) for line in lines if line not in bars), 60)
    return "\n".join(f"{line[0]} as wide as the text" if line in bars and len(line) == width else line for line in lines)


def report_of(launcher, how):
    """The failure report without what differs from run to run."""
    with jobs.Scratch() as scratch:
        script = scratch.write("failing.py", FAILING.format(FAILURES[how]))
        more = ["--stderr-tail=0"] if launcher == "muster" else []
        options = ["--standalone", "--nproc-per-node=3", f"--log-dir={scratch.path('logs')}", *more]
        process = scratch.run_to_end(launcher, *options, os.path.basename(script), code=1)
        report = process.err().partition("ChildFailedError:")[2]
        report = bars_by_rule(report).replace(scratch.root, "SCRATCH").lstrip()
        report = re.sub(r"logs/[^/]+/attempt", "logs/RUN/attempt", report)
        report = re.sub(r"(?m)^(  (time|host) +: ).*", r"\1-", report)
        return re.sub(r"(?i)pid:? \d+", "PID", report)


def case_report_is_torchruns():
    """With --stderr-tail=0 the failure report is torchrun's: for an exit code, a signal, a recorded exception."""
    jobs.need_torch()
    jobs.isolate()
    for how in FAILURES:
        theirs, ours = report_of("torchrun", how), report_of("muster", how)
        for left, right in itertools.zip_longest(theirs.splitlines(), ours.splitlines()):
            jobs.check(left == right, f"{how}: torchrun {left!r}, muster {right!r}\n{theirs}\n{ours}")


# Verdicts that torchrun 2.13 gives; the text must name what was wrong.
VERDICTS = [
    (2, ["--bogus", "x.py"], ["bogus"]),
    (2, ["--nproc=2", "x.py"], ["--nproc", "ambiguous"]),
    (2, ["--nproc_per-node=2", "x.py"], ["nproc_per-node"]),
    (2, ["--max-restarts=x", "x.py"], ["max-restarts", "x"]),
    (2, ["--start-method=bad", "x.py"], ["bad", "spawn"]),
    (2, ["--nnodes"], ["nnodes"]),
    (1, ["--nnodes=1:2:3", "x.py"], ["1:2:3"]),
    (1, ["--nnodes=0", "x.py"], ["nnodes"]),
    (1, ["--nnodes=3:2", "x.py"], ["3"]),
    (1, ["--max-restarts=-1", "x.py"], ["max"]),
    (1, ["--nproc-per-node=bad", "x.py"], ["bad"]),
    (1, ["--nproc-per-node=0", "x.py"], ["nproc"]),
    (1, ["--monitor-interval=0", "x.py"], ["monitor"]),
    (1, ["-r", "5", "x.py"], ["5"]),
    (1, ["--local-ranks-filter=a", "x.py"], ["local"]),
    (1, ["-m", "--no-python", "x"], ["no-python", "module"]),
    (1, ["--rdzv-conf=foo", "x.py"], ["foo"]),
    (1, ["--rdzv-conf=a=", "x.py"], ["a"]),
    (1, ["--rdzv-backend=nosuch", "x.py"], ["nosuch"]),
    (1, ["--rdzv-backend=c10d", "--rdzv-endpoint=host:99999", "x.py"], ["host:99999"]),
    (1, ["--nnodes=2", "--rdzv-endpoint=foo", "x.py"], ["port", "foo"]),
    (1, ["--logs-specs=xx", "x.py"], ["xx"]),
    (1, ["--shutdown-timeout=-1", "x.py"], ["-1"]),
    (1, ["--standalone", "--event-log-handler=nosuch", "x.py"], ["nosuch"]),
]


def verdict(launcher, arguments, scratch):
    process = scratch.run_to_end(launcher, *arguments)
    return process.wait(0), process.err() + process.out()


def case_bad_options_get_torchruns_verdict():
    """A bad option or value ends with torchrun's exit code and a sentence that names it; nothing was started."""
    jobs.isolate()
    failures = []
    with jobs.Scratch() as scratch:
        for code, arguments, words in VERDICTS:
            got, text = verdict("muster", arguments, scratch)
            if got != code:
                failures.append(f"{arguments}: exit code {got}, torchrun's is {code}: {text[-200:]}")
            missing = [word for word in words if word.lower() not in text.lower()]
            if missing:
                failures.append(f"{arguments}: the message says nothing of {missing}: {text[-300:]}")
        leftovers = os.listdir(scratch.path("tmp"))
        jobs.check(not leftovers, f"left in the temporary folder: {leftovers}")
    jobs.check(not failures, "\n".join(failures))


def case_verdicts_are_torchruns():
    """The table of verdicts above is what the real torchrun gives."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        for code, arguments, _ in VERDICTS:
            got, text = verdict("torchrun", arguments, scratch)
            if got != code and f"unrecognized arguments: {arguments[0]}" in text:  # an older one
                print(f"this torchrun has no {arguments[0]}")
                continue
            jobs.check(got == code, f"{arguments}: exit code {got}, the table says {code}: {text[-300:]}")


def case_called_torchrun():
    """A link named torchrun behaves as `muster run`."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        os.symlink(jobs.muster_binary(), scratch.path("torchrun"))
        command = [scratch.path("torchrun"), "--standalone", "--nproc_per_node", "2", *jobs.worker(scratch, "--exit", "0")]
        scratch.start("link", command).expect(jobs.SOON_S, 0)
        jobs.check(len(scratch.channel.select("start", world=2)) == 2, "no two workers")
        text = scratch.start("help", [scratch.path("torchrun"), "--help"])
        text.expect(jobs.SOON_S, 0)
        jobs.check(text.out().startswith("usage: torchrun"), text.out()[:80])
