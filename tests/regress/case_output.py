"""Where what workers print ends up, and what processes print that they leave behind: beside torchrun, in files, pipes and terminals."""

import contextlib
import os
import re
import subprocess

import jobs

# Lines that go to stdout and stderr in turn, each at once.
ALTERNATING = """
import os, sys, time
for number in range(int(sys.argv[1])):
    os.write(1 + number % 2, b"line %s %d\\n" % (os.environ["RANK"].encode(), number))
    time.sleep(float(sys.argv[2]))
"""


def printed(scratch, launcher, shape, *arguments):
    """What the console of a job has when stdout and stderr lead to one place, which has that shape."""
    log = scratch.path(f"log{len(os.listdir(scratch.root))}")
    streams = {
        "pipe": (subprocess.PIPE, subprocess.STDOUT),
        "file": (open(log, "wb"), subprocess.STDOUT),
        "twice": (open(log, "ab"), open(log, "ab")),
    }[shape]
    command = [*jobs.launcher_command(launcher), "--standalone", f"--log-dir={scratch.path('logs')}", *arguments]
    job = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=streams[0], stderr=streams[1], env=scratch.env(OMP_NUM_THREADS=1), cwd=scratch.root
    )
    text = job.communicate(timeout=300)[0]
    if shape != "pipe":
        with open(log, "rb") as kept:
            text = kept.read()
    return text.decode(), job.returncode


def misplaced(text, worker_count, line_count):
    """How many of the lines that workers print do not stand where they were written."""
    wrong = 0
    for rank in range(worker_count):
        numbers = [int(number) for number in re.findall(rf"line {rank} (\d+)\n", text)]
        jobs.check(sorted(numbers) == list(range(line_count)), f"rank {rank}: {len(numbers)} lines of {line_count}")
        wrong += sum(number != place for place, number in enumerate(numbers))
    return wrong


def check_order(launchers, shapes, amounts):
    jobs.isolate()
    for shape in shapes:
        for count, pause_s in amounts:
            for launcher, *options in launchers:
                with jobs.Scratch() as scratch:
                    script = scratch.write("alternating.py", ALTERNATING)
                    arguments = ["--nproc-per-node=2", *options, script, str(count), str(pause_s)]
                    text, code = printed(scratch, launcher, shape, *arguments)
                    jobs.check(code == 0, f"{launcher} {options}: exit code {code}\n{text[-2000:]}")
                    wrong = misplaced(text, 2, count)
                    print(f"{shape}, {count} lines, {pause_s} s between, {launcher} {options}: {wrong} misplaced", flush=True)
                    jobs.check(wrong == 0, f"{wrong} of {2 * count} lines are misplaced ({launcher} {options}, {shape})")


OURS = [("muster",), ("muster", "--merge-logs"), ("muster", "--stderr-tail=0")]


def case_one_output_keeps_its_order():
    """Where stdout and stderr lead to one place (2>&1), a worker's lines stand there in the order in which it wrote them."""
    check_order(OURS, ["pipe", "file", "twice"], [(2000, 0)])


def case_one_output_has_torchruns_order():
    """The same beside torchrun, also with lines that come slowly."""
    jobs.need_torch()
    check_order([("torchrun",), *OURS], ["pipe", "file", "twice"], [(2000, 0), (50, 0.02)])


def case_report_quotes_one_output():
    """Where both streams are one, the report quotes the last output; each still has its own file with --tee and --redirects."""
    jobs.isolate()
    text = "echo out; echo err >&2; echo last; exit 3"
    for options, quoted in (((), "err\n    last"), (("--merge-logs",), "err\n    last"), (("--tee=3",), "err"), (("--redirects=3",), "err")):
        with jobs.Scratch() as scratch:
            said, code = printed(scratch, "muster", "file", *options, "--stderr-tail=2", "--no-python", "sh", "-c", text)
            name = "stderr" if "3" in str(options) else "output"
            jobs.check(code == 1 and re.search(rf"{name}    : its last (2 )?lines?\n    {quoted}\n", said), f"{options}: {said}")
            for stream, lines in (("stdout", "out\nlast\n"), ("stderr", "err\n")):
                if name == "stderr":
                    with open(find(scratch.path("logs"), f"{stream}.log"), encoding="utf-8") as kept:
                        jobs.check(kept.read() == lines, f"{options}: {stream}.log is not apart")


