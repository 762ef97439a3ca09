"""Workers that die: who is told, what is restarted, what is reported, and that nobody outlives the job."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import time

import jobs

AT_ONCE_S = 2  # bound on the least of many times, which take milliseconds; torchrun needs seconds


def start_group(scratch, nproc, *options, worker=None, rendezvous=("--standalone",)):
    process = scratch.run(
        "muster", *rendezvous, f"--nproc-per-node={nproc}", *options, *(worker or jobs.worker(scratch))
    )
    return process, by_rank(scratch.channel.expect(nproc, "start", 60, attempt=0))


def by_rank(stamps):
    return {s.rank: s for s in stamps}


def seconds_since(start_ns, stamps):
    return (max(s.ns for s in stamps) - start_ns) / 1e9


def case_death_restarts_the_group():
    """A worker's death, however it dies, reaches the others as SIGTERM at once, and all run again. One line says of whom."""
    jobs.isolate()
    told_s, again_s = [], []
    for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMIN + 1, signal.SIGRTMIN + 7):
        with jobs.Scratch() as scratch:
            process, group = start_group(scratch, 4, "--max-restarts=2")
            for attempt in (0, 1):
                victim = group[2]
                killed_ns = time.monotonic_ns()
                os.kill(victim.pid, how)
                told = scratch.channel.expect(3, "signal", jobs.SOON_S, attempt=attempt, signo=int(signal.SIGTERM))
                group = by_rank(scratch.channel.expect(4, "start", jobs.SOON_S, attempt=attempt + 1))
                told_s.append(seconds_since(killed_ns, told))
                again_s.append(seconds_since(killed_ns, group.values()))
                jobs.check(sorted(group) == [0, 1, 2, 3], f"ranks {sorted(group)}")
                line = re.search(rf"rank 2 \(pid {victim.pid}\): (killed by|exited with) .*Restart {attempt + 1} of 2", process.err())
                jobs.check(line, process.tail())
            for s in group.values():
                jobs.tell_exit(s.pid, 0)
            process.expect(jobs.SOON_S, 0)
            scratch.expect_nobody()
    jobs.check(min(told_s) < AT_ONCE_S, f"SIGTERM came late: {told_s}")
    jobs.check(min(again_s) < AT_ONCE_S, f"the restart came late: {again_s}")


def case_restarts_run_out():
    """--max-restarts=N starts the group N + 1 times, then the launcher exits 1."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process = scratch.run(
            "muster", "--standalone", "--nproc-per-node=2", "--max-restarts=3", *jobs.worker(scratch, "--exit", "5")
        )
        process.expect(30, 1)
        attempts = sorted({s.attempt for s in scratch.channel.select("start")})
        jobs.check(attempts == [0, 1, 2, 3], f"attempts {attempts}")
        scratch.expect_nobody()


def case_background_processes_end_after_a_success():
    """After a success what workers left behind gets SIGTERM, with its name in the log; --detached=leave spares sessions."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        deed = "trap 'echo kept > kept; exit' TERM; touch listens; while :; do sleep 0.01; done"
        scratch.write("deed", deed)
        script = "sh deed & setsid sleep 3333 & until test -e listens; do sleep 0.01; done"
        for leave in (False, True):
            options = ["--standalone", f"--detached={'leave' if leave else 'stop'}", "--no-python", "sh", "-c", script]
            process = scratch.run_to_end("muster", *options, code=0)
            jobs.check(os.path.exists(scratch.path("kept")), "SIGTERM did not come first")
            os.unlink(scratch.path("kept"))
            os.unlink(scratch.path("listens"))
            count = "[12]" if leave else "[23]"  # and maybe the child that `deed` waits for
            process.wait_line(f"{count} process(es)? that they started still runs?: SIGTERM now", 0)
            process.wait_line(r"pid \d+ of rank 0: sh deed", 0)
            if leave:
                process.wait_line(r"pid \d+ of rank 0 runs on after the job: sleep 3333", 0)
                left = [jobs.command_line(pid).strip() for pid in scratch.pids()]
                jobs.check("sleep 3333" in left and "sh deed" not in left, f"{left}")
            else:
                scratch.expect_nobody()


