"""What is measured of a launcher. Each experiment is a function (launcher, bench) that runs one job and returns
{row name: value}; a value is a number in the row's unit, or Never(bound in seconds). EXPERIMENTS lists them with their rows
and the command that a reader can type to do the same.
"""

import os
import signal
import statistics
import subprocess
import time

import jobs
from nodes import Pair

GLOO = os.path.join(jobs.HERE, "gloo_worker.py")
FORM_S = 90  # bound on what every launcher does


class Never:
    """It did not happen within `bound_s`, or (`ended`) the job had failed by then."""

    def __init__(self, bound_s, ended=False):
        self.bound_s = bound_s
        self.ended = ended


class Row:
    def __init__(self, name, title, unit, higher_is_better=False):
        self.name = name
        self.title = title
        self.unit = unit
        self.higher_is_better = higher_is_better


class Promise:
    """A bound on medians: on the largest of `rows`, or (`is_ratio`) on how many times better than torchrun's they are."""

    def __init__(self, text, rows, bound, unit="", is_ratio=False, higher_is_better=False):
        self.text = text
        self.rows = rows
        self.bound = bound
        self.unit = unit
        self.is_ratio = is_ratio
        self.higher_is_better = higher_is_better


class Experiment:
    """`runs` and `quick_runs` count samples of each launcher; where torchrun's case is "never" one is enough of it."""

    def __init__(self, function, rows, command, runs=5, quick_runs=1, torch_workers=False, peer_runs=None):
        self.function = function
        self.rows = rows
        self.command = command
        self.runs = runs
        self.quick_runs = quick_runs
        self.peer_runs = peer_runs
        self.torch_workers = torch_workers


def milliseconds(from_ns, to_ns):
    return (to_ns - from_ns) / 1e6


def finish(process, starts, code=0):
    for s in starts:
        try:
            jobs.tell_exit(s.pid, code)
        except ProcessLookupError:
            pass
    process.wait(60)


def wait_or_never(channel, process, count, name, bound_s, since, **fields):
    """The stamps, or Never: after the bound, or earlier when the launcher has ended and nothing can come any more."""
    deadline = time.monotonic() + bound_s
    started = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        found = channel.wait(count, name, min(left, 0.5), since, **fields)
        if found:
            return found
        if process.wait(0) is not None and not channel.wait(count, name, 0.2, since, **fields):
            return Never(time.monotonic() - started, ended=True)
    return Never(bound_s)


# --------------------------------------------------------------------------- one node


def start(nproc):
    def measure(launcher, bench):
        with jobs.Scratch() as scratch:
            arguments = ["--standalone", f"--nproc-per-node={nproc}", *jobs.worker(scratch)]
            process = scratch.run(launcher, *arguments, stamped=True)
            starts = scratch.channel.expect(nproc, "start", FORM_S)
            from_ns = scratch.channel.select("exec")[0].ns
            finish(process, starts)
            return {
                f"start_{nproc}": milliseconds(from_ns, min(s.ns for s in starts)),
                f"start_{nproc}_last": milliseconds(from_ns, max(s.ns for s in starts)),
            }

    return measure


def help_time(launcher, bench):
    count = "20" if launcher == "muster" else "2"
    command = [jobs.program("launch"), "--elapsed", count, *jobs.launcher_command(launcher), "--help"]
    with jobs.Scratch() as scratch:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=scratch.env())
    return {"help": statistics.median(int(line) / 1e6 for line in done.stdout.split())}


def own_processes(scratch):
    worker = os.path.realpath(jobs.program("stamp_worker"))
    return [pid for pid in scratch.pids() if jobs.executable(pid) != worker]


def memory(launcher, bench):
    with jobs.Scratch() as scratch:
        process = scratch.run(launcher, "--standalone", "--nproc-per-node=4", *jobs.worker(scratch))
        starts = scratch.channel.expect(4, "start", FORM_S)
        time.sleep(0.5)  # let it settle: an idle agent is what is measured
        pids = own_processes(scratch)
        values = {
            "memory_agent": jobs.memory_pss_kib(process.pid) / 1024,
            "memory_all": sum(jobs.memory_pss_kib(pid) for pid in pids) / 1024,
            "threads": jobs.thread_count(process.pid),
        }
        finish(process, starts)
        return values