def find(folder, name, rank="0"):
    for root, _, names in os.walk(folder):
        if name in names and os.path.basename(root) == rank:
            return os.path.join(root, name)
    raise jobs.Failed(f"no {name} of rank {rank} in {folder}")


# What a worker leaves behind, in a session of its own: it prints when the launcher has ended.
LATE = """
trap 'echo told > told; exit' TERM
echo early; : > listens
until [ -e go ]; do sleep 0.01; done
for i in 1 2 3; do echo late out $i; echo late err $i >&2; done
seq 20000
echo the end >&2
echo yes > finished
"""
LEAVE = "if [ $RANK = 1 ]; then setsid sh late & until [ -e listens ]; do sleep 0.01; done; fi"


class Console:
    """Where a job prints: a file, a pipe or a terminal for both streams, or one of each for either."""

    def __init__(self, scratch, shape):
        self.paths = []
        self.readers = []
        self.writers = [self._open(scratch, word) for word in shape.split("+")]

    def _open(self, scratch, word):
        if word == "file":
            self.paths.append(scratch.path(f"log{len(self.paths)}"))
            return os.open(self.paths[-1], os.O_WRONLY | os.O_CREAT)
        reader, writer = os.pipe() if word == "pipe" else os.openpty()
        self.readers.append(reader)
        return writer

    def start(self, scratch, command, from_template):
        with open(os.devnull, "rb") as nothing:
            env, streams = scratch.env(OMP_NUM_THREADS=1), (nothing, self.writers[0], self.writers[-1])
            if from_template:
                job = jobs.ForkedTorchrun(command, env, scratch.root, streams)
            else:
                job = subprocess.Popen(command, stdin=streams[0], stdout=streams[1], stderr=streams[2], env=env, cwd=scratch.root)
        for writer in self.writers:
            os.close(writer)
        return job

    def read(self, scratch):
        """All that is printed until nobody is left to print."""
        text = b""
        for reader in self.readers:
            with contextlib.suppress(OSError):  # EIO: the other side of the terminal is closed
                while chunk := os.read(reader, 1 << 16):
                    text += chunk
            os.close(reader)
        scratch.expect_nobody()
        for path in self.paths:
            with open(path, "rb") as kept:
                text += kept.read()
        return text.decode(errors="replace").replace("\r\n", "\n")


def leave_one(scratch, launcher, shape, options, inside=()):
    """Runs a job whose rank 1 leaves a process behind. Returns what was printed, until that has ended as well."""
    scratch.write("late", LATE)
    console = Console(scratch, shape)
    fixed = ["--standalone", "--nproc-per-node=2", f"--log-dir={scratch.path('logs')}"]
    command = [*inside, *jobs.launcher_command(launcher), *fixed, *options, "--no-python", "sh", "-c", LEAVE]
    code = console.start(scratch, command, launcher == "torchrun" and not inside).wait()
    scratch.write("go", "")
    text = console.read(scratch)
    jobs.check(code == 0, f"{launcher} ended with {code}: {text}")
    return text


ALL = "".join(f"late out {i}\nlate err {i}\n" for i in (1, 2, 3))


