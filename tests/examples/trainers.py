"""What the tests of the C trainers share: running one under the launcher, and reading its snapshots."""

import array
import glob
import gzip
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cases  # noqa: E402

MUSTER = os.environ["MUSTER_BINARY"]
NEEDS = {"mnist": "libdnnl-dev or zlib1g-dev", "gpt": "libdnnl-dev or libopenblas-dev"}
FOLDER = tempfile.TemporaryDirectory(prefix="muster-examples-")  # launchers leave the files of jobs that have failed
TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=FOLDER.name)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = FOLDER.name  # PyTorch, where a test imports it, leaves a folder otherwise


def program(name):
    """Path of a trainer; the test is skipped where it was left out of the build."""
    path = os.path.join(os.path.dirname(MUSTER), "examples", name)
    if not os.path.exists(path):
        print(f"SKIP: examples/{name} is not built ({NEEDS.get(name, 'what it needs')} is missing)")
        sys.exit(77)
    return path


def command(workers, name, *arguments, launcher_options=()):
    """workers 0: without a launcher."""
    if workers == 0:
        return [program(name), *arguments]
    return [MUSTER, "run", "--standalone", f"--nproc-per-node={workers}", *launcher_options, "--no-python",
            program(name), *arguments]


def run(workers, name, *arguments, expect=0, launcher_options=(), environment=None):
    """Output of a run, stderr included; it must end with the exit code `expect`. environment: what is added to it."""
    done = subprocess.run(command(workers, name, *arguments, launcher_options=launcher_options),
                          env=dict(ENVIRONMENT, **(environment or {})), text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100, check=False)
    assert done.returncode == expect, f"exit code {done.returncode}, not {expect}:\n{done.stdout}"
    return done.stdout


def demo(name, *arguments, is_short=True, environment=None):
    """Output of a demo of tools/, which must end well and say so last. Where it has shown something else for want of a library, or
    nothing, the test ends here, as a skip with the demo's reason."""
    variables = dict(os.environ, TMPDIR=FOLDER.name, MUSTER_DEMO_SHORT="1" if is_short else "", **(environment or {}))
    done = subprocess.run([os.path.join(TOOLS, name), *arguments], env=variables, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400, check=False)
    lines = done.stdout.splitlines() or [""]
    if done.returncode == 77 or (done.returncode == 0 and lines[-1] == "1 passed, 0 failed, 1 skipped"):
        print(done.stdout)
        sys.exit(77)
    assert done.returncode == 0 and re.match(r"\[demo +[\d.]+ s\] done: ", lines[-1]), f"exit code {done.returncode}:\n{done.stdout}"
    print(f"   {name}: {lines[-1]}")
    left = [path for path in os.listdir(FOLDER.name) if path.startswith("muster-demo")]
    assert not left, f"left behind: {left}"
    return done.stdout


def small_data(folder, count, tests=None):
    """Writes the first `count` images of examples/data for training, and `tests` (as many, by default) for testing if there are; the
    option that names them."""
    for name, header_bytes, each in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
        for part, images in (("train", count), ("t10k", count if tests is None else tests)):
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"../../examples/data/{part}-{name}-ubyte.gz")
            with gzip.open(path) as whole, open(os.path.join(folder, f"{part}-{name}-ubyte"), "wb") as file:
                content = whole.read(header_bytes + images * each)
                file.write(content[:4] + struct.pack(">I", (len(content) - header_bytes) // each) + content[8:])
    return f"--data={folder}"


def newest(folder, prefix):
    """Path of the record of the last step, without its suffix."""
    return max((path[:-len(".json")] for path in glob.glob(os.path.join(folder, prefix + "*.json"))
                if os.path.basename(path)[len(prefix):-len(".json")].isdecimal()), key=lambda path: int(path.rpartition("-")[2]))


def snapshot(folder):
    """Tensors of the newest snapshot: name -> bytes; checks nothing, that is the library's affair."""
    (path,) = glob.glob(newest(folder, "step-") + "-*.safetensors")
    return read_safetensors(path)


def checkpoint(folder):
    """Ranges of tensors in the parts of the newest checkpoint: name -> bytes."""
    ranges = {}
    for path in glob.glob(newest(folder, "checkpoint-") + "-*.safetensors"):
        ranges |= {name: content for name, content in read_safetensors(path).items() if name != "xxh3"}
    return ranges


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
            for name, entry in header.items()}


def floats(content):
    numbers = array.array("f")
    numbers.frombytes(content)
    return numbers


def largest_difference(one, other, names):
    return max(abs(a - b) for name in names for a, b in zip(floats(one[name]), floats(other[name])))


def losses(tensors, steps):
    """Of each step, in float64, as a GPT's snapshot has them."""
    points = array.array("d")
    points.frombytes(tensors["curve.points"])
    assert all(points[:steps]) and not any(points[steps:]), points
    return points[:steps]


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if one[name] != other[name]]
    assert not different, f"different bits in {different}"


def address(number):
    """The option of `muster run` that makes a node of this machine the node with this number. Nodes are ranked by their addresses;
    with one address for all, the process ids would decide, and these wrap around."""
    return f"--local-addr=127.0.0.{1 + number}"


class Launcher:
    """A launcher whose lines are read one by one, and which ends with the test."""

    def __init__(self, command):
        self.text = ""
        self.process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()  # it takes its workers with it
        self.process.communicate()

    def wait_for(self, pattern):
        """The match in the next line that has one."""
        for line in self.process.stdout:
            self.text += line
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"no line with {pattern!r} in\n{self.text}")

    def finish(self):
        """The exit code."""
        self.text += self.process.stdout.read()
        return self.process.wait()


def node(number, arguments):
    """The launcher of one node of a job with several on this machine."""
    return Launcher([MUSTER, "run", address(number), *arguments])


def main(functions):
    """Plays those that are wanted; prints one line each."""
    cases.run(functions)