def failure(launcher, bench):
    with jobs.Scratch() as scratch:
        arguments = ["--standalone", "--nproc-per-node=4", "--max-restarts=1", *jobs.worker(scratch)]
        process = scratch.run(launcher, *arguments)
        starts = scratch.channel.expect(4, "start", FORM_S)
        time.sleep(0.2 + 0.1 * (bench.sample % 3) / 3)  # not in step with anybody's polling
        victim = next(s for s in starts if s.rank == 1)
        killed_ns = time.monotonic_ns()
        os.kill(victim.pid, signal.SIGKILL)
        told = scratch.channel.expect(3, "signal", FORM_S, attempt=0)
        again = scratch.channel.expect(4, "start", FORM_S, attempt=1)
        finish(process, again)
        return {
            "failure_told": milliseconds(killed_ns, max(s.ns for s in told)),
            "failure_restarted": milliseconds(killed_ns, max(s.ns for s in again)),
        }


def gloo_failure(launcher, bench):
    with jobs.Scratch() as scratch:
        arguments = ["--standalone", "--nproc-per-node=4", "--max-restarts=1", GLOO, scratch.channel.path]
        process = scratch.run(launcher, *arguments)
        ready = scratch.channel.expect(4, "ready", FORM_S, attempt=0)
        killed_ns = time.monotonic_ns()
        os.kill(ready[0].pid, signal.SIGKILL)
        again = wait_or_never(scratch.channel, process, 4, "formed", bench.never_s, 0, attempt=1)
        if isinstance(again, Never):
            return {"gloo_restarted": again}
        finish(process, scratch.channel.expect(4, "ready", FORM_S, attempt=1))
        return {"gloo_restarted": milliseconds(killed_ns, max(s.ns for s in again)) / 1000}


def agent_killed(launcher, bench):
    """SIGKILL of the agent to the end of the last worker, seen by polling /proc every millisecond."""
    with jobs.Scratch() as scratch:
        process = scratch.run(launcher, "--standalone", "--nproc-per-node=4", *jobs.worker(scratch))
        pids = [s.pid for s in scratch.channel.expect(4, "start", FORM_S)]
        killed_ns = process.signal(signal.SIGKILL)
        process.wait(10)
        while any(jobs.alive(pid) for pid in pids):
            if time.monotonic_ns() - killed_ns > bench.never_s * 1e9:
                return {"orphans": Never(bench.never_s)}
            time.sleep(0.001)
        return {"orphans": milliseconds(killed_ns, time.monotonic_ns())}


# --------------------------------------------------------------------------- two nodes


def formation(launcher, bench):
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, (launcher, launcher), nnodes="2")
        pair.start(0, stamped=True)
        pair.start(1, stamped=True)
        starts = pair.expect_world(4, FORM_S, 0)
        from_ns = min(s.ns for s in scratch.channel.select("exec"))
        pair.finish(starts, 60)
        return {"formation": milliseconds(from_ns, max(s.ns for s in starts))}


def remote_failure(launcher, bench):
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, (launcher, launcher), nnodes="2", options=["--max-restarts=1"])
        starts = pair.start_both(FORM_S)
        time.sleep(0.3 + 0.1 * (bench.sample % 3))
        mark = scratch.channel.mark()
        killed_ns = time.monotonic_ns()
        os.kill(pair.workers_of(starts, "B")[0].pid, signal.SIGKILL)
        on_a = {s.pid for s in pair.workers_of(starts, "A")}
        told = [s for s in scratch.channel.expect(3, "signal", FORM_S, since=mark) if s.pid in on_a]
        again = pair.expect_world(4, FORM_S, mark)
        pair.finish(again, 60)
        return {
            "remote_told": milliseconds(killed_ns, max(s.ns for s in told)),
            "remote_restarted": milliseconds(killed_ns, max(s.ns for s in again)),
        }