def check_late(text, shape, options):
    """What was printed after the launcher's end is there, whole; in order, where both streams lead to one place."""
    bare = re.sub(r"\[default1\]:", "", text)
    jobs.check(all(f"late {stream} {i}\n" in bare for stream in ("out", "err") for i in (1, 2, 3)), text[-3000:])
    numbers = [int(line) for line in bare.splitlines() if line.isdigit()]
    jobs.check("the end\n" in bare and numbers == list(range(1, 20001)), f"{shape} {options}: {len(numbers)} lines, then {text[-500:]}")
    jobs.check("+" in shape or "--tee=3" in options or ALL in bare, f"another order: {bare[:3000]}")
    prefixed = "[default1]:late out 1\n" in text and "[default1]:late err 1\n" in text
    jobs.check(prefixed == bool({"--tee=3", "--merge-logs"} & set(options)), f"prefixes: {text[:3000]}")


def check_detached(launchers, cells):
    jobs.isolate()
    for shape, *options in cells:
        for launcher in launchers:
            if launcher == "torchrun" and "--merge-logs" in options:
                continue
            with jobs.Scratch() as scratch:
                text = leave_one(scratch, launcher, shape, options)
                jobs.check(os.path.exists(scratch.path("finished")), f"{launcher} {shape} {options}: it did not finish\n{text[-3000:]}")
                jobs.check(not os.path.exists(scratch.path("told")), f"{launcher} {shape} {options}: it got SIGTERM")
                if launcher == "muster":
                    named = re.findall(r"pid \d+ of rank 1 runs on after the job: sh late", text)
                    jobs.check(len(named) == 1, f"{shape} {options}: it is named {len(named)} times\n{text[:3000]}")
                if "--tee=3" in options or "--redirects=3" in options:
                    check_files(scratch)
                if launcher == "muster" and "--redirects=3" not in options or not options:
                    check_late(text, shape, options)


def check_files(scratch):
    for stream, last in (("out", "20000"), ("err", "the end")):
        with open(find(scratch.path("logs"), f"std{stream}.log", "1"), encoding="utf-8") as kept:
            text = kept.read()
        jobs.check("".join(f"late {stream} {i}\n" for i in (1, 2, 3)) in text and text.endswith(f"{last}\n"), f"{stream}: {text[:500]}")


CORNER = [("file",), ("pipe",), ("pipe+file",), ("terminal",), ("file", "--merge-logs"), ("pipe+pipe", "--tee=3")]
SHAPES = ["file", "file+file", "pipe", "pipe+pipe", "pipe+file", "file+pipe", "terminal", "terminal+file", "file+terminal"]
MATRIX = [(shape, *more) for shape in SHAPES for more in ((), ("--merge-logs",), ("--tee=3",), ("--redirects=3",), ("--stderr-tail=0",))]


def case_detached_processes_finish():
    """After a success a process in a session of its own runs on, is named, and what it prints then arrives."""
    check_detached(["muster"], CORNER)


def case_detached_processes_finish_as_under_torchrun():
    """The same in every kind of place, beside torchrun."""
    jobs.need_torch()
    plain = [cell for cell in MATRIX if not {"--merge-logs", "--stderr-tail=0"} & set(cell)]
    check_detached(["torchrun"], plain)
    check_detached(["muster"], MATRIX)


def check_container(launcher):
    """As process 1 of a container; whether what was left behind got SIGTERM before it ended, and what was printed."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    jobs.isolate(mounts=True)
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise jobs.Skip("pid namespaces cannot be had")
    with jobs.Scratch() as scratch:
        text = leave_one(scratch, launcher, "file", [], inside)
        jobs.check(not os.path.exists(scratch.path("finished")), f"it outlived its container\n{text}")
        return os.path.exists(scratch.path("told")), text


def case_detached_processes_end_with_their_container():
    """As process 1 the launcher tells them to end, and says so: they end with it in any case."""
    told, text = check_container("muster")
    jobs.check(told and "nothing outlives it in its container" in text and "runs on after" not in text, text)
    jobs.check(re.search(r"pid \d+ of rank 1: sh late", text), text)


def case_detached_processes_end_with_torchruns_container():
    """torchrun leaves them to the kernel, which kills them."""
    jobs.need_torch()
    told, text = check_container("torchrun")
    jobs.check(not told, text)