def case_detached_processes_are_left_alone():
    """--detached=leave: one that prints for ever holds up nothing, a quiet one raises no warning; nor is either killed at once."""
    jobs.isolate()
    for deed, patience in (("while :; do echo on and on; sleep 0.01; done", 30), ("sleep 3333", 30), ("sleep 3333", 0)):
        with jobs.Scratch() as scratch:
            deed = scratch.write("deed", f"trap '' PIPE; touch listens; {deed}")
            script = f"setsid sh {deed} & until test -e listens; do sleep 0.01; done; echo last"
            options = ["--standalone", "--detached=leave", f"--shutdown-timeout={patience}", "--merge-logs", "--no-python", "sh", "-c", script]
            process = scratch.run_to_end("muster", *options, code=0)
            process.wait_line(r"pid \d+ of rank 0 runs on after the job: sh .*deed", 0)
            jobs.check("still held open" not in process.err(), process.tail())
            jobs.check("last" in process.out(), process.tail())
            jobs.check(any("deed" in jobs.command_line(pid) for pid in scratch.pids()), f"{scratch.pids()}")


def case_error_that_dies_slowly_is_the_root_cause():
    """A worker that records its error and then needs long to die is the cause; those who fail meanwhile are not."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        record = "{ echo '{\"message\": \"mine\", \"timestamp\": '$(date +%s)'}'; } > $TORCHELASTIC_ERROR_FILE"
        # Rank 0 ends by the SIGTERM that follows rank 1's death, as a Python worker does at the end of the interpreter.
        cause = f"{record}; touch told; exec sleep 99"
        victim = "until test -e told; do sleep 0.01; done; sleep 0.1; exit 5"
        script = f"if [ $RANK = 0 ]; then {cause}; else {victim}; fi"
        process = scratch.run("muster", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", script)
        process.expect(jobs.SOON_S, 1)
        jobs.check(root_cause(process) == (0, -15), process.tail())
        process.wait_line("stopped by the launcher with SIGTERM while it was ending after an error of its own", 0)


def case_stopped_and_early_ranks_are_named():
    """The report names a rank that is stopped and one that had ended well; the stopped one is woken to end at once."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, group = start_group(scratch, 3)
        jobs.tell_exit(group[2].pid, 0)
        while jobs.alive(group[2].pid):
            time.sleep(0.002)
        jobs.stop(group[1].pid)
        jobs.tell_exit(group[0].pid, 4)
        process.expect(jobs.SOON_S, 1)  # 30 s with SIGKILL for the stopped one
        jobs.check(root_cause(process) == (0, 4), process.tail())
        process.wait_line(r"others    : rank 2 had ended (just|\d+\.\d s) before, with exit code 0", 0)
        process.wait_line(r"others    : rank 1 is stopped \(SIGSTOP\)", 0)
        scratch.channel.expect(1, "signal", jobs.SOON_S, pid=group[1].pid, signo=int(signal.SIGTERM))


def outcome_of(scratch, *options, code=None, kill=None):
    """The file of a job with one worker that fails by itself (rank 1, if there is a second) and one that waits."""
    path = scratch.path("outcome.json")
    with open(path, "w", encoding="ascii") as earlier:
        earlier.write('{"kind": "muster outcome", "version": 1}')
    process = scratch.run("muster", "--standalone", f"--outcome={path}", *options)
    if kill is not None:
        scratch.channel.expect(2, "start", jobs.SOON_S)
        process.signal(kill)
    process.expect(jobs.SOON_S, code)
    scratch.expect_nobody()
    with open(path, encoding="ascii") as text:
        told = json.load(text)
    for worker in told["workers"]:
        if worker["pid"] is not None:
            times = told["started"], worker["started"], worker["ended"], told["ended"]
            jobs.check(list(times) == sorted(times), f"{times} of {worker}")
    return told