def departure(how, row):
    def measure(launcher, bench):
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, (launcher, launcher))
            pair.start_both(FORM_S)
            time.sleep(0.3)
            mark = scratch.channel.mark()
            left_ns = pair.agents["B"].signal(how)
            again = wait_or_never(scratch.channel, pair.agents["A"], 2, "start", bench.never_s, mark, world=2)
            if isinstance(again, Never):
                return {row: again}
            pair.finish(again, 60)
            return {row: milliseconds(left_ns, max(s.ns for s in again))}

    return measure


def arrival(launcher, bench):
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, (launcher, launcher), options=["--rdzv-conf=last_call_timeout=1"])
        pair.start(0)
        pair.expect_world(2, FORM_S, 0)
        mark = scratch.channel.mark()
        pair.start(1, stamped=True)
        again = wait_or_never(scratch.channel, pair.agents["B"], 4, "start", bench.never_s, mark, world=4)
        if isinstance(again, Never):
            return {"arrival": again}
        from_ns = scratch.channel.select("exec")[0].ns
        pair.finish(again, 60)
        return {"arrival": milliseconds(from_ns, max(s.ns for s in again))}


# --------------------------------------------------------------------------- logs

LOG_WORKERS, LOG_BYTES = 4, 100


def damaged_lines(path, line_count):
    """(lines not found whole, lines found twice) of what the flood workers printed, behind their prefix."""
    expected = {}
    for rank in range(LOG_WORKERS):
        for number in range(line_count):
            text = b"%d %d " % (rank, number)
            line = b"[default%d]:" % rank + text + bytes([97 + number % 26]) * (LOG_BYTES - 1 - len(text))
            expected[line] = 0
    with open(path, "rb") as console:
        for line in console.read().split(b"\n"):
            if line in expected:
                expected[line] += 1
    return sum(1 for n in expected.values() if n == 0), sum(1 for n in expected.values() if n > 1)


def logs(launcher, bench):
    line_count = 200000
    with jobs.Scratch() as scratch:
        console = scratch.path("console")
        ours, theirs = os.pipe()
        with open(console, "wb") as out:
            reader = scratch.start("reader", ["cat"], stdin=ours, stdout=out)
        os.close(ours)
        worker = ["--no-python", jobs.program("flood_worker"), scratch.channel.path, str(line_count), str(LOG_BYTES)]
        arguments = ["--standalone", f"--nproc-per-node={LOG_WORKERS}", "--tee=3", f"--log-dir={scratch.path('logs')}"]
        process = scratch.run(launcher, *arguments, *worker, stdout=theirs)
        os.close(theirs)
        process.expect(300, 0)
        reader.expect(60, 0)
        started_ns = min(s.ns for s in scratch.channel.select("start"))
        missing, doubled = damaged_lines(console, line_count)
        megabytes = LOG_WORKERS * line_count * LOG_BYTES / 1e6
        return {
            "log_rate": megabytes / ((process.ended_ns - started_ns) / 1e9),
            "log_lost": missing,
            "log_doubled": doubled,
        }


RUN = "{launcher} --standalone --nproc-per-node="
NODE = "{launcher} --nnodes=1:2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:PORT stamp_worker"
FIXED = NODE.replace("1:2", "2")
STAMP = " --no-python stamp_worker CHANNEL"

