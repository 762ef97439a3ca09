#!/usr/bin/env python3
# muster's command line against the parser of the installed PyTorch: the same verdict and the same values for thousands
# of generated lines, in every spelling, with prefixes, PET_ variables and mistakes. Python's own words decide.
# needs: torch
"""Usage: test_options.py [CASES [SEED]]; MUSTER_BINARY names the program, options_dump lies in tests/ beside it."""
import contextlib
import functools
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402

try:
    import torch.distributed.run as torchrun
    from torch.distributed.elastic.events import get_logging_handler
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
    from torch.distributed.elastic.multiprocessing.api import Std
    from torch.distributed.launcher import api as launcher
except ImportError as missing:
    print(f"SKIPPED: PyTorch is not installed here ({missing}); the option parser is NOT compared with torchrun's")
    sys.exit(77)

VALUES = {
    "nnodes": ["1", "2", "1:4", "3:2", "0", "1:2:3", "", "x", " 2 ", "1:", "1_0", "-1"],
    "nproc-per-node": ["1", "2", "4", "0", "-1", "cpu", "gpu", "auto", "xpu", "bad", "", "+3", "1.5", "8"],
    "rdzv-backend": ["static", "c10d", "c10d", "nosuch", ""],
    "rdzv-endpoint": ["", "localhost:29400", "host", "host:99999", "[::1]:3", "h:1:2", "a b", "10.0.0.1:0", "host:x"],
    "rdzv-id": ["none", "job 7", "x"],
    "rdzv-conf": ["", "a=1", "foo", "a=", "join_timeout=10", "join_timeout=x", "timeout=3", " a = 1 , b=2", "=1",
                  "is_host=1", "is_host=maybe", "store_type=tcp", "store_type=bad", "read_timeout=0", "min_nodes=3",
                  "join_timeout=x,join_timeout=5", "a=1,", "a=b=c"],
    "max-restarts": ["0", "3", "-1", "x", "", " 4", "1_000", "1__0", "0x10", "2.0", "9" * 30],
    "monitor-interval": ["0.1", "5", "0", "-1", "x", "1e3", "1_0.5", ".5", "5.", "inf", "nan", "0x1p3", "", "1e", "-.5"],
    "start-method": ["spawn", "fork", "forkserver", "bad", "spaw", ""],
    "event-log-handler": ["null", "console", "dynamic_rendezvous"],
    "role": ["default", "trainer", "", "a b"],
    "log-dir": ["/dev/null"],
    "redirects": ["0", "3", "5", "0:1", "0:3,1:2", "10:1", "a", "", "0:1,", "1:0,1:3"],
    "tee": ["0", "1", "2:2", "4", "-1"],
    "local-ranks-filter": ["", "0", "0,1", "a", "0,", " 1 , 2 ", "-1"],
    "duplicate-stdout-filters": ["", "a", "a,b", "a,,b", ",", ",,", ",,,", "a,b,,c,d"],
    "duplicate-stderr-filters": ["", "x y", "a,,,b"],
    "node-rank": ["0", "1", "x", "-0"],
    "master-addr": ["127.0.0.1", "host", "::1", "[::1]"],
    "master-port": ["29500", "0", "x", "99999", "-1", ""],
    "local-addr": ["10.0.0.1", ""],
    "logs-specs": ["default", "nosuch"],
    "numa-binding": ["node", "socket", "exclusive", "core-complex", "nod"],
    "signals-to-handle": ["SIGTERM", "SIGTERM,SIGUSR1", ""],
    "shutdown-timeout": ["30", "0", "-1", "x", "2"],
}
FLAGS = ["standalone", "module", "no-python", "run-path", "virtual-local-rank"]
# An older PyTorch lacks some, which are then Muster's own.
THEIRS = torchrun.get_args_parser()._option_string_actions
LATER = {name for name in VALUES if "--" + name not in THEIRS}
# A job of one node that names no port: older ones take 29500 for it, newer ones a free one.
HAS_PORT = THEIRS["--master-port"].default is not None
for _name in LATER:
    del VALUES[_name]
