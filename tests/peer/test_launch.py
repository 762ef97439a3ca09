#!/usr/bin/env python3
# muster.launch and the hook: programs that call PyTorch's launcher inside their own process get Muster, and what it lacks PyTorch's.
# needs: torch
"""Usage: test_launch.py [CASE ...]; MUSTER_BINARY names the program, and libmuster.so lies beside it."""
import contextlib
import dataclasses
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
os.environ["MUSTER_BINARY"] = os.path.abspath(os.environ["MUSTER_BINARY"])
os.environ["MUSTER_LIBRARY"] = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "libmuster.so")
os.environ.pop("OMP_NUM_THREADS", None)
sys.path[:0] = [os.path.join(TOP, "python"), HERE, os.path.join(TOP, "tests", "regress"), os.path.join(TOP, "tests")]

try:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api
    from torch.numa.binding import AffinityMode, NumaOptions
except ImportError as missing:
    print(f"SKIPPED: PyTorch is not installed here ({missing}); programs that call its launcher are NOT tested")
    sys.exit(77)

import cases  # noqa: E402
import jobs  # noqa: E402
import launch_functions as functions  # noqa: E402
import muster  # noqa: E402
from muster import _launch  # noqa: E402

PATIENCE_S = 120


def check(right, text):
    if not right:
        sys.exit(text)


def config(**more):
    given = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "job",
             "max_restarts": 0}
    return api.LaunchConfig(**{**given, **more})


def raises(kind, call, *arguments):
    try:
        got = call(*arguments)
    except kind as why:
        return why
    return sys.exit(f"{got} instead of {kind.__name__}")


@contextlib.contextmanager
def hooked():
    muster.hook.install()
    try:
        yield
    finally:
        muster.hook.uninstall()


@contextlib.contextmanager
def words():
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        yield said


# ---------------------------------------------------------------------------


def functions_return_values():
    with hooked():
        got = api.elastic_launch(config(), functions.multiply)(2, "ab")
    check(got == {rank: (rank, "muster", "abab", None) for rank in range(2)}, f"{got}")


def a_failing_function_is_a_child_failed_error():
    with tempfile.TemporaryDirectory() as folder:
        logs = DefaultLogsSpecs(log_dir=folder)
        with hooked():
            why = raises(ChildFailedError, api.elastic_launch(config(logs_specs=logs), functions.fails_at_one), "boom, at one")
        rank, failure = why.get_first_failure()
        check((rank, failure.local_rank, failure.exitcode, why.name) == (1, 1, 1, "fails_at_one"), f"{failure}")
        check(failure.message["message"] == "ValueError: boom, at one", f"{failure}")
        check("fails_at_one" in failure.message["extraInfo"]["py_callstack"] and failure.error_file.startswith(folder), f"{failure}")
        check(list(why.failures) == [1] and "boom, at one" in str(why), f"{why}")


def a_functions_exit_code_is_kept():
    why = raises(ChildFailedError, muster.launch(config(), functions.exits_at_one))
    check(why.get_first_failure()[0] == 1 and why.get_first_failure()[1].exitcode == 7, f"{why}")


def a_commands_signal_is_kept():
    why = raises(ChildFailedError, muster.launch(config(), "sh"), "-c", "[ $RANK = 0 ] || kill -9 $$$$; exec sleep 1000")
    rank, failure = why.get_first_failure()
    check((rank, failure.exitcode, failure.signal_name(), why.name) == (1, -9, "SIGKILL", "sh"), f"{why}")
    check("Signal 9 (SIGKILL)" in failure.message, f"{failure}")


def a_killed_rank_starts_again():
    got = muster.launch(config(max_restarts=1), functions.dies_once)()
    check(got == {0: 1, 1: 1}, f"{got}")


def a_value_that_cannot_travel_is_an_error():
    why = raises(ChildFailedError, muster.launch(config(nproc_per_node=1), functions.cannot_return))
    check("lambda" in str(why), f"{why}")


def commands_and_their_words():
    with tempfile.TemporaryDirectory() as folder:
        logs = DefaultLogsSpecs(log_dir=folder, redirects={0: Std.OUT, 1: Std.ALL})
        got = muster.launch(config(logs_specs=logs, role="r"), "sh")("-c", "echo $RANK ${local_rank} '$$HOME' $ROLE_NAME $TORCHELASTIC_RUN_ID")
        check(got == {0: None, 1: None}, f"{got}")
        said = []
        for here, _, names in os.walk(folder):
            for name in sorted(names):
                if name == "stdout.log":
                    with open(os.path.join(here, name), encoding="utf-8") as file:
                        said.append(file.read())
        check(sorted(said) == ["0 0 $HOME r job\n", "1 1 $HOME r job\n"], f"{said}")
    why = raises(muster.MusterError, muster.launch(config(), "/no/such/program"))
    check("/no/such/program" in str(why), f"{why}")