def case_outcome_tells_programs():
    """--outcome: result, root cause and every worker as JSON; the guardian writes it for a launcher that was killed."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        script = "if [ $RANK = 1 ]; then echo '{\"message\": \"mine\", \"timestamp\": 5}' > $TORCHELASTIC_ERROR_FILE; exit 3; fi; exec sleep 99"
        told = outcome_of(scratch, "--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c", script, code=1)
        first, second = told["workers"]
        jobs.check((told["version"], told["result"], told["exit_code"], told["restarts"]) == (1, "failed", 1, 1), f"{told}")
        root = told["root_cause"]
        jobs.check((root["rank"], root["host"], root["exitcode"]) == (1, told["host"], 3), f"{told}")
        jobs.check((first["state"], first["exitcode"], first["signal"]) == ("stopped", -15, "SIGTERM"), f"{first}")
        jobs.check((second["state"], second["exitcode"], second["message"]) == ("failed", 3, "mine"), f"{second}")
        jobs.check(second["timestamp"] == 5 and second["error"]["message"] == "mine", f"{second}")
        told = outcome_of(scratch, "--no-python", "true", code=0)
        jobs.check((told["result"], told["root_cause"]) == ("success", None), f"{told}")
        jobs.check((told["workers"][0]["exitcode"], told["workers"][0]["state"]) == (0, "succeeded"), f"{told}")
        broken = scratch.write("broken", "#!/no/such/interpreter\n", 0o755)
        told = outcome_of(scratch, "--no-python", broken, code=1)
        jobs.check(told["result"] == "not_started" and "broken" in told["message"], f"{told}")
        jobs.check(told["workers"][0]["exitcode"] is None, f"{told}")
        for wrong in (["no-such-script.py"], ["--nproc-per-node=many", "--no-python", "true"], ["--max-restarts=-1", "x"]):
            told = outcome_of(scratch, *wrong, code=1)
            jobs.check((told["result"], told["exit_code"], told["workers"]) == ("not_started", 1, []), f"{told}")
            jobs.check(wrong[0].rpartition("=")[2] in told["message"], f"{told}")
        path = scratch.write("train.py", "import torch\n")
        for options in (["--no-python", "touch", scratch.path("started")], ["no-such-script.py"]):
            process = scratch.run_to_end("muster", "--standalone", f"--outcome={path}", *options, code=1)
            process.wait_line("is a file already, and not one that --outcome wrote", 0)
            with open(path, encoding="ascii") as text:
                jobs.check(text.read() == "import torch\n", "a file of somebody else was overwritten")
        jobs.check(not os.path.exists(scratch.path("started")), "it was refused, and started all the same")
    for number, result in ((signal.SIGTERM, "signalled"), (signal.SIGKILL, "launcher_killed")):
        with jobs.Scratch() as scratch:
            code = 1 if number == signal.SIGTERM else -9
            told = outcome_of(scratch, "--nproc-per-node=2", *jobs.worker(scratch), code=code, kill=number)
            jobs.check((told["result"], told["world_size"]) == (result, 2), f"{told}")
            jobs.check([w["exitcode"] for w in told["workers"]] == [-number, -number], f"{told}")
            pids = sorted(s.pid for s in scratch.channel.select("start"))
            jobs.check(sorted(w["pid"] for w in told["workers"]) == pids, f"{told}")
            jobs.check(all(w["state"] == "stopped" for w in told["workers"]), f"{told}")


def case_outcome_blames_nobody_who_was_told_to_end():
    """A launcher is killed while its workers end by its order: the guardian names no root cause."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path, pid_path = scratch.path("outcome.json"), scratch.path("pid")
        wait = "while :; do sleep 0.01; done"
        script = f"if [ $RANK = 1 ]; then trap 'exit 3' TERM; echo $$$$ > {pid_path}.1; mv {pid_path}.1 {pid_path}; else trap '' TERM; touch {pid_path}.0; fi; {wait}"
        process = scratch.run("muster", "--standalone", f"--outcome={path}", "--nproc-per-node=2", "--no-python", "sh", "-c", script)
        deadline = time.monotonic() + jobs.SOON_S
        while not (os.path.exists(pid_path) and os.path.exists(f"{pid_path}.0")):
            jobs.check(time.monotonic() < deadline, process.tail())
            time.sleep(0.002)
        with open(pid_path, encoding="ascii") as text:
            pid = int(text.read())
        process.signal(signal.SIGTERM)
        while jobs.alive(pid):
            jobs.check(time.monotonic() < deadline, process.tail())
            time.sleep(0.002)
        process.signal(signal.SIGKILL)
        process.expect(jobs.SOON_S, -9)
        scratch.expect_nobody()
        with open(path, encoding="ascii") as text:
            told = json.load(text)
        jobs.check((told["result"], told["root_cause"]) == ("launcher_killed", None), f"{told}")
        jobs.check([w["state"] for w in told["workers"]] == ["stopped", "stopped"], f"{told}")


def case_outcome_on_a_small_disk():
    """Where there is no room for the workers, the outcome has the job alone; it tells of no launcher that was killed."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = os.path.join(scratch.small_file_system("size=4k"), "outcome.json")
        options = ["--standalone", f"--outcome={path}", "--nproc-per-node=16", "--no-python", "true"]
        process = scratch.run_to_end("muster", *options, code=0)
        process.wait_line("the outcome cannot be written to", 0)
        process.wait_line("the outcome is there, without its workers", 0)
        with open(path, encoding="ascii") as text:
            told = json.load(text)
        jobs.check((told["result"], told["exit_code"], told["workers"]) == ("success", 0, []), f"{told}")


def case_restarts_pause():
    """Three restarts carry the workers over a fault of 1.5 s, by default; a signal ends a pause at once."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        fault = "date +%s%3N >> attempts; test $(wc -l < attempts) -ge 4"
        options = ["--standalone", "--max-restarts=3", "--no-python", "sh", "-c"]
        process = scratch.run("muster", *options, fault, env=scratch.env(MUSTER_RESTART_BACKOFF=""))
        process.expect(jobs.SOON_S, 0)
        with open(scratch.path("attempts"), encoding="ascii") as text:
            attempts_ms = [int(line) for line in text]
        jobs.check(attempts_ms[3] - attempts_ms[0] >= 1450, f"attempts at {attempts_ms} ms")  # 0.5 and 1 s, by another clock
        jobs.check(process.err().count("restarting in ") == 2, f"the first restart waits not, the others do\n{process.tail()}")
        process.wait_line(r"restarting in 1\.0 s: 3 attempts have failed", 0)

        options[1] = "--max-restarts=99"
        process = scratch.run("muster", "--restart-backoff=1000", *options, "exit 1")
        process.wait_line(r"restarting in 2\.0 s", jobs.SOON_S)
        process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S, 1)
        jobs.check("restarting in 4.0 s" not in process.err(), process.tail())
        scratch.expect_nobody()


