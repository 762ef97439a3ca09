#!/usr/bin/env python3
# tools/compare-torch: what a made-up new PyTorch has changed is printed, one fact a line; where nothing has changed, nothing is.
"""Usage: test_compare_torch.py [CASE ...]"""
import importlib.util
import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
import cases  # noqa: E402

OLD = {
    "distributed/run.py": '''
def get_args_parser():
    parser.add_argument("--nnodes", action=env, type=str, default="1:1", help="Number "
                        "of nodes.")
''',
    "distributed/launcher/api.py": '''
class LaunchConfig:
    """What is launched."""
    max_restarts: int = 3
    timeout = os.environ.get("TORCH_OLD_TIMEOUT")
def launch_agent(config, args): ...
''',
    "distributed/elastic/agent/server/local_elastic_agent.py": '''
worker_env = {"RANK": str(rank), "MASTER_ADDR": addr}
''',
    "distributed/elastic/rendezvous/dynamic_rendezvous.py": '''
class RendezvousTimeout:
    _DEFAULT_TIMEOUTS = {"join": timedelta(seconds=600)}
timeout = params.get_as_int("read_timeout", 60)
''',
    "distributed/elastic/multiprocessing/errors/error_handler.py": '''
data = {"message": {"message": str(e)}}
''',
    "distributed/distributed_c10d.py": '''
__all__ = ["all_reduce"]
''',
    "_C/_distributed_c10d.pyi": '''
class Store:
    def append(self, key: str, value: str) -> None: ...
''',
    "include/torch/csrc/distributed/c10d/Work.hpp": '''
enum class OpType : std::uint8_t {
  BROADCAST = 0,  // the first
  ALLREDUCE,
};
class Work {
 public:
  virtual ~Work();
  /* virtual bool isGone(); */
  virtual bool wait(std::chrono::milliseconds timeout = kNoTimeout) {
    return true;
  }
};
''',
    "include/torch/csrc/distributed/c10d/Types.hpp": '''
struct AllreduceOptions {
  std::chrono::milliseconds timeout = kUnsetTimeout;
};
''',
}
# Of the new one: (file, old text, new text, what is to be printed).
CHANGES = [
    ("distributed/run.py", "1:1", "1", ["- option --nnodes: action=env, type=str, default='1:1', help='Number of nodes.'",
                                        "+ option --nnodes: action=env, type=str, default='1', help='Number of nodes.'"]),
    ("distributed/launcher/api.py", "= 3\n", "= 3\n    shutdown_timeout: int | None = None\n",
     ["+ field LaunchConfig.shutdown_timeout: int | None = None in launcher/api.py"]),
    ("distributed/launcher/api.py", "TORCH_OLD", "TORCH_NEW",
     ["- field LaunchConfig.timeout = os.environ.get('TORCH_OLD_TIMEOUT') in launcher/api.py", "- variable TORCH_OLD_TIMEOUT in launcher/api.py",
      "+ field LaunchConfig.timeout = os.environ.get('TORCH_NEW_TIMEOUT') in launcher/api.py", "+ variable TORCH_NEW_TIMEOUT in launcher/api.py"]),
    ("distributed/launcher/api.py", "config, args", "config, args, server=None",
     ["- call launch_agent(config, args) in launcher/api.py", "+ call launch_agent(config, args, server=None) in launcher/api.py"]),
    ("distributed/elastic/agent/server/local_elastic_agent.py", '"RANK"', '"GLOBAL_RANK"',
     ["- variable RANK in elastic/agent/server/local_elastic_agent.py", "+ variable GLOBAL_RANK in elastic/agent/server/local_elastic_agent.py"]),
    ("distributed/elastic/rendezvous/dynamic_rendezvous.py", "600", "900",
     ["- field RendezvousTimeout._DEFAULT_TIMEOUTS = {'join': timedelta(seconds=600)} in elastic/rendezvous/dynamic_rendezvous.py",
      "+ field RendezvousTimeout._DEFAULT_TIMEOUTS = {'join': timedelta(seconds=900)} in elastic/rendezvous/dynamic_rendezvous.py"]),
    ("distributed/elastic/rendezvous/dynamic_rendezvous.py", "60)", "30)",
     ["- setting read_timeout: 60 in elastic/rendezvous/dynamic_rendezvous.py", "+ setting read_timeout: 30 in elastic/rendezvous/dynamic_rendezvous.py"]),
    ("distributed/elastic/multiprocessing/errors/error_handler.py", '{"message": str(e)}', '{"message": str(e), "exit_code": 1}',
     ["+ key exit_code in elastic/multiprocessing/errors/error_handler.py"]),
    ("distributed/distributed_c10d.py", "]", ', "gather_single"]', ["+ call gather_single"]),
    ("_C/_distributed_c10d.pyi", "value: str", "value: str | bytes",
     ["- call Store.append(self, key: str, value: str)", "+ call Store.append(self, key: str, value: str | bytes)"]),
    ("include/torch/csrc/distributed/c10d/Work.hpp", "ALLREDUCE,", "ALLREDUCE,\n  GATHER_SINGLE,", ["+ constant OpType.GATHER_SINGLE = 2"]),
    ("include/torch/csrc/distributed/c10d/Work.hpp", "virtual ~", "virtual void abort();\n  virtual ~", ["+ function Work: virtual void abort()"]),
    ("include/torch/csrc/distributed/c10d/Types.hpp", "};", "  bool asyncOp = true;\n};", ["+ member AllreduceOptions: bool asyncOp = true"]),
]


def compare(old, new):
    done = subprocess.run([sys.executable, os.path.join(TOP, "tools", "compare-torch"), old, new], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def write(folder, files):
    for name, text in files.items():
        path = os.path.join(folder, "torch", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def changes_are_found():
    new, wanted = dict(OLD), []
    for name, was, becomes, facts in CHANGES:
        if new[name].count(was) < 1:
            sys.exit(f"{name} has no {was}")
        new[name] = new[name].replace(was, becomes)
        wanted += facts
    with tempfile.TemporaryDirectory() as old_folder, tempfile.TemporaryDirectory() as new_folder:
        write(old_folder, OLD)
        write(new_folder, new)
        code, found, said = compare(old_folder, new_folder)
    if code != 1 or sorted(found) != sorted(wanted) or said:
        sys.exit("\n".join([f"exit code {code}", said, "missing:", *sorted(set(wanted) - set(found)), "not wanted:", *sorted(set(found) - set(wanted))]))


def a_file_that_is_gone_is_named():
    with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as new:
        write(old, OLD)
        write(new, {name: text for name, text in OLD.items() if not name.endswith("Types.hpp")})
        code, found, _ = compare(old, new)
    if code != 1 or "- file include/torch/csrc/distributed/c10d/Types.hpp" not in found:
        sys.exit(f"{code}: {found}")


def nothing_is_said_of_the_same():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, OLD)
        same = [folder] + ([sys.executable] if importlib.util.find_spec("torch") else [])
        for place in same:
            if compare(place, place) != (0, [], ""):
                sys.exit(f"{place}: {compare(place, place)}")


def a_folder_without_pytorch_is_named():
    with tempfile.TemporaryDirectory() as folder:
        code, found, said = compare(folder, folder)
        if code != 1 or found or f"there is no PyTorch in {folder}" not in said:
            sys.exit(f"{code}: {found} {said}")


cases.run([changes_are_found, a_file_that_is_gone_is_named, nothing_is_said_of_the_same, a_folder_without_pytorch_is_named])