def node_of_two(rank, port):
    """A node with one worker: what its launcher raises."""
    two = config(min_nodes=2, max_nodes=2, nproc_per_node=1, rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{port}", rdzv_configs={"rank": rank})
    why = raises(ChildFailedError, muster.launch(two, "sh"), "-c", "if [ $RANK = 1 ]; then exit 9; fi; exec sleep 1000")
    root, failure = why.get_first_failure()
    return f"{root} {failure.exitcode}"


def in_processes(count, function, *arguments):
    """What function(rank, ...) returns in processes of their own. They are forks of this one, which has imported PyTorch."""
    said, pids = [], []
    for rank in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(PATIENCE_S)
                os.write(writer, function(rank, *arguments).encode())
            except BaseException as why:  # pylint: disable=broad-except
                os.write(writer, repr(why).encode())
            os._exit(0)
        os.close(writer)
        pids.append(pid)
        said.append(reader)
    for at, reader in enumerate(said):
        with os.fdopen(reader) as pipe:
            said[at] = pipe.read()
        os.waitpid(pids[at], 0)
    return said


def another_nodes_failure_is_the_root_cause():
    said = in_processes(2, node_of_two, jobs.free_port())
    check(said == ["1 9", "1 9"], f"{said}")


# ---------------------------------------------------------------------------


def every_option_is_said_or_refused():
    fields = {field.name for field in dataclasses.fields(api.LaunchConfig)}
    later = {"shutdown_timeout": 3} if "shutdown_timeout" in fields else {}  # from PyTorch 2.12 on
    logs = DefaultLogsSpecs(log_dir="/dev/null", redirects=Std.NONE, tee={1: Std.ALL}, local_ranks_filter={1, 0})
    full = config(
        min_nodes=2, max_nodes=4, rdzv_endpoint="host:1", rdzv_configs={"join_timeout": 7, "is_host": True, "none": None}, role="a b",
        max_restarts=5, monitor_interval=0.5, start_method="forkserver", local_addr="10.0.0.1", event_log_handler="console", logs_specs=logs,
        signals_to_handle="SIGTERM,SIGUSR1", duplicate_stdout_filters=["a,b", "c"], duplicate_stderr_filters=["d"], virtual_local_rank=True,
        numa_options=NumaOptions(AffinityMode.SOCKET), **later,
    )
    wanted = ["--scheduler=none", "--nnodes=2:4", "--nproc-per-node=2", "--role=a b", "--max-restarts=5", "--monitor-interval=0.5",
              "--signals-to-handle=SIGTERM,SIGUSR1", "--start-method=forkserver", "--event-log-handler=console", "--rdzv-backend=c10d",
              "--rdzv-endpoint=host:1", "--rdzv-id=job", "--rdzv-conf=join_timeout=7,is_host=1", "--log-dir=/dev/null", "--redirects=0",
              "--tee=1:3", "--local-ranks-filter=0,1", "--duplicate-stdout-filters=a,,b,c", "--duplicate-stderr-filters=d",
              "--local-addr=10.0.0.1", "--virtual-local-rank", "--numa-binding=socket", *(["--shutdown-timeout=3"] if later else [])]
    check(sorted(_launch.options_of(full)) == sorted(wanted), f"{_launch.options_of(full)}")
    static = _launch.options_of(config(rdzv_backend="static", rdzv_endpoint="h:2", rdzv_configs={"rank": 3, "timeout": 60}))
    check("--node-rank=3" in static and "--rdzv-conf=timeout=60" in static, f"{static}")

    class Own(DefaultLogsSpecs):
        pass

    for more, part in (({"rdzv_backend": "zeus"}, "'zeus'"), ({"event_log_handler": "mine"}, "'mine'"), ({"metrics_cfg": {"a": "b"}}, "metrics_cfg"),
                       ({"logs_specs": Own()}, "Own"), ({"rdzv_configs": {"a": "b,c"}}, "a=b,c"),
                       ({"numa_options": NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)}, "numa_options")):
        check(part in str(raises(_launch.Unfit, _launch.options_of, config(**more))), f"{more}")
    # A field that a later PyTorch adds to the configuration is to be met here first.
    known = {"min_nodes", "max_nodes", "nproc_per_node", "logs_specs", "run_id", "role", "rdzv_endpoint", "rdzv_backend", "rdzv_configs",
             "rdzv_timeout", "max_restarts", "monitor_interval", "start_method", "log_line_prefix_template", "metrics_cfg", "local_addr",
             "event_log_handler", "numa_options", "signals_to_handle", "duplicate_stdout_filters", "duplicate_stderr_filters",
             "virtual_local_rank", "shutdown_timeout"}
    check(fields <= known, "LaunchConfig has fields that muster.launch does not know")