NAMES = list(VALUES) + FLAGS + ["help"]
NO_VARIABLE = {"logs-specs", "numa-binding", "help"}
OWN = {"--preempt-term", "--outcome", "--detached", "--merge-logs", "--mpi", "--preempt-grace", "--preempt-signal", "--restart-backoff", "--scheduler", "--spares", "--stderr-tail", "--log-line-prefix-template", "--print-completion", "--survivors", "--version"}
FEW = 1000  # of the random lines
WORDS = ["-", "-5", "-.5", "-1e5", "--bogus", "--bogus=1", "-x", "-x3", "--bo gus", "-1 2", "", "--=x", "-m=3", "-m=", "-m=r3",
         "-mr3", "-mr", "-rm", "-mm", "-mt2r1", "-r", "-t", "-mx", "-m-", "-h3", "-hx", "-r=3", "-r=", "-mr=3", "--help=1",
         "--module=1", "--nproc_per-node", "--rdzv-", "--n", "--h", "--he", "--mast", "--no", "--m", "--r", "---", "-=3",
         "--standalone=", "--version=1", "--merge", "--stderr", "--v", "--ver", "--vers", "-5\n", "-\n5"]


def random_spelling(rng, name):
    text = "--" + (name.replace("-", "_") if rng.random() < 0.4 else name)
    if rng.random() < 0.25:
        text = text[: rng.randint(2, len(text))]
        if text == "--":
            text = "--" + name
    return {"redirects": "-r", "tee": "-t", "module": "-m"}.get(name, text) if rng.random() < 0.3 else text


def random_option(rng):
    name = rng.choice(NAMES[:-1]) if rng.random() < 0.98 else "help"
    spelling = random_spelling(rng, name)
    if name not in VALUES:
        return [spelling]
    value = rng.choice(VALUES[name]) if rng.random() < 0.7 else VALUES[name][0]
    form = rng.random()
    if form < 0.4:
        return [spelling + "=" + value]
    if form < 0.5 and spelling in ("-r", "-t"):
        return [spelling + value]
    return [spelling, value] if form < 0.97 else [spelling]


def random_case(rng):
    argv = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
        argv += [rng.choice(WORDS)] if rng.random() < 0.12 else random_option(rng)
    if rng.random() < 0.1:
        argv.append("--")
    if rng.random() < 0.95:
        argv.append(rng.choice(["script.py", "script.py", "script.py", "-"]))
        for _ in range(rng.choice([0, 1, 2])):
            argv.append(rng.choice(["--", "a", "-h", "--nnodes", "--max-restarts=x", "b c", "", "--lr=0.1", "-r3"]))
    env = {}
    while rng.random() < 0.25:
        name = rng.choice([n for n in NAMES if n not in NO_VARIABLE])
        values = VALUES[name] if name in VALUES else ["1", "0", " 2 ", "", "x", "-1", "true"]
        env["PET_" + name.upper().replace("-", "_")] = rng.choice(values)
    if rng.random() < 0.1 and "shutdown-timeout" in VALUES:
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = rng.choice(["5", "x", "0"])
    if rng.random() < 0.3:
        env["OMP_NUM_THREADS"] = "2"
    return {"argv": argv, "env": env}


def every_prefix():
    """Each prefix of each spelling, alone and with a value: valid, ambiguous and unknown ones alike."""
    for name in NAMES:
        for text in {"--" + name, "--" + name.replace("-", "_")}:
            for end in range(2, len(text) + 1):
                for tail in ([], ["1"], ["="]):
                    word = text[:end] + ("=1" if tail == ["="] else "")
                    yield {"argv": [word, *([] if tail == ["="] else tail), "script.py"], "env": {}}


def each_value():
    for name, values in VALUES.items():
        for value in values:
            for other in ([], ["--nnodes=2"], ["--rdzv-backend=c10d"], ["--standalone"]):
                yield {"argv": [f"--{name}={value}", *other, "script.py"], "env": {}}
                yield {"argv": [*other, f"--{name}", value, "script.py"], "env": {}}
                if name not in NO_VARIABLE:
                    variable = "PET_" + name.upper().replace("-", "_")
                    yield {"argv": [*other, "script.py"], "env": {variable: value}}
                    yield {"argv": [f"--{name}={values[0]}", *other, "script.py"], "env": {variable: value}}
    for word in WORDS:
        for before in ([], ["--role", "x"], ["--role"], ["-r"], ["--standalone"]):
            yield {"argv": [*before, word, "script.py", "a"], "env": {}}
            yield {"argv": [*before, word], "env": {}}


@functools.cache
def parser_of(_environment, make=torchrun.get_args_parser):
    """torchrun's parser, which reads the variables when it is made: one for each set of them, as it takes longer than parsing."""
    return make()


