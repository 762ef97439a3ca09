"""Signals to the agent and the exit codes of the launcher."""

import os
import signal
import sys
import time

import jobs


def start_group(scratch, nproc, *options, worker=None, launcher="muster"):
    process = scratch.run(
        launcher, "--standalone", f"--nproc-per-node={nproc}", *options, *(worker or jobs.worker(scratch))
    )
    return process, scratch.channel.expect(nproc, "start", 60, attempt=0)


def case_signals_are_handed_over():
    """Each signal of --signals-to-handle reaches all workers as itself, and the launcher exits 1."""
    jobs.isolate()
    cases = [(n, []) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)]
    cases += [(n, ["--signals-to-handle=SIGTERM,SIGUSR1,SIGUSR2"]) for n in (signal.SIGUSR1, signal.SIGUSR2)]
    for number, options in cases:
        with jobs.Scratch() as scratch:
            process, starts = start_group(scratch, 4, *options)
            process.signal(number)
            told = scratch.channel.expect(4, "signal", jobs.SOON_S, signo=int(number))
            jobs.check({s.pid for s in told} == {s.pid for s in starts}, f"{number!r} reached {told}")
            process.expect(jobs.SOON_S, 1)
            jobs.check(len(scratch.channel.select("signal")) == 4, "a worker was signalled twice")
            jobs.check(number.name[3:] in process.err() or str(int(number)) in process.err(), process.tail())
            scratch.expect_nobody()


def case_unhandled_signals_leave_nobody():
    """A signal that is not listed kills the launcher as it would any program, and no worker survives that."""
    jobs.isolate()
    for number, options in ((signal.SIGUSR1, []), (signal.SIGHUP, ["--signals-to-handle=SIGTERM"])):
        with jobs.Scratch() as scratch:
            process, _ = start_group(scratch, 3, *options)
            process.signal(number)
            process.expect(jobs.SOON_S, -int(number))
            scratch.expect_nobody()


def case_blocked_signals_are_unblocked():
    """A service that waits for its signals starts the launcher with them blocked: they end the job all the same."""
    jobs.isolate()
    blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); os.execvp(sys.argv[1], sys.argv[1:])"
    for number, options in ((signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGUSR2, ["--signals-to-handle=SIGUSR2"])):
        with jobs.Scratch() as scratch:
            command = [*jobs.launcher_command("muster"), "--standalone", "--nproc-per-node=2", *options, *jobs.worker(scratch)]
            process = scratch.start("blocked", [sys.executable, "-c", blocked, *command])
            scratch.channel.expect(2, "start", 60)
            process.signal(number)
            scratch.channel.expect(2, "signal", jobs.SOON_S, signo=int(number))
            process.expect(jobs.SOON_S, 1)
            scratch.expect_nobody()


def ignored_signals(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as text:
        return int(next(line for line in text if line.startswith("SigIgn")).split()[1], 16)


def case_nohup_protects():
    """SIGHUP that was ignored (nohup) ends neither the launcher nor its workers; one that --signals-to-handle names does."""
    jobs.isolate()
    hangup = 1 << (signal.SIGHUP - 1)
    for named in (False, True):
        with jobs.Scratch() as scratch:
            options = ["--signals-to-handle=SIGHUP,SIGTERM"] if named else []
            command = ["nohup", *jobs.launcher_command("muster"), "--standalone", *options, *jobs.worker(scratch)]
            process = scratch.start("nohup", command)
            worker = scratch.channel.expect(1, "start", 60)[0]
            jobs.check(bool(ignored_signals(process.pid) & hangup) != named, "the launcher")
            jobs.check(bool(ignored_signals(worker.pid) & hangup) != named, "the worker")
            process.signal(signal.SIGHUP)
            if not named:
                jobs.tell_exit(worker.pid, 0)
            process.expect(jobs.SOON_S, 1 if named else 0)
            scratch.expect_nobody()


def case_stubborn_workers_are_killed():
    """Workers that ignore the signal get SIGKILL after --shutdown-timeout, not before, and not after the usual one."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, _ = start_group(scratch, 2, "--shutdown-timeout=1", worker=jobs.worker(scratch, "--ignore"))
        sent_ns = process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S, 1)
        took_s = (process.ended_ns - sent_ns) / 1e9
        jobs.check(1 <= took_s < jobs.SOON_S, f"killed after {took_s:.2f} s with --shutdown-timeout=1")
        scratch.expect_nobody()


def case_worker_is_killed_while_stopping():
    """A worker that is to end because of another one's failure is killed by somebody else: the report does not claim that the
    launcher did it. If the launcher was told to end, it is no failure."""
    jobs.isolate()
    for fails in (True, False):
        with jobs.Scratch() as scratch:
            process, starts = start_group(scratch, 2, worker=jobs.worker(scratch, "--ignore"))
            first, second = starts
            if fails:
                jobs.tell_exit(first.pid, 3)
                scratch.channel.expect(1, "signal", jobs.SOON_S)
                time.sleep(0.2)  # a worker that is killed within 100 ms of another one's end counts as the first
                os.kill(second.pid, signal.SIGKILL)
                process.expect(jobs.SOON_S, 1)
                jobs.check("killed by SIGKILL (Killed); not by the launcher" in process.err(), process.tail())
                root = process.err().partition("Root Cause")[2]
                jobs.check("exitcode  : 3 " in root, process.tail())
            else:
                process.signal(signal.SIGTERM)
                scratch.channel.expect(2, "signal", jobs.SOON_S)
                for worker in (first, second):
                    os.kill(worker.pid, signal.SIGKILL)
                process.expect(jobs.SOON_S, 1)
                jobs.check("Root Cause" not in process.err(), process.tail())
            scratch.expect_nobody()


def case_second_signal_leaves_nobody():
    """A second signal during the shutdown neither hangs it nor leaves workers behind."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, _ = start_group(scratch, 2, "--shutdown-timeout=2", worker=jobs.worker(scratch, "--ignore"))
        process.signal(signal.SIGINT)
        scratch.channel.expect(2, "signal", jobs.SOON_S)
        process.signal(signal.SIGINT)
        process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S)
        scratch.expect_nobody()


