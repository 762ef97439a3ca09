"""muster.launch: PyTorch's elastic_launch, by a child process `muster run` (docs/python.md).

A LaunchConfig becomes options, the outcome file (docs/formats/outcome.md) becomes what PyTorch's launcher returns or raises. What Muster
lacks goes to PyTorch's own launcher, with a sentence on stderr.
"""

import ctypes
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

from ._library import MusterError, program

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

Entrypoint = Union[Callable[..., Any], str, None]

BACKENDS = ("c10d", "static", "etcd", "etcd-v2", "etcd-v3", "muster")
EVENT_HANDLERS = ("null", "console")
# Flags that the environment could switch on behind the configuration's back.
FLAGS = ("PET_STANDALONE", "PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK")
PREEMPTED = 75
PR_SET_PDEATHSIG = 1

# PyTorch's launch_agent, as it is before the hook takes its place.
_original: Optional[Callable[..., Dict[int, Any]]] = None


class Unfit(Exception):
    """What a job needs and Muster lacks: a sentence without its end."""


def say(text: str) -> None:
    print(f"muster: {text}", file=sys.stderr, flush=True)


def pytorchs_launcher() -> Callable[..., Dict[int, Any]]:
    if _original is not None:
        return _original
    from torch.distributed.launcher import api

    found: Callable[..., Dict[int, Any]] = api.launch_agent
    return found


# ---------------------------------------------------------------------------
# the configuration as options