def case_gloo_group_restarts():
    """A killed PyTorch gloo worker: the restarted group forms, three times over, with default options."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        script = [os.path.join(jobs.HERE, "gloo_worker.py"), scratch.channel.path]
        process = scratch.run("muster", "--standalone", "--nproc-per-node=2", "--max-restarts=3", *script)
        for attempt in range(4):
            ready = by_rank(scratch.channel.expect(2, "ready", 90, attempt=attempt))
            formed = scratch.channel.select("formed", attempt=attempt)
            jobs.check([s.world for s in formed] == [2, 2], f"formed {formed}")
            if attempt < 3:
                os.kill(ready[attempt % 2].pid, signal.SIGKILL)
        for s in ready.values():
            jobs.tell_exit(s.pid, 0)
        process.expect(60, 0)
        scratch.expect_nobody()


def case_restart_meets_a_fresh_store():
    """Nothing that an earlier attempt wrote is visible to the workers of the next."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        script = [os.path.join(jobs.HERE, "keys_worker.py"), scratch.channel.path]
        process = scratch.run("muster", "--standalone", "--nproc-per-node=2", "--max-restarts=3", *script)
        for attempt in range(4):
            ready = by_rank(scratch.channel.expect(2, "ready", 30, attempt=attempt))
            looked = scratch.channel.expect(1, "keys", jobs.SOON_S, attempt=attempt)[0]
            jobs.check(looked.stale == 0, f"attempt {attempt} sees {looked.stale} keys of an earlier one")
            jobs.tell_exit(ready[1].pid, 1 if attempt < 3 else 0)
        jobs.tell_exit(ready[0].pid, 0)
        process.expect(30, 0)


def root_cause(process):
    """(rank, exit code) of the root cause in the failure report."""
    text = process.err()
    jobs.check("Root Cause (first observed failure)" in text, f"no failure report\n{process.tail()}")
    block = text.partition("Root Cause (first observed failure)")[2]
    rank = re.search(r"rank\s*: (\d+) \(local_rank: (\d+)\)", block)
    code = re.search(r"exitcode\s*: (-?\d+) \(pid: (\d+)\)", block)
    jobs.check(rank and code, f"the root cause has no rank or no exit code\n{process.tail()}")
    return int(rank[1]), int(code[1])


def case_first_failure_is_the_root_cause():
    """Of two workers that fail 30 ms apart the first is named, whatever their ranks and whoever ignores SIGTERM."""
    jobs.isolate()
    for first, second in ((1, 0), (0, 1), (3, 0), (2, 1)):
        for options in ([], ["--ignore"]):
            with jobs.Scratch() as scratch:
                process, group = start_group(scratch, 4, worker=jobs.worker(scratch, *options))
                jobs.tell_exit(group[first].pid, 3)
                scratch.channel.expect(1, "exit", jobs.SOON_S)
                time.sleep(0.03)  # the promise is about failures 30 ms apart
                for rank in (second, *(r for r in group if r not in (first, second))):
                    try:
                        jobs.tell_exit(group[rank].pid, 4)
                    except ProcessLookupError:
                        pass  # stopped by the launcher by now
                process.expect(40, 1)
                found = root_cause(process)
                jobs.check(found == (first, 3), f"root cause {found}, expected {(first, 3)}\n{process.tail()}")


REPORT_LINES = [
    r"^=+$",
    r"^.+ FAILED$",
    r"^-+$",
    r"^Failures:$",
    r"^Root Cause \(first observed failure\):$",
    r"^\[0\]:$",
    r"^  time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d$",
    r"^  host      : \S+$",
    r"^  rank      : 1 \(local_rank: 1\)$",
    r"^  exitcode  : 3 \(pid: \d+\)",
    r"^  error_file: ",
    r"^  traceback : ",
    r"^=+$",
]