def what_muster_lacks_goes_to_pytorch():
    def closure(number):
        return number + 1, functions.where()

    with hooked(), words() as said:
        got = api.elastic_launch(config(start_method="fork"), closure)(1)
    check(got == {0: (2, "torch"), 1: (2, "torch")}, f"{got}")
    check("fork" in said.getvalue() and "PyTorch's launcher runs this job" in said.getvalue(), said.getvalue())
    # spawn cannot send it either, and says so itself; what counts is that it was asked.
    with words() as said:
        raises(Exception, muster.launch(config(), closure), 1)
    check("closure" in said.getvalue() and "cannot be pickled" in said.getvalue(), said.getvalue())


def the_hook_comes_and_goes():
    original = api.launch_agent
    muster.hook.install()
    muster.hook.install()
    check(muster.hook.installed() and api.launch_agent is _launch.launch_agent, "installed")
    muster.hook.uninstall()
    muster.hook.uninstall()
    check(not muster.hook.installed() and api.launch_agent is original, "uninstalled")


def without_the_hook_pytorch_launches():
    got = api.elastic_launch(config(), functions.multiply)(1, "a")
    check([value[1] for value in got.values()] == ["torch", "torch"], f"without the hook: {got}")


LAZY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import muster
muster.hook.autoload()
before = list(sys.meta_path)
os.environ["MUSTER_LAUNCH"] = "1"
muster.hook.autoload()
assert len(sys.meta_path) == len(before) + 1, "only with the variable"
assert not [name for name in sys.modules if name.split(".")[0] == "torch" or name == "muster._launch"], "nothing of PyTorch"
from torch.distributed.launcher.api import launch_agent
import torch.distributed.launcher as other
assert launch_agent.__module__ == other.launch_agent.__module__ == "muster._launch"
muster.hook.uninstall()
import torch.distributed.launcher.api as api
assert api.launch_agent is other.launch_agent and api.launch_agent.__module__ == api.__name__
"""


def the_hook_waits_for_the_import():
    subprocess.run([sys.executable, "-c", LAZY, os.path.join(TOP, "python")], check=True, timeout=PATIENCE_S)


# ---------------------------------------------------------------------------


@contextlib.contextmanager
def environment(**more):
    """Of a program that finds the package installed: with the entry point that makes `import torch` call the hook."""
    with tempfile.TemporaryDirectory(prefix="muster-launch-") as folder:
        about = os.path.join(folder, "hook-0.dist-info")
        os.mkdir(about)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: hook\nVersion: 0\n"),
                           ("entry_points.txt", "[torch.backends]\nmuster_hook = muster.hook:autoload\n")):
            with open(os.path.join(about, name), "w", encoding="ascii") as file:
                file.write(text)
        with open(os.path.join(folder, "worker.py"), "w", encoding="ascii") as file:
            file.write("import os, sys, time\n"
                       "said = ['I am', os.environ['RANK'], 'MUSTER_HELD_SOCKET' in os.environ, *sys.argv[1:]]\n"
                       "os.write(1, (' '.join(map(str, said)) + '\\n').encode())  # at once: print() writes word by word under -u\n"
                       "if 'wait' in sys.argv: time.sleep(1000)\n")
        path = os.pathsep.join([folder, os.path.join(TOP, "python")])
        yield folder, {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": folder, **more}


COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "worker.py"]


def run_by_torch(variable, muster_runs):
    with environment(MUSTER_LAUNCH=variable) as (folder, variables):
        done = subprocess.run([*COMMAND, "--a", "b"], cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    lines = sorted(line for line in done.stdout.split("\n") if line)
    check(done.returncode == 0 and lines == [f"I am {rank} {muster_runs} --a b" for rank in range(2)], f"MUSTER_LAUNCH={variable}: {done}")


def torch_distributed_run_gets_muster():
    run_by_torch("1", True)


def torch_distributed_run_stays_pytorchs():
    run_by_torch("0", False)


class Waiting:
    """torch.distributed.run under the hook, with workers that wait for their end."""

    def __init__(self, folder, variables):
        self.log = os.path.join(folder, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*COMMAND, "wait"], cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True)
        self.workers = self.agent = None

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def runs(self):
        until = time.monotonic() + PATIENCE_S
        while self.text().count("I am") < 2:
            check(self.process.poll() is None and time.monotonic() < until, f"the workers have not started: {self.text()}")
            time.sleep(0.02)
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            self.agent = int(children.read().split()[0])

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def waiting():
    with environment(MUSTER_LAUNCH="1") as (folder, variables):
        job = Waiting(folder, variables)
        try:
            job.runs()
            yield job, folder
        finally:
            job.end()


def a_signal_ends_the_job(number):
    with waiting() as (job, folder):
        # To the process group, as a terminal's Ctrl-C: the agent must hear of it once.
        os.killpg(job.process.pid, number)
        check(job.process.wait(PATIENCE_S) == 1, job.text())
        check(f"SignalException: Process {job.process.pid} got signal: {int(number)}" in job.text(), job.text())
        check("a second signal has come" not in job.text() and not jobs.alive(job.agent), job.text())
        check(not [name for name in os.listdir(folder) if name.startswith("muster-launch-")], f"{os.listdir(folder)}")


def sigterm_ends_the_job():
    a_signal_ends_the_job(signal.SIGTERM)


def ctrl_c_ends_the_job():
    a_signal_ends_the_job(signal.SIGINT)


def a_killed_launcher_leaves_nothing():
    with waiting() as (job, _):
        job.process.kill()
        job.process.wait()
        until = time.monotonic() + PATIENCE_S
        while jobs.alive(job.agent):
            check(time.monotonic() < until, f"muster run outlives its parent: {job.text()}")
            time.sleep(0.02)


# ---------------------------------------------------------------------------


def outcomes_become_what_pytorch_raises():
    worker = {"local_rank": 0, "rank": 2, "pid": 10, "exitcode": -15, "state": "stopped", "timestamp": 5, "error_file": None}
    with tempfile.TemporaryDirectory() as folder:
        def result(kind, **more):
            return _launch._result(folder, "name", {"result": kind, "workers": [worker], "root_cause": None, "message": None, **more}, False)

        check(result("spare") == {2: None} and raises(SystemExit, result, "preempted").code == 75, "spare and preempted")
        check(raises(SignalException, lambda: result("signalled", signal="SIGINT")).sigval == signal.SIGINT, "a signal")
        check("lost" in str(raises(RendezvousError, result, "rendezvous_lost")), "a rendezvous")
        check("guardian lost" in str(raises(muster.MusterError, result, "guardian_lost")), "a guardian")
        check("because" in str(raises(muster.MusterError, lambda: result("not_started", message="because"))), "a start")
        error = os.path.join(folder, "error.json")
        with open(error, "w", encoding="ascii") as file:
            json.dump({"message": {"message": "m", "extraInfo": {"py_callstack": "c", "timestamp": "9"}}}, file)
        root = {**worker, "rank": 3, "state": "failed", "exitcode": 1, "pid": 11, "timestamp": 9, "error_file": error}
        why = raises(ChildFailedError, lambda: result("failed", root_cause=root, workers=[worker, {**worker, "state": "failed"}, root]))
        check(why.get_first_failure()[0] == 3 and set(why.failures) == {2, 3}, "the root cause is first, though another time is older")
        with open(error, "w", encoding="ascii") as file:
            file.write("[]")
        logging.disable(logging.ERROR)  # PyTorch would say so, and import half of itself for that
        why = raises(ChildFailedError, lambda: result("failed", root_cause=root, workers=[root]))
        logging.disable(logging.NOTSET)
        check(why.get_first_failure()[1].exitcode == 1, "an error file that nobody understands")
    with tempfile.TemporaryDirectory() as folder:
        why = raises(muster.MusterError, _launch._read_outcome, os.path.join(folder, "none"), 2)
        check("2" in str(why) and "no outcome" in str(why), f"{why}")


CASES = [every_option_is_said_or_refused, outcomes_become_what_pytorch_raises, functions_return_values,
         a_failing_function_is_a_child_failed_error, a_functions_exit_code_is_kept, a_commands_signal_is_kept, a_killed_rank_starts_again,
         a_value_that_cannot_travel_is_an_error, commands_and_their_words, another_nodes_failure_is_the_root_cause,
         what_muster_lacks_goes_to_pytorch, the_hook_comes_and_goes, without_the_hook_pytorch_launches, the_hook_waits_for_the_import,
         torch_distributed_run_gets_muster, torch_distributed_run_stays_pytorchs, sigterm_ends_the_job, ctrl_c_ends_the_job,
         a_killed_launcher_leaves_nothing]

if __name__ == "__main__":
    jobs.isolate()  # a network of its own: no other test is given the port that a case has found free
    with tempfile.TemporaryDirectory(prefix="muster-test-") as scratch:  # jobs that fail leave their error files, as PyTorch's launcher does
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        cases.run(CASES)
