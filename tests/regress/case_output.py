"""Where what workers print ends up: beside torchrun, in files, pipes and terminals."""

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


def find(folder, name):
    for root, _, names in os.walk(folder):
        if name in names:
            return os.path.join(root, name)
    raise jobs.Failed(f"no {name} in {folder}")
