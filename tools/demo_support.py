"""What the demos in Python share: the environment, a launcher whose lines are shown as they come, and plain narration."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGAN = time.monotonic()
IS_SHORT = bool(os.environ.get("MUSTER_DEMO_SHORT"))  # in place of the whole demo, where time is short: less is wanted of it


def say(text):
    """One line of the demo's own, apart from the job's."""
    print(f"[demo {time.monotonic() - BEGAN:6.2f} s] {text}", flush=True)


def muster():
    path = os.environ.get("MUSTER_BINARY", os.path.join(TOP, "build", "muster"))
    if not os.path.exists(path):
        sys.exit(f"demo: {path} is missing: run make first")
    return path


def python():
    """The interpreter whose packages the workers use."""
    venv = os.path.join(TOP, ".venv", "bin", "python")
    return os.environ.get("MUSTER_TEST_PYTHON") or (venv if os.path.exists(venv) else "python3")


def workers_environment():
    """PYTHON_EXEC, where it is set, is their interpreter, as ever."""
    return dict(os.environ, PYTHON_EXEC=os.environ.get("PYTHON_EXEC") or python(), OMP_NUM_THREADS="1")


def missing_packages():
    """What the MNIST trainer imports and python() does not have."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return [package for package in ("torch", "numpy")
            if subprocess.run([python(), "-c", probe, package], stderr=subprocess.DEVNULL).returncode != 0]


def backend_folder():
    """Where the backend "muster" of torch.distributed has been built for python()'s PyTorch; None: nowhere."""
    folder = os.path.join(os.path.dirname(os.path.abspath(muster())), "python")
    probe = "import sys; sys.path.append(sys.argv[1]); import extension as e; sys.exit(e.module_name() not in e.of_this_python(sys.argv[2]))"
    command = [python(), "-c", probe, os.path.join(TOP, "python"), os.path.join(folder, "muster")]
    return folder if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0 else None


class Job:
    """A launcher whose output lines are printed as they come, each behind `label`, and kept for wait_for()."""

    def __init__(self, label, arguments, environment):
        self.label = label
        self.lines = queue.Queue()
        self.rest = None  # of a line in which something has been found: two workers' lines may run into each other
        self.ended = False
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, env=environment, text=True, errors="replace")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            sys.stdout.write(f"{self.label}{line}\n")  # in one piece: two jobs may be shown at once
            sys.stdout.flush()
            self.lines.put((time.monotonic(), line))
        self.lines.put(None)

    def next_line(self, timeout_s=120):
        """(when, line), or None when the job has ended."""
        if self.ended:
            return None
        try:
            item = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            raise SystemExit(f"demo: nothing from the job for {timeout_s} s") from None
        self.ended = item is None
        return item

    def wait_for(self, pattern, timeout_s=120):
        """The match and the time of the next line in which the compiled `pattern` is found, behind what was found last."""
        while True:
            item, self.rest = self.rest or self.next_line(timeout_s), None
            if item is None:
                raise SystemExit(f"demo: the job ended before it printed {pattern.pattern!r}")
            match = pattern.search(item[1])
            if match:
                self.rest = item[0], item[1][match.end():]
                return match, item[0]

    def finish(self, timeout_s=120):
        """Shows the rest and returns the exit code."""
        while self.next_line(timeout_s) is not None:
            pass
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """SIGTERM to the launcher if it still runs: it takes its workers with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