def _std(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{rank}:{int(std)}" for rank, std in sorted(value.items())) or "0"
    return str(int(value))


def _logs(config: "LaunchConfig") -> List[str]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    specs: Any = config.logs_specs
    if type(specs) is not DefaultLogsSpecs:
        raise Unfit(f"logs_specs is a {type(specs).__name__}, and Muster has PyTorch's default layout alone")
    options = [f"--log-dir={specs.root_log_dir}", f"--redirects={_std(specs._redirects)}", f"--tee={_std(specs._tee)}"]
    if specs._local_ranks_filter:
        options.append("--local-ranks-filter=" + ",".join(map(str, sorted(specs._local_ranks_filter))))
    for name, texts in (("stdout", config.duplicate_stdout_filters), ("stderr", config.duplicate_stderr_filters)):
        if texts:
            options.append(f"--duplicate-{name}-filters=" + ",".join(text.replace(",", ",,") for text in texts))
    return options


def _rendezvous(config: "LaunchConfig") -> List[str]:
    if config.rdzv_backend not in BACKENDS:
        raise Unfit(f"the rendezvous backend {config.rdzv_backend!r} is none of Muster's ({', '.join(BACKENDS)})")
    options = [f"--rdzv-backend={config.rdzv_backend}", f"--rdzv-endpoint={config.rdzv_endpoint}", f"--rdzv-id={config.run_id}"]
    settings = dict(config.rdzv_configs)
    rank = settings.pop("rank", None)
    if config.rdzv_backend == "static":
        options.append(f"--node-rank={0 if rank is None else rank}")
    else:
        settings.pop("timeout", None)  # LaunchConfig always adds it; only static's handler reads it
    pairs = []
    for key, value in settings.items():
        text = str(value)
        if value is None:
            continue
        if any(mark in f"{key}{text}" for mark in ",=\n"):
            raise Unfit(f"the rendezvous setting {key}={text} has a comma or an equals sign, which --rdzv-conf cannot hold")
        pairs.append(f"{key}={int(value) if isinstance(value, bool) else text}")
    if pairs:
        options.append("--rdzv-conf=" + ",".join(pairs))
    return options


def options_of(config: "LaunchConfig") -> List[str]:
    """The options of `muster run` that say what the configuration says. Unfit names what cannot be said."""
    if config.event_log_handler not in EVENT_HANDLERS:
        raise Unfit(f"the event handler {config.event_log_handler!r} is a plug-in in Python (Muster has {' and '.join(EVENT_HANDLERS)})")
    if config.metrics_cfg:
        raise Unfit("metrics_cfg is set, and Muster sends no metrics")
    options = [
        "--scheduler=none",
        f"--nnodes={config.min_nodes}:{config.max_nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        f"--role={config.role}",
        f"--max-restarts={config.max_restarts}",
        f"--monitor-interval={config.monitor_interval}",
        f"--signals-to-handle={config.signals_to_handle}",
        f"--start-method={config.start_method}",
        f"--event-log-handler={config.event_log_handler}",
        *_rendezvous(config),
        *_logs(config),
    ]
    if getattr(config, "shutdown_timeout", None) is not None:  # from PyTorch 2.12 on
        options.append(f"--shutdown-timeout={config.shutdown_timeout}")
    if config.local_addr:
        options.append(f"--local-addr={config.local_addr}")
    if config.virtual_local_rank:
        options.append("--virtual-local-rank")
    if config.numa_options is not None:
        if config.numa_options.should_fall_back_if_binding_fails:
            raise Unfit("numa_options may fall back where binding fails, which Muster does not do")
        options.append(f"--numa-binding={config.numa_options.affinity_mode.value}")
    return options


def _environment(config: "LaunchConfig", is_function: bool) -> Dict[str, str]:
    environment = dict(os.environ, TORCHELASTIC_SIGNALS_TO_HANDLE=config.signals_to_handle)
    environment.update((flag, "0") for flag in FLAGS if flag in environment)
    if config.virtual_local_rank:
        environment.pop("PET_VIRTUAL_LOCAL_RANK", None)
    if is_function:
        environment.setdefault("OMP_NUM_THREADS", "")  # _worker.py takes it away: elastic_launch limits no threads, muster run does
    if config.log_line_prefix_template is not None:
        environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = config.log_line_prefix_template
    return environment


# ---------------------------------------------------------------------------
# the entry point as a command


def _write_call(folder: str, config: "LaunchConfig", function: Callable[..., Any], arguments: List[Any]) -> List[str]:
    """A function as a command: pickled into a file of `folder`, for _worker.py."""
    from multiprocessing import spawn, util

    name = getattr(function, "__qualname__", repr(function))
    if config.start_method == "fork":
        raise Unfit(f"the start method fork gives {name} this process's memory, and Muster's workers are new processes")
    preparation = dict(spawn.get_preparation_data("muster"))
    preparation["authkey"] = bytes(preparation["authkey"])
    in_main = getattr(function, "__module__", None) == "__main__"
    if in_main and not ("init_main_from_name" in preparation or "init_main_from_path" in preparation):
        raise Unfit(f"{name} is defined where no worker can import it (a notebook, an interactive Python)")
    try:
        call = pickle.dumps((function, tuple(arguments)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as why:  # whatever an object's own __reduce__ raises
        raise Unfit(f"{name} or an argument cannot be pickled ({why})") from None
    path = os.path.join(folder, "call")
    with open(path, "wb") as file:
        pickle.dump(preparation, file)
        file.write(call)
    executable = os.fsdecode(spawn.get_executable())
    worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_worker.py")
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [executable, *flags, "-u", worker.replace("$", "$$"), path.replace("$", "$$")]


def _command(folder: str, config: "LaunchConfig", entrypoint: Entrypoint, arguments: List[Any]) -> List[str]:
    if callable(entrypoint):
        return _write_call(folder, config, entrypoint, arguments)
    if not isinstance(entrypoint, str):
        raise Unfit(f"the entry point is neither a function nor a command ({type(entrypoint).__name__})")
    strange = [argument for argument in arguments if not isinstance(argument, str)]
    if strange:
        raise Unfit(f"an argument of the command is no text ({type(strange[0]).__name__})")
    return [entrypoint, *arguments]


# ---------------------------------------------------------------------------
# the child


class _Child:
    """`muster run` in a process group of its own, so that a Ctrl-C comes once, through this process. It gets the signals that this process
    gets, and SIGTERM should this process be killed."""

    def __init__(self, command: List[str], environment: Dict[str, str], signals: str) -> None:
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.early: List[int] = []
        self.before: Dict[int, Any] = {}
        self.command, self.environment = command, environment
        self.numbers = [getattr(signal, name.strip()) for name in signals.split(",") if hasattr(signal, name.strip() or " ")]

    def _pass_on(self, number: int, _frame: Any) -> None:
        if self.process is None:
            self.early.append(number)
        else:
            self.process.send_signal(number)

    def _handled(self, number: int) -> bool:
        """As `muster run`: a SIGHUP that nohup has taken away stays ignored."""
        return not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN)

    def __enter__(self) -> "_Child":
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                if self._handled(number):
                    self.before[number] = signal.signal(number, self._pass_on)
        set_death_signal = ctypes.CDLL(None).prctl
        parent = os.getpid()

        def in_child() -> None:
            set_death_signal(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            os.setpgid(0, 0)

        try:
            self.process = subprocess.Popen(self.command, env=self.environment, preexec_fn=in_child)
        except BaseException:
            self._restore()
            raise
        for number in self.early:
            self.process.send_signal(number)
        return self

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait()

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def __exit__(self, *_: Any) -> None:
        """After an exception in between, another handler's for example, the job is stopped."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self._restore()


# ---------------------------------------------------------------------------
# the outcome


def _failure(worker: Dict[str, Any], latest: Optional[int]) -> Any:
    """PyTorch's ProcessFailure. It reads the error file, and falls over one that it does not understand: such a one is left out."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    code = worker["exitcode"] if worker["exitcode"] is not None else 1
    arguments = {"local_rank": worker["local_rank"], "pid": worker["pid"] or -1, "exitcode": code}
    try:
        failure = ProcessFailure(**arguments, error_file=worker.get("error_file") or "")
    except Exception:
        failure = ProcessFailure(**arguments, error_file="")
    if worker.get("timestamp") is not None:
        failure.timestamp = int(worker["timestamp"])
    if latest is not None:
        failure.timestamp = max(failure.timestamp, latest)
    return failure


def failures_of(outcome: Dict[str, Any]) -> Dict[int, Any]:
    """By global rank; the root cause is first, and no other failure is older, so get_first_failure() is the root cause."""
    root, failures = outcome.get("root_cause"), {}
    workers = {worker["rank"]: worker for worker in outcome["workers"] if worker["state"] in ("failed", "stopped")}
    if any(worker["state"] == "failed" for worker in workers.values()):
        workers = {rank: worker for rank, worker in workers.items() if worker["state"] == "failed"}
    earliest: Optional[int] = None
    if root is not None:
        here = workers.get(root["rank"])
        failures[root["rank"]] = _failure(here if here is not None and here["pid"] == root["pid"] else root, None)
        earliest = failures[root["rank"]].timestamp
        if here is None and root.get("status"):
            failures[root["rank"]].message = f"{root['status']} on {root.get('host')}"
    for rank in sorted(workers):
        if rank not in failures:
            failures[rank] = _failure(workers[rank], earliest)
    return failures


def _returned(folder: str, outcome: Dict[str, Any], is_function: bool) -> Dict[int, Any]:
    returned: Dict[int, Any] = {}
    for worker in outcome["workers"]:
        returned[worker["rank"]] = None
        path = os.path.join(folder, f"result.{worker['pid']}")
        if is_function and os.path.exists(path):
            with open(path, "rb") as file:
                returned[worker["rank"]] = pickle.load(file)
    return returned


def _result(folder: str, name: str, outcome: Dict[str, Any], is_function: bool) -> Dict[int, Any]:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    result, message = outcome["result"], outcome.get("message")
    if result in ("success", "spare"):
        return _returned(folder, outcome, is_function)
    if result == "preempted":
        raise SystemExit(PREEMPTED)
    if result == "signalled":
        number = getattr(signal, outcome["signal"], signal.SIGTERM)
        raise SignalException(f"Process {os.getpid()} got signal: {int(number)}", sigval=signal.Signals(number))
    # A worker of another node may have ended the job; this node has then lost the others.
    failures = failures_of(outcome) if result == "failed" or (result == "rendezvous_lost" and outcome["root_cause"]) else {}
    if failures:
        raise ChildFailedError(name=name, failures=failures)
    if result == "rendezvous_lost":
        raise RendezvousError(message or "the nodes have lost each other")
    raise MusterError(message or f"muster run has ended with {result.replace('_', ' ')}")


def _read_outcome(path: str, code: int) -> Dict[str, Any]:
    try:
        with open(path, encoding="ascii") as file:
            found: Dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        raise MusterError(f"muster run ended with {code} and left no outcome; its words are on stderr") from None


def _name(entrypoint: Entrypoint, arguments: List[Any]) -> str:
    """What PyTorch's ChildFailedError calls the program."""
    from torch.distributed.launcher.api import _get_entrypoint_name

    return str(_get_entrypoint_name(entrypoint, arguments))


def launch_agent(
    config: "LaunchConfig", entrypoint: Entrypoint, args: List[Any], health_check_server: Any = None
) -> Dict[int, Any]:
    """In place of torch.distributed.launcher.api.launch_agent."""
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
    folder = tempfile.mkdtemp(prefix="muster-launch-")
    try:
        try:
            if health_check_server is not None or os.environ.get("TORCHELASTIC_HEALTH_CHECK_PORT"):
                raise Unfit("a health check server is wanted, and Muster has none")
            options = options_of(config)
            command = _command(folder, config, entrypoint, list(args))
            muster = program()
        except Unfit as why:
            say(f"{why}; PyTorch's launcher runs this job")
            more = () if health_check_server is None else (health_check_server,)  # from PyTorch 2.13 on
            return pytorchs_launcher()(config, entrypoint, args, *more)
        outcome = os.path.join(folder, "outcome.json")
        line = [muster, "run", *options, f"--outcome={outcome}", "--no-python", *command]
        with _Child(line, _environment(config, callable(entrypoint)), config.signals_to_handle) as child:
            code = child.wait()
        return _result(folder, _name(entrypoint, list(args)), _read_outcome(outcome, code), callable(entrypoint))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class launch:
    """What PyTorch's elastic_launch does, by Muster: starts nproc_per_node workers here, joins them with those of the other nodes, and starts
    them again when one fails.

    >>> from torch.distributed.launcher.api import LaunchConfig
    >>> config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=1)
    >>> muster.launch(config, train)(0.1)      # train(0.1) in each worker
    {0: 0.93, 1: 0.93}
    >>> muster.launch(config, "python")("-u", "train.py", "--lr", "0.1")
    {0: None, 1: None}

    Functions, arguments and returned values travel pickled. The result is by global rank, of this node's workers. Raised is what
    elastic_launch raises: ChildFailedError (get_first_failure() is the root cause), SignalException after a signal, RendezvousError; and
    SystemExit(75) if the job was stopped before its end because a node is taken away. What Muster lacks runs under PyTorch's launcher, and a
    sentence on stderr says what that was: a function that cannot be pickled or that needs fork, plug-ins in Python, metrics.
    """

    def __init__(self, config: "LaunchConfig", entrypoint: Entrypoint) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> Dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))