def case_report_has_torchruns_layout():
    """The failure report has torchelastic's fields in their order, and shows the end of the worker's stderr."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        script = scratch.write("fails.sh", 'echo "cannot open /data/shard-7: stale handle" >&2\nexit 3\n')
        command = f'if [ "$RANK" = 1 ]; then exec sh {script}; fi; exec sleep 60'
        process = scratch.run("muster", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", command)
        process.expect(jobs.SOON_S, 1)
        rest = process.err().splitlines()
        for pattern in REPORT_LINES:
            index = next((i for i, line in enumerate(rest) if re.search(pattern, line)), None)
            jobs.check(index is not None, f"no line like {pattern} (in this order)\n{process.tail()}")
            rest = rest[index + 1 :]
        block = process.err().partition("Root Cause")[2]
        jobs.check("stale handle" in block, f"the worker's last words are not in the report\n{process.tail()}")
        scratch.expect_nobody()


def case_report_names_the_signal():
    """A worker killed by a signal is reported with the signal's name, and its victims apart from it."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, group = start_group(scratch, 3)
        os.kill(group[2].pid, signal.SIGSEGV)
        process.expect(jobs.SOON_S, 1)
        jobs.check(root_cause(process) == (2, -11), f"{root_cause(process)}\n{process.tail()}")
        block = process.err().partition("Root Cause")[2]
        jobs.check("SIGSEGV" in block, f"SIGSEGV is not named\n{process.tail()}")


def case_processor_time_is_the_cause():
    """A hard limit of processor time (ulimit -t) is named, and not the memory."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        done = subprocess.run([jobs.muster_binary(), "run", "--standalone", "--no-python", "sh", "-c", "while :; do :; done"], env=scratch.env(),
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)), capture_output=True, text=True, check=False)
        jobs.check(done.returncode == 1 and "processor time that a process may take here (ulimit -t: 1 s)" in done.stderr, done)
        jobs.check("memory" not in done.stderr, done)
        scratch.expect_nobody()


WATCHED = """
import os, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=0.2 if os.environ["RANK"] == "1" else 60):
    time.sleep(60)
"""


def case_watchdog_kills_a_stuck_worker():
    """PyTorch's file timer: a worker whose timer has run out is killed and named as the cause; agent and report go on."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        script = scratch.write("watched.py", WATCHED)
        env = scratch.env(TORCHELASTIC_ENABLE_FILE_TIMER=1)
        process = scratch.run("muster", "--standalone", "--nproc-per-node=2", script, env=env)
        process.expect(60, 1)
        jobs.check(root_cause(process) == (1, -9), process.tail())
        jobs.check("its watchdog timer ran out" in process.err(), process.tail())
        pipes = [name for name in os.listdir(scratch.path("tmp")) if name.startswith("watchdog")]
        jobs.check(not pipes, f"left in the temporary folder: {pipes}")
        scratch.expect_nobody()


RECORDED = '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback: boom", "timestamp": "7"}}}'


def case_error_files_are_read():
    """A worker's error file is in the report, and its content, with the exit code, in the launcher's own error file."""
    jobs.isolate()
    for attempt in (0, 1):
        with jobs.Scratch() as scratch:
            source = scratch.write("error.json", RECORDED)
            when = f'[ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = {attempt} ]'
            command = f'if {when}; then cp {source} "$TORCHELASTIC_ERROR_FILE"; exit 3; fi; '
            command += f'[ "$RANK" = 1 ] && [ {attempt} = 1 ] && exit 4; exec sleep 60'
            own = scratch.path("own.json")
            options = ["--standalone", "--nproc-per-node=2", f"--max-restarts={attempt}"]
            env = scratch.env(TORCHELASTIC_ERROR_FILE=own)
            process = scratch.run("muster", *options, "--no-python", "sh", "-c", command, env=env)
            process.expect(jobs.SOON_S, 1)
            jobs.check(root_cause(process) == (1, 3), process.tail())
            block = process.err().partition("Root Cause")[2]
            jobs.check("Traceback: boom" in block and f"attempt_{attempt}/1/error.json" in block, process.tail())
            with open(own, encoding="utf-8") as text:
                said = json.load(text)
            jobs.check(said["message"]["errorCode"] == 3, f"{said}")
            jobs.check(said["message"]["message"] == "ValueError: boom", f"{said}")