torchrun.get_args_parser = lambda: parser_of(frozenset(os.environ.items()))


def torch_parse(case):
    """(verdict, namespace)"""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return "ok", torchrun.parse_args(case["argv"]), ""
    except SystemExit as end:
        return ("help" if end.code in (0, None) else "usage"), None, err.getvalue()
    except ValueError as error:
        return "invalid", None, str(error)


class Captured(Exception):
    pass


def torch_config(args):
    """What torchrun would launch, with the checks that it makes before the first store; None when one fails."""
    def capture(config, entrypoint):
        def call(*cmd_args):
            raise Captured(config, entrypoint, cmd_args)
        return call

    torchrun.elastic_launch, original = capture, torchrun.elastic_launch
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            torchrun.run(args)
        raise AssertionError("torchrun.run() returned")
    except Captured as captured:
        config, entrypoint, cmd_args = captured.args
    except Exception as error:
        return None, repr(error)
    finally:
        torchrun.elastic_launch = original
    try:
        check_launch(config)
    except Exception as error:
        return None, repr(error)
    return (config, entrypoint, cmd_args), ""


def check_launch(config):
    """The checks of launch_agent() and the rendezvous factories."""
    if config.nproc_per_node <= 0 or not config.monitor_interval > 0 or config.monitor_interval == float("inf"):
        raise AssertionError("worker spec")
    parameters = RendezvousParameters(
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, run_id=config.run_id or "1",
        min_nodes=config.min_nodes, max_nodes=config.max_nodes, local_addr=config.local_addr, **config.rdzv_configs)
    launcher._get_addr_and_port(parameters)
    get_logging_handler(config.event_log_handler)
    if config.rdzv_backend == "static":
        if not 0 <= int(config.rdzv_configs["rank"]) < config.max_nodes:
            raise ValueError("never forms a world")
        if int(parameters.config["timeout"]) <= 0:
            raise ValueError("timeout")
    elif config.rdzv_backend == "c10d":
        parse_rendezvous_endpoint(parameters.endpoint, 29400)
        if parameters.get("store_type", "tcp").strip().lower() not in ("tcp", "file"):
            raise ValueError("store type")
        parameters.get_as_bool("is_host")
        for name in ("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout"):
            if parameters.get_as_int(name, 1) <= 0:
                raise ValueError(name)
    else:
        raise ValueError("backend not registered")


def as_list(map_or_value):
    if isinstance(map_or_value, Std):
        return [int(map_or_value)] * 10
    return [int(map_or_value.get(rank, Std.NONE)) for rank in range(10)]


def clamp(number):
    return max(-(2**63), min(2**63 - 1, number))


def expected_values(args):
    out = {}
    for name in list(VALUES) + FLAGS:
        value = getattr(args, name.replace("-", "_"))
        if isinstance(value, float):
            value = f"{value:.17g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            value = clamp(value)
        out["--" + name] = value
    return out


def differs_in_values(args, ours):
    theirs = expected_values(args)
    for name, value in theirs.items():
        if name.startswith("--duplicate"):
            continue  # a list there, compared in the configuration
        if name == "--master-port" and HAS_PORT and ours["values"][name] is None:
            continue
        if ours["values"][name] != value:
            return f"{name}: {value!r} in torchrun, {ours['values'][name]!r} here"
    if args.training_script != ours["script"] or args.training_script_args != ours["args"]:
        return f"script: {args.training_script!r} {args.training_script_args!r} in torchrun"
    return None


def differs_in_config(launch, ours, backend_random):
    config, entrypoint, cmd_args = launch
    theirs = {
        "min_nodes": config.min_nodes, "max_nodes": config.max_nodes, "nproc": config.nproc_per_node,
        "backend": config.rdzv_backend, "endpoint": config.rdzv_endpoint, "role": config.role,
        "local_addr": config.local_addr or None, "max_restarts": min(config.max_restarts, 2**31 - 1),
        "monitor_interval": config.monitor_interval, "redirects": as_list(config.logs_specs._redirects),
        "tee": as_list(config.logs_specs._tee), "filtered": config.logs_specs._local_ranks_filter is not None,
        "stdout_filters": config.duplicate_stdout_filters, "stderr_filters": config.duplicate_stderr_filters,
        "virtual_local_rank": config.virtual_local_rank, "signals": config.signals_to_handle,
    }
    if "shutdown-timeout" in VALUES:
        theirs["shutdown_ms"] = config.shutdown_timeout * 1000
    if not backend_random:
        theirs["run_id"] = config.run_id
    if isinstance(entrypoint, str):
        theirs["command"] = [entrypoint, *cmd_args]
    for name, value in theirs.items():
        if ours[name] != value:
            return f"{name}: {value!r} in torchrun, {ours[name]!r} here"
    return None


