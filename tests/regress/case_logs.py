"""What workers print: nothing lost, doubled or mixed, torchrun's files, and terminals that stay terminals."""

import os
import re
import select
import signal
import subprocess
import sys
import time

import jobs


def damage(lines, worker_count, line_count, line_bytes, prefix=b""):
    """(missing, doubled, foreign) among `lines`, of the lines that flood workers print behind `prefix`."""
    expected = set()
    for rank in range(worker_count):
        head = prefix.replace(b"RANK", b"%d" % rank)
        for number in range(line_count):
            text = b"%d %d " % (rank, number)
            expected.add(head + text + bytes([97 + number % 26]) * (line_bytes - 1 - len(text)))
    seen = set()
    doubled = foreign = 0
    for line in lines:
        if line not in expected:
            foreign += 1
        elif line in seen:
            doubled += 1
        seen.add(line)
    return len(expected - seen), doubled, foreign


def in_order(lines, worker_count):
    """Whether each worker's lines come in the order of their numbers."""
    last = [-1] * worker_count
    for line in lines:
        found = re.match(rb"(?:\[.*?\]:)?(\d+) (\d+) ", line)
        rank, number = int(found[1]), int(found[2])
        if number <= last[rank]:
            return False
        last[rank] = number
    return True


def flood(scratch, options, line_count, line_bytes, how="", reader=None):
    """Runs four flooding workers; returns the console's lines. `reader` reads the pipe instead of a file."""
    more = [how] if how else []
    worker = ["--no-python", jobs.program("flood_worker"), scratch.channel.path, str(line_count), str(line_bytes), *more]
    arguments = ["--standalone", "--nproc-per-node=4", f"--log-dir={scratch.path('logs')}", *options, *worker]
    if not reader:
        process = scratch.run("muster", *arguments)
        process.expect(120, 0)
        with open(process.out_path, "rb") as text:
            return text.read().splitlines()
    ours, theirs = os.pipe()
    process = scratch.run("muster", *arguments, stdout=theirs)
    os.close(theirs)
    data = reader(ours)
    os.close(ours)
    process.expect(120, 0)
    return data.splitlines()


def read_all(fd):
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def read_slowly(fd):
    """A reader that stops for a moment now and then, and takes small bites."""
    chunks = []
    while chunk := os.read(fd, 20000):
        chunks.append(chunk)
        if len(chunks) % 50 == 0:
            time.sleep(0.02)
    return b"".join(chunks)


def files_of(scratch, name):
    found = []
    for root, _, names in os.walk(scratch.path("logs")):
        if name in names:
            found.append(os.path.join(root, name))
    return sorted(found)


def case_tee_loses_nothing():
    """--tee 3: each line of four flooding workers is on the console once, whole, in order, and in its file."""
    jobs.isolate()
    for reader, how in ((None, ""), (read_all, ""), (read_all, "line"), (read_slowly, "")):
        with jobs.Scratch() as scratch:
            lines = flood(scratch, ["--tee=3"], 20000, 100, how, reader)
            found = damage(lines, 4, 20000, 100, b"[defaultRANK]:")
            jobs.check(found == (0, 0, 0), f"missing, doubled, foreign on the console: {found} ({reader}, {how})")
            jobs.check(in_order(lines, 4), "lines of one worker are out of order")
            files = files_of(scratch, "stdout.log")
            jobs.check(len(files) == 4, f"files {files}")
            kept = []
            for path in files:
                with open(path, "rb") as text:
                    kept += text.read().splitlines()
            jobs.check(damage(kept, 4, 20000, 100) == (0, 0, 0), "the files are damaged")