def recorded(launcher):
    """What the failure report says of a C program that records a reported error, and of one that crashes."""
    for how, code, text in (("error", 3, 'shard 7: checksum "ca\u00e9" is wrong'), ("crash", -11, "SIGSEGV")):
        with jobs.Scratch() as scratch:
            options = ["--standalone", "--nproc-per-node=2", f"--log-dir={scratch.path('logs')}", "--no-python"]
            process = scratch.run(launcher, *options, jobs.program("record_worker"), how)
            process.expect(60, 1)
            jobs.check(root_cause(process) == (1, code), process.tail())
            block = process.err().partition("Root Cause")[2]
            for word in (text, "Backtrace", "load_shard", "attempt_0/1/error.json"):
                jobs.check(word in block, f"{launcher}, {how}: {word} is not in the report\n{process.tail()}")


def case_c_programs_record_their_errors():
    """muster_record: the report has a C program's own message, or its signal, with a backtrace; torchrun's has it too."""
    jobs.isolate()
    recorded("muster")
    if jobs.torch_version():
        recorded("torchrun")


def case_agent_killed_leaves_nobody():
    """The agent is SIGKILLed: workers and all their descendants are gone at once; nobody else is touched."""
    jobs.isolate()
    with jobs.Scratch() as outside:
        sentinel = outside.start("sentinel", [jobs.program("stamp_worker"), outside.channel.path])
        outside.channel.expect(1, "start", jobs.SOON_S)
        for options in ([], ["--ignore"], ["--ignore", "--hostile"]):
            for _ in range(3):
                with jobs.Scratch() as scratch:
                    process, _ = start_group(scratch, 4, worker=jobs.worker(scratch, *options))
                    if "--hostile" in options:
                        scratch.channel.expect(8, "descendant", jobs.SOON_S)
                    process.signal(signal.SIGKILL)
                    process.expect(jobs.SOON_S, -9)
                    scratch.expect_nobody()
        jobs.check(sentinel.wait(0) is None, "a process that is not the job's was killed")
        jobs.check(not outside.channel.select("signal"), "a process that is not the job's was signalled")


def case_guardian_killed_leaves_nobody():
    """Killing any one of the launcher's own processes, whichever it is, never leaves workers behind."""
    jobs.isolate()
    worker = os.path.realpath(jobs.program("stamp_worker"))
    with jobs.Scratch() as scratch:
        process, _ = start_group(scratch, 2)
        helpers = [p for p in scratch.pids() if jobs.executable(p) != worker and p != process.pid]
        process.signal(signal.SIGKILL)
        scratch.expect_nobody()
    for index in range(len(helpers)):
        with jobs.Scratch() as scratch:
            process, group = start_group(scratch, 2, worker=jobs.worker(scratch, "--hostile"))
            helpers = [p for p in scratch.pids() if jobs.executable(p) != worker and p != process.pid]
            os.kill(sorted(helpers)[index], signal.SIGKILL)
            for s in group.values():
                try:
                    jobs.tell_exit(s.pid, 0)
                except ProcessLookupError:
                    pass
            process.expect(40)
            scratch.expect_nobody()


GUARDIAN_KILLED = r"the guardian process \d+, which holds the workers, was killed by SIGKILL"


def kill_guardian(group):
    """The parent of the workers; returns its process id."""
    (guardian,) = {jobs.parent(s.pid) for s in group.values()}
    os.kill(guardian, signal.SIGKILL)
    return guardian