def known_difference(case, theirs, text, ours):
    """What muster does otherwise on purpose (docs/adr/0003-own-option-parser.md)."""
    # Own options.
    if any(word.split("=")[0].replace("_", "-") in OWN for word in case["argv"]):
        return True
    # Python 3.11 looks for ambiguous prefixes in all words, the script's too; later Pythons only in those they take.
    ambiguous = re.search(r"ambiguous option: (.*) could match (.*)", text, re.DOTALL)
    if theirs != "usage" or ambiguous is None:
        return False
    if any(option.strip().replace("_", "-") in OWN for option in ambiguous[2].split(",")):  # those of newer torchruns are not abbreviated
        return True
    return ours["verdict"] == "help" or ambiguous[1] in ours.get("args", [])


def is_missing_script(ours):
    """muster looks whether the script exists; torchrun leaves that to the workers, which fail."""
    return ("does not exist" in ours["detail"] or "no program" in ours["detail"]) and not os.path.exists(ours["script"])


def compare(case, ours):
    os.environ.clear()
    os.environ.update(case["env"])
    verdict, args, text = torch_parse(case)
    if verdict != ours["verdict"]:
        if known_difference(case, verdict, text, ours):
            return None
        return f"verdict: {verdict} in torchrun ({text.strip()[-200:]}), {ours['verdict']} here ({ours['detail']})"
    if verdict in ("usage", "invalid") and not ours["detail"]:
        return "no message"
    if verdict != "ok":
        return None
    difference = differs_in_values(args, ours)
    if difference:
        return difference
    if HAS_PORT and ours["values"]["--master-port"] is None and args.rdzv_backend == "static" and not args.rdzv_endpoint:
        return None
    launch, error = torch_config(args)
    if launch is not None and ours["config"] is None and is_missing_script(ours):
        return None
    if (launch is None) != (ours["config"] is None):
        return f"later checks: torchrun {error or 'accepts'}, here: {ours['detail'] or 'accepted'}"
    if launch is None:
        return None if ours["detail"] else "no message"
    return differs_in_config(launch, ours["config"], ours["config"]["endpoint"] == "localhost:0")


def ask_muster(cases, environment):
    dump = os.environ.get("MUSTER_OPTIONS_DUMP") or os.path.join(
        os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "options_dump")
    for case in cases:
        case["env"].update(environment)
    lines = "\n".join(json.dumps(case) for case in cases) + "\n"
    done = subprocess.run([dump], input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"options_dump ended with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    logging.disable(logging.WARNING)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng = random.Random(seed)
    parts = {"every_prefix": list(every_prefix()), "each_value": list(each_value()),
             "random_lines": [random_case(rng) for _ in range(min(count, FEW))], "many_random_lines": [random_case(rng) for _ in range(count - FEW)]}
    lines = [line for name, part in parts.items() if part and cases.wanted(name) for line in part]
    environment = {"PATH": os.environ["PATH"], "PYTHON_EXEC": sys.executable, "TMPDIR": tempfile.gettempdir()}
    with tempfile.TemporaryDirectory() as folder:
        # Programs and scripts that exist, so that only the line decides.
        environment["PATH"] = folder + ":" + environment["PATH"]
        os.environ["MUSTER_BINARY"] = os.path.abspath(os.environ.get("MUSTER_BINARY", "build/muster"))
        os.chdir(folder)
        for name in ("script.py", "-5", "1", "-"):
            with open(name, "w", encoding="utf-8") as file:
                file.write("")
            os.chmod(name, 0o755)
        # torchrun makes a log folder for each line that it accepts.
        torchrun.DefaultLogsSpecs.__init__.__globals__["tempfile"].mkdtemp = lambda **_: folder
        failures = []
        for case, ours in zip(lines, ask_muster(lines, environment), strict=True):
            difference = compare(case, ours)
            if difference:
                failures.append(f"{case['argv']} {[e for e in case['env'].items() if e[0] not in environment]}: {difference}")
    for failure in failures[:40]:
        print(failure)
    print(f"{len(lines)} command lines (seed {seed}), {len(failures)} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