def case_redirected_files_are_whole():
    """--redirects 3: the console is empty and each file is whole."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        lines = flood(scratch, ["--redirects=3"], 20000, 100)
        jobs.check(not lines, f"{len(lines)} lines on the console")
        kept = []
        for path in files_of(scratch, "stdout.log"):
            with open(path, "rb") as text:
                kept += text.read().splitlines()
        jobs.check(damage(kept, 4, 20000, 100) == (0, 0, 0), "the files are damaged")


def case_merged_lines_are_whole():
    """--merge-logs: whole prefixed lines, no files."""
    jobs.isolate()
    for reader in (None, read_all, read_slowly):
        with jobs.Scratch() as scratch:
            lines = flood(scratch, ["--merge-logs"], 20000, 100, "", reader)
            found = damage(lines, 4, 20000, 100, b"[defaultRANK]:")
            jobs.check(found == (0, 0, 0), f"missing, doubled, foreign: {found}; first: {lines[:2]}")
            jobs.check(in_order(lines, 4), "lines of one worker are out of order")
            jobs.check(not files_of(scratch, "stdout.log"), "files were written")


ODD_OUTPUT = """
import os, sys
rank = os.environ["RANK"].encode()
out = sys.stdout.buffer
out.write(b"big " + rank + b" " + rank * (1 << 20) + b"\\n")
out.write(b"binary " + rank + b" " + bytes(b for b in range(256) if b not in b"\\n\\r") + b"\\n")
out.write(b"\\n")
out.write(b"cr " + rank + b"\\r\\n")
out.write(b"last " + rank + b" without newline")
out.flush()
sys.stderr.write("err " + rank.decode() + "\\n")
"""


def case_odd_output_survives():
    """Lines of a megabyte, binary bytes, empty lines and a last line without newline come through --tee whole."""
    jobs.isolate()
    for options in (["--tee=3"], ["--merge-logs"]):
        with jobs.Scratch() as scratch:
            script = scratch.write("odd.py", ODD_OUTPUT)
            process = scratch.run("muster", "--standalone", "--nproc-per-node=2", *options, script)
            process.expect(30, 0)
            with open(process.out_path, "rb") as text:
                console = text.read()
            for rank in (b"0", b"1"):
                head = b"[default" + rank + b"]:"
                jobs.check(head + b"big " + rank + b" " + rank * (1 << 20) + b"\n" in console, "a long line is broken")
                jobs.check(head + b"binary " + rank + b" " + bytes(range(10)) in console, "binary bytes changed")
                jobs.check(bytes(range(128, 256)) + b"\n" in console, "high bytes changed")
                jobs.check(head + b"last " + rank + b" without newline" in console, "the last line is missing")
            starts = [m.start() for m in re.finditer(rb"\[default\d\]:", console)]
            jobs.check(
                all(i == 0 or console[i - 1 : i] == b"\n" for i in starts),
                f"a line begins in the middle of another ({options})",
            )
            jobs.check("[default1]:err 1" in process.err(), f"stderr is not on stderr\n{process.err()[-500:]}")


def case_line_shows_at_once():
    """With --tee a line is on the console while its worker still runs."""
    jobs.isolate()
    for options in (["--tee=3"], ["--merge-logs"]):
        with jobs.Scratch() as scratch:
            ours, theirs = os.pipe()
            command = ["--no-python", "sh", "-c", "echo early; exec sleep 60"]
            process = scratch.run("muster", "--standalone", *options, *command, stdout=theirs)
            os.close(theirs)
            ready = select.select([ours], [], [], jobs.SOON_S)[0]
            jobs.check(ready, f"nothing on the console ({options})\n{process.tail()}")
            text = os.read(ours, 1000)
            jobs.check(text == b"[default0]:early\n", f"{text!r}")
            os.close(ours)


def case_terminal_stays_a_terminal():
    """Without log options a worker's stdout is the launcher's: a terminal stays one, a pipe keeps its identity."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        master, slave = os.openpty()
        code = "import os, sys; sys.exit(0 if os.isatty(1) else 9)"
        process = scratch.run("muster", "--standalone", "--no-python", sys.executable, "-c", code, stdout=slave)
        process.expect(jobs.SOON_S, 0)
        os.close(slave)
        os.close(master)


def case_closed_console():
    """A reader of the console that goes away neither hangs nor kills the job's workers silently."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        ours, theirs = os.pipe()
        worker = ["--no-python", jobs.program("flood_worker"), scratch.channel.path, "20000", "100"]
        logs = f"--log-dir={scratch.path('logs')}"
        process = scratch.run("muster", "--standalone", "--tee=1", logs, *worker, stdout=theirs)
        os.close(theirs)
        os.read(ours, 100)
        os.close(ours)
        process.expect(60)
        scratch.expect_nobody()


# Each waits until all are ready to ignore the launcher's SIGTERM, and writes 1 KiB.
TALKATIVE = """
trap "" TERM
: > ready.$RANK
for rank in 0 1 2 3 4 5 6 7; do until [ -e ready.$rank ]; do sleep 0.01; done; done
for i in 1 2 3 4 5 6 7 8 9; do echo "$RANK $i $(printf %100s)" >&2; done
exit 3
"""


def talkative_job(scratch, stderr):
    """Eight workers that fail together: the report that quotes them does not fit into a pipe of one page."""
    import fcntl

    fcntl.fcntl(stderr, 1031, 4096)  # F_SETPIPE_SZ
    command = jobs.launcher_command("muster") + ["--standalone", "--nproc-per-node=8", "--no-python", "sh", "-c"]
    process = subprocess.Popen(
        [*command, TALKATIVE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=scratch.env(OMP_NUM_THREADS=1),  # or a warning comes before anything has started
        cwd=scratch.root,
    )
    os.close(stderr)
    return process


def case_stderr_that_does_not_wait():
    """A stderr that somebody left non-blocking, and that is read late, has every line and the whole report."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        process = talkative_job(scratch, theirs)
        jobs.check(select.select([ours], [], [], 20)[0], "nothing on stderr")
        time.sleep(0.3)  # the launcher is at its report by now, and the pipe is full
        text = read_all(ours).decode()
        os.close(ours)
        jobs.check(process.wait(30) == 1, f"exit code {process.returncode}")
        jobs.check(text.endswith("=====\n"), f"the end of the report is missing: {text[-300:]}")
        for rank in range(8):
            lines = [line for line in text.splitlines() if line.startswith(f"{rank} ")]
            jobs.check(len(lines) == 9, f"rank {rank}: {len(lines)} lines")