def case_guardian_killed_restarts_the_group():
    """A guardian that is killed costs one attempt: another one takes its place, and the workers run again."""
    jobs.isolate()
    native = ("--nnodes=1", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{jobs.free_port()}", "--rdzv-id=guardian")
    for rendezvous in (("--standalone",), native):
        with jobs.Scratch() as scratch:
            process, group = start_group(scratch, 2, "--max-restarts=2", rendezvous=rendezvous)
            guardians = set()
            for attempt in (1, 2):
                guardians.add(kill_guardian(group))
                group = by_rank(scratch.channel.expect(2, "start", jobs.SOON_S, attempt=attempt))
                jobs.check(sorted(scratch.pids()) == sorted([process.pid, jobs.parent(group[0].pid), group[0].pid, group[1].pid]),
                           f"left over: {scratch.pids()}")
            jobs.check(len(guardians | {jobs.parent(group[0].pid)}) == 3, f"guardians {guardians}")
            for s in group.values():
                jobs.tell_exit(s.pid, 0)
            process.expect(jobs.SOON_S, 0)
            process.wait_line(GUARDIAN_KILLED, 0, times=2)
            process.wait_line("another guardian process .* has taken its place; this node's workers have died", 0, times=2)
            scratch.expect_nobody()


def case_guardian_killed_without_restarts_is_reported():
    """The last attempt that a guardian's death may cost ends the job, with the reason in report and outcome."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.path("outcome")
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", f"--outcome={path}"]
        process = scratch.run("muster", *options, *jobs.worker(scratch), env=scratch.env(LOGLEVEL="INFO"))
        for attempt in (0, 1):
            process.wait_line("worker started", jobs.SOON_S, times=2 * (attempt + 1))  # so that their pids are known
            kill_guardian(by_rank(scratch.channel.expect(2, "start", jobs.SOON_S, attempt=attempt)))
        process.expect(jobs.SOON_S, 1)
        reason = "killed by SIGKILL (Killed): the launcher's guardian process, which held it, was killed"
        jobs.check(process.err().count(f"status    : {reason}") == 2 and root_cause(process) == (0, -9), process.tail())
        with open(path, encoding="utf-8") as text:
            told = json.load(text)
        jobs.check((told["result"], told["restarts"], told["root_cause"]["exitcode"]) == ("failed", 1, -9), f"{told}")
        jobs.check([w["status"] for w in told["workers"]] == [reason, reason], f"{told}")
        scratch.expect_nobody()


def case_guardian_killed_between_attempts_costs_none():
    """Where no worker has died with it, another guardian takes its place and nothing is charged; a success stays one."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        options = ["--standalone", "--max-restarts=3", "--restart-backoff=9", "--no-python", "sh", "-c"]
        process = scratch.run("muster", *options, "echo $PPID; test $TORCHELASTIC_RESTART_COUNT = 3", env=scratch.env(LOGLEVEL="INFO"))
        process.wait_line(r"restarting in 1\.0 s", jobs.SOON_S)  # the third start
        guardian = int(process.out().split()[-1])
        os.kill(guardian, signal.SIGKILL)
        process.expect(jobs.SOON_S, 0)
        said = process.out().split()
        jobs.check(len(said) == 4 and said[:3] == 3 * [str(guardian)] and said[3] != said[0], f"guardians {said}")
        process.wait_line(GUARDIAN_KILLED, 0)
        scratch.expect_nobody()
    with jobs.Scratch() as scratch:
        deaf = "(trap '' TERM; touch listens; while :; do sleep 0.01; done) & until test -e listens; do sleep 0.01; done; echo $PPID"
        process = scratch.run("muster", "--standalone", "--no-python", "sh", "-c", deaf)
        process.wait_line("SIGTERM now", jobs.SOON_S)
        os.kill(int(process.out().split()[0]), signal.SIGKILL)
        process.expect(jobs.SOON_S, 0)
        scratch.expect_nobody()


def case_guardian_of_a_launcher_with_children_is_killed():
    """A launcher that had children before it was one cannot tell orphans from them: the job ends with its guardian."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        before = ["sh", "-c", 'sleep 3333 & exec "$@"', "sh"]
        options = ["--standalone", "--max-restarts=3", "--no-python", "sh", "-c", "echo $PPID; exec sleep 4444"]
        process = scratch.run("muster", *options, inside=before, env=scratch.env(LOGLEVEL="INFO"))
        process.wait_line("worker started", jobs.SOON_S)
        while not process.out().endswith("\n"):
            time.sleep(0.002)
        os.kill(int(process.out()), signal.SIGKILL)
        process.expect(jobs.SOON_S, 1)
        process.wait_line("no other guardian process can take its place: this process had children of its own", 0)
        left = [jobs.command_line(pid).strip() for pid in scratch.pids()]
        jobs.check(left == ["sleep 3333"], f"{left}")


def case_launcher_with_another_guardian_is_killed():
    """A guardian that has taken another's place ends the workers of a launcher that is killed, and writes the outcome."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.path("outcome")
        process, group = start_group(scratch, 2, "--max-restarts=1", f"--outcome={path}", worker=jobs.worker(scratch, "--hostile"))
        kill_guardian(group)
        group = by_rank(scratch.channel.expect(2, "start", jobs.SOON_S, attempt=1))
        process.signal(signal.SIGKILL)
        process.expect(jobs.SOON_S)
        scratch.expect_nobody()
        with open(path, encoding="utf-8") as text:
            told = json.load(text)
        jobs.check(told["result"] == "launcher_killed", f"{told}")
        jobs.check(sorted(w["pid"] for w in told["workers"]) == sorted(s.pid for s in group.values()), f"{told}")
        jobs.check(os.listdir(scratch.path("tmp")) == [], f"left behind: {os.listdir(scratch.path('tmp'))}")


def case_group_stop_leaves_nobody():
    """Descendants of a stopped group (double-forked, setsid, all signals blocked) end with it, restart or not."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, group = start_group(scratch, 2, "--max-restarts=1", worker=jobs.worker(scratch, "--hostile"))
        first = {s.pid for s in scratch.channel.expect(4, "descendant", jobs.SOON_S, attempt=0)}
        jobs.tell_exit(group[0].pid, 1)
        group = by_rank(scratch.channel.expect(2, "start", jobs.SOON_S, attempt=1))
        second = {s.pid for s in scratch.channel.expect(4, "descendant", jobs.SOON_S, attempt=1)}
        left = [pid for pid in first if jobs.alive(pid)]
        jobs.check(not left, f"descendants of attempt 0 live beside attempt 1: {left}")
        jobs.tell_exit(group[1].pid, 1)
        process.expect(jobs.SOON_S, 1)
        left = [pid for pid in second if jobs.alive(pid)]
        jobs.check(not left, f"descendants outlive the launcher: {left}")
    for code in (0, 3):
        with jobs.Scratch() as scratch:
            options = ["--shutdown-timeout=1", *([] if code else ["--detached=stop"])]
            process, group = start_group(scratch, 2, *options, worker=jobs.worker(scratch, "--hostile"))
            scratch.channel.expect(4, "descendant", jobs.SOON_S)
            for s in group.values():
                with contextlib.suppress(ProcessLookupError):  # the first failure stops the second
                    jobs.tell_exit(s.pid, code)
            process.expect(jobs.SOON_S, 1 if code else 0)
            scratch.expect_nobody()


def expect_said(process, *patterns):
    for pattern in patterns:
        jobs.check(re.search(pattern, process.err()), f"no line like {pattern}\n{process.tail()}")


def case_survivors_go_on():
    """--survivors=continue: others outlive a worker that fails, nothing is restarted, and one good end is a good end."""
    jobs.isolate()
    alone, endpoint = ("--standalone",), f"127.0.0.1:{jobs.free_port()}"
    muster = ("--rdzv-backend=muster", "--rdzv-id=one", f"--rdzv-endpoint={endpoint}", "--local-addr=127.0.0.1")
    ends = ((signal.SIGKILL, 0, alone), (signal.SIGRTMIN + 3, 0, alone), (signal.SIGKILL, 5, alone),
            (signal.SIGKILL, 0, muster))
    for how, last, rendezvous in ends:
        with jobs.Scratch() as scratch:
            options = ("--survivors=continue", "--max-restarts=2")
            process, group = start_group(scratch, 4, *options, rendezvous=rendezvous)
            os.kill(group[0].pid, how)
            process.wait_line(r"rank 0 has failed; 3 of 4 workers of this node go on", jobs.SOON_S)
            jobs.tell_exit(group[2].pid, 0)
            scratch.channel.expect(1, "exit", jobs.SOON_S, rank=2)
            jobs.tell_exit(group[1].pid, last)
            jobs.check(process.wait(0.1) is None, f"the launcher ended before the last worker\n{process.tail()}")
            jobs.tell_exit(group[3].pid, 0)
            process.expect(jobs.SOON_S, 0)
            failed = "2 of its 4 workers: failed ranks 0, 1$" if last else "1 of its 4 workers: failed rank 0$"
            expect_said(process, f"(?m){failed}")
            jobs.check("Root Cause" not in process.err(), f"a failure report\n{process.tail()}")
            jobs.check(not scratch.channel.select("signal"), "a survivor was told to end")
            jobs.check(len(scratch.channel.select("start")) == 4, "somebody was restarted")
            scratch.expect_nobody()


def case_no_survivor_is_a_failure():
    """--survivors=continue: when all fail the restarts count, and then comes the report with the first as its cause."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, group = start_group(scratch, 2, "--survivors=continue", "--max-restarts=1")
        for attempt in (0, 1):
            jobs.tell_exit(group[1].pid, 3)
            process.wait_line("rank 1 has failed", jobs.SOON_S, times=attempt + 1)
            jobs.tell_exit(group[0].pid, 4)
            if attempt == 0:
                group = by_rank(scratch.channel.expect(2, "start", jobs.SOON_S, attempt=1))
        process.expect(jobs.SOON_S, 1)
        found = root_cause(process)
        jobs.check(found == (1, 3), f"root cause {found}\n{process.tail()}")
        scratch.expect_nobody()


def case_survivors_are_stopped_by_signals():
    """--survivors=continue: a signal to the launcher ends the survivors as ever."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, group = start_group(scratch, 3, "--survivors=continue")
        os.kill(group[1].pid, signal.SIGKILL)
        process.wait_line("rank 1 has failed", jobs.SOON_S)
        process.signal(signal.SIGTERM)
        scratch.channel.expect(2, "signal", jobs.SOON_S, signo=int(signal.SIGTERM))
        process.expect(jobs.SOON_S, 1)
        scratch.expect_nobody()