EXPERIMENTS = [
    *(
        Experiment(
            start(n),
            [
                Row(f"start_{n}", f"exec to first worker's first instruction, {n} worker{'s' * (n > 1)}", "ms"),
                Row(f"start_{n}_last", f"exec to last worker's first instruction, {n} worker{'s' * (n > 1)}", "ms"),
            ],
            RUN + str(n) + STAMP,
            runs=7,
            quick_runs=3,
        )
        for n in (1, 4, 8)
    ),
    Experiment(help_time, [Row("help", "`--help`, exec to reaped", "ms")], "{launcher} --help", quick_runs=1),
    Experiment(
        memory,
        [
            Row("memory_agent", "agent's memory (PSS), 4 workers", "MiB"),
            Row("memory_all", "agent and its helpers (PSS), 4 workers", "MiB"),
            Row("threads", "agent's threads", ""),
        ],
        RUN + "4" + STAMP + "; Pss of /proc/PID/smaps_rollup",
        runs=3,
    ),
    Experiment(
        failure,
        [
            Row("failure_told", "a worker is killed: all 3 others have SIGTERM", "ms"),
            Row("failure_restarted", "a worker is killed: all 4 run again (C)", "ms"),
        ],
        RUN + "4 --max-restarts=1" + STAMP + "; kill -KILL of rank 1",
        runs=9,
        quick_runs=3,
    ),
    Experiment(
        gloo_failure,
        [Row("gloo_restarted", "a worker is killed: the PyTorch gloo group of 4 has formed again", "s")],
        RUN + "4 --max-restarts=1 gloo_worker.py; kill -KILL of one",
        runs=3,
        torch_workers=True,
        peer_runs=2,
    ),
    Experiment(
        agent_killed,
        [Row("orphans", "agent SIGKILLed: last of 4 workers gone", "ms")],
        RUN + "4" + STAMP + "; kill -KILL of the agent",
        peer_runs=1,
    ),
    Experiment(formation, [Row("formation", "2 nodes x 2 workers: exec to all running", "ms")], FIXED, quick_runs=2),
    Experiment(
        remote_failure,
        [
            Row("remote_told", "a worker of node B is killed: A's workers have SIGTERM", "ms"),
            Row("remote_restarted", "a worker of node B is killed: all 4 run again", "ms"),
        ],
        FIXED.replace("stamp_worker", "--max-restarts=1 stamp_worker") + "; kill -KILL of a worker of B",
        quick_runs=2,
    ),
    Experiment(
        departure(signal.SIGKILL, "departure_kill"),
        [Row("departure_kill", "1:2 job, agent B SIGKILLed: A's workers run again as a world of 2", "ms")],
        NODE + "; kill -KILL of B's agent",
        peer_runs=1,
    ),
    Experiment(
        departure(signal.SIGTERM, "departure_term"),
        [Row("departure_term", "1:2 job, agent B SIGTERMed: A's workers run again as a world of 2", "ms")],
        NODE + "; kill -TERM of B's agent",
        peer_runs=1,
    ),
    Experiment(
        arrival,
        [Row("arrival", "1:2 job, B arrives: B's exec to a world of 4", "ms")],
        NODE.replace(" stamp", " --rdzv-conf=last_call_timeout=1 stamp") + "; B is started when A's workers run",
        peer_runs=1,
    ),
    Experiment(
        logs,
        [
            Row("log_rate", "`--tee 3` into a pipe, 4 workers x 200,000 lines x 100 bytes", "MB/s", True),
            Row("log_lost", "... lines not found whole on the console", "lines"),
            Row("log_doubled", "... lines printed twice", "lines"),
        ],
        RUN + "4 --tee=3 --log-dir=LOGS --no-python flood_worker CHANNEL 200000 100 | cat > CONSOLE",
        runs=3,
    ),
]

PROMISES = [
    Promise("exec to first worker's first instruction, 8 workers", ["start_8"], 10, "ms"),
    Promise("the same, sooner than torchrun", ["start_8"], 100, is_ratio=True),
    Promise("`muster run --help`", ["help"], 2, "ms"),
    Promise("agent's memory (PSS), 4 workers", ["memory_agent"], 4, "MiB"),
    Promise("agent's threads", ["threads"], 1),
    Promise("a worker's death reaches the others as SIGTERM", ["failure_told"], 2, "ms"),
    Promise("a group of C programs runs again after a worker's death", ["failure_restarted"], 20, "ms"),
    Promise("a node's death or departure: the rest run again", ["departure_kill", "departure_term"], 200, "ms"),
    Promise("`--tee`: lines lost or doubled on the console", ["log_lost", "log_doubled"], 0, "lines"),
]