def case_stderr_that_nobody_reads():
    """A launcher whose stderr nobody reads can be ended, while its workers run and while it waits to report."""
    jobs.isolate()
    for wait_s in (0.05, 0.5):
        with jobs.Scratch() as scratch:
            ours, theirs = os.pipe()
            process = talkative_job(scratch, theirs)
            try:
                deadline = time.monotonic() + jobs.SOON_S
                while not all(os.path.exists(scratch.path(f"ready.{rank}")) for rank in range(8)):
                    jobs.check(time.monotonic() < deadline, "the workers did not start")
                    time.sleep(0.01)
                time.sleep(wait_s)
                process.send_signal(signal.SIGTERM)
                jobs.check(process.wait(20) == 1, f"exit code {process.returncode}")
                scratch.expect_nobody()
            finally:
                process.kill()
                os.close(ours)


def log_tree(scratch):
    found = []
    for root, folders, names in os.walk(scratch.path("logs")):
        for name in folders + names:
            path = os.path.relpath(os.path.join(root, name), scratch.path("logs"))
            found.append(re.sub(r"^job_[^/]{8}", "job_RANDOM", path))
    return sorted(found)


LAYOUTS = [
    ["--redirects=3"],
    ["--tee=1"],
    ["--redirects=0:1,1:2"],
    ["--tee=1:3", "--redirects=2"],
    ["--tee=3", "--duplicate-stdout-filters=needle"],
    ["--tee=3", "--local-ranks-filter=1"],
    [],
]


def case_log_layout_is_torchruns():
    """The same options give the same folders, files and contents as torchrun's."""
    jobs.need_torch()
    jobs.isolate()
    # Rank 1 fails when rank 0 has said all: what is printed does not depend on how soon a launcher notices.
    text = """
        echo out $RANK needle; echo plain $RANK; echo err $RANK >&2
        [ $RANK = 1 ] || : > said.$TORCHELASTIC_RESTART_COUNT
        until [ -e said.$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done
        exit $RANK"""
    command = ["--no-python", "sh", "-c", text]
    for options in LAYOUTS:
        seen = {}
        for launcher in ("torchrun", "muster"):
            with jobs.Scratch() as scratch:
                fixed = [
                    "--nnodes=1",
                    "--nproc-per-node=2",
                    "--max-restarts=1",
                    "--rdzv-backend=c10d",
                    "--rdzv-id=job",
                    f"--rdzv-endpoint=localhost:{jobs.free_port()}",
                    f"--log-dir={scratch.path('logs')}",
                ]
                process = scratch.run_to_end(launcher, *fixed, *options, *command, code=1)
                contents = {}
                for path in log_tree(scratch):
                    if path.endswith("stdout.log") and "filtered" not in path:
                        real = next(p for p in files_of(scratch, "stdout.log") if p.endswith(path.partition("/")[2]))
                        with open(real, encoding="utf-8") as text:
                            contents[path] = text.read()
                console = sorted(process.out().splitlines())
                seen[launcher] = (log_tree(scratch), contents, console)
        for index, what in enumerate(("files", "contents", "console")):
            theirs, ours = seen["torchrun"][index], seen["muster"][index]
            jobs.check(ours == theirs, f"{options}: {what} differ\n torchrun {theirs}\n muster   {ours}")


def case_prefix_template():
    """TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE replaces the prefix, and the option that."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        env = scratch.env(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name}/${rank}/${local_rank}/${nope}> ")
        command = ["--standalone", "--nproc-per-node=2", "--role=rr", "--tee=3", "--no-python", "echo", "hello"]
        process = scratch.run("muster", *command, env=env)
        process.expect(jobs.SOON_S, 0)
        lines = sorted(process.out().splitlines())
        jobs.check(lines == ["<rr/0/0/${nope}> hello", "<rr/1/1/${nope}> hello"], f"{lines}")
        command.insert(0, "--log-line-prefix-template=${hostname}-${rank}|")
        process = scratch.run("muster", *command, env=env)
        process.expect(jobs.SOON_S, 0)
        host = os.uname().nodename
        lines = sorted(process.out().splitlines())
        jobs.check(lines == [f"{host}-0|hello", f"{host}-1|hello"], f"{lines}")