def case_signal_before_the_workers():
    """SIGTERM while the node still waits for others: it dies of the signal (143), as torchrun does. It speaks of no workers' end."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        port = jobs.free_port()
        process = scratch.run(
            "muster",
            "--nnodes=2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            *jobs.worker(scratch),
        )
        jobs.wait_port(port, process, 10)
        process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S, -int(signal.SIGTERM))
        text = process.err()
        jobs.check("no worker has been started here" in text and "left the job before any worker was started" in text, text)
        jobs.check("shutting down workers" not in text and "workers have ended" not in text, text)
        scratch.expect_nobody()


def case_stopped_worker_is_still_stopped():
    """A worker that is suspended (SIGSTOP) is woken to take the signal, and ends with the others."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, starts = start_group(scratch, 2)
        jobs.stop(starts[0].pid)
        process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S, 1)
        process.wait_line("they have 30 s to end; a second signal", 0)
        scratch.channel.expect(2, "signal", jobs.SOON_S, signo=int(signal.SIGTERM))
        scratch.expect_nobody()


def run_to_end(launcher, *arguments):
    with jobs.Scratch() as scratch:
        return scratch.run_to_end(launcher, *arguments).wait(0)


EXIT_CODES = [
    (0, ["--standalone", "--no-python", "true"]),
    (1, ["--standalone", "--no-python", "false"]),
    (1, ["--standalone", "--no-python", "sh", "-c", "exit 42"]),
    (1, ["--standalone", "--no-python", "sh", "-c", "kill -SEGV $$"]),
    (1, ["--standalone", "--no-python", "/no/such/program"]),
    (1, ["--standalone", "/no/such/script.py"]),
    (2, ["--bogus", "--no-python", "true"]),
    (2, []),
    (2, ["--max-restarts=x", "--no-python", "true"]),
    (1, ["--nnodes=3:2", "--no-python", "true"]),
    (1, ["--nproc-per-node=bad", "--no-python", "true"]),
    (0, ["--help"]),
]


def case_exit_codes():
    """The launcher's exit codes are torchrun's: 0, 1 for any failure of a worker, 2 for the command line."""
    jobs.isolate()
    for expected, arguments in EXIT_CODES:
        code = run_to_end("muster", *arguments)
        jobs.check(code == expected, f"muster run {' '.join(arguments)}: exit code {code}, expected {expected}")


def case_exit_codes_of_torchrun():
    """The table of exit codes above is what the real torchrun does."""
    jobs.need_torch()
    jobs.isolate()
    for expected, arguments in EXIT_CODES:
        code = run_to_end("torchrun", *arguments)
        jobs.check(code == expected, f"torchrun {' '.join(arguments)}: exit code {code}, the table says {expected}")


def case_one_finished_worker_is_waited_for():
    """A worker that ends well neither stops nor restarts the others."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process, starts = start_group(scratch, 3)
        jobs.tell_exit(starts[0].pid, 0)
        scratch.channel.expect(1, "exit", jobs.SOON_S)
        jobs.tell_exit(starts[1].pid, 0)
        scratch.channel.expect(2, "exit", jobs.SOON_S)
        jobs.check(process.wait(0.3) is None, f"the launcher did not wait\n{process.tail()}")
        jobs.tell_exit(starts[2].pid, 0)
        process.expect(jobs.SOON_S, 0)
        jobs.check(not scratch.channel.select("signal"), "a worker was signalled")


def case_terminal_ctrl_c():
    """Ctrl-C on a terminal reaches the workers exactly once: they are in sessions of their own."""
    jobs.isolate()
    master, slave = os.openpty()
    with jobs.Scratch() as scratch:
        import fcntl
        import subprocess
        import termios

        def control():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        command = jobs.launcher_command("muster") + ["--standalone", "--nproc-per-node=2", *jobs.worker(scratch)]
        launcher = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=scratch.env(), preexec_fn=control
        )
        try:
            scratch.channel.expect(2, "start", jobs.SOON_S)
            os.write(master, b"\x03")
            scratch.channel.expect(2, "signal", jobs.SOON_S, signo=int(signal.SIGINT))
            jobs.check(launcher.wait(20) == 1, f"exit code {launcher.returncode}")
            time.sleep(0.05)
            jobs.check(len(scratch.channel.select("signal")) == 2, "a worker got SIGINT twice")
        finally:
            launcher.kill()
            launcher.wait()
            os.close(slave)
            os.close(master)
