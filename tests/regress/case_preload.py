"""--preload and spare nodes: a fork of the preload server is not to be told from a worker started as usual, but by the time it takes."""

import glob
import json
import os
import re
import signal
import struct

import jobs
from nodes import BACKEND, Pair

FORM_S = 60
IMPORTS = "decimal,nothing_of_that_name,neither?"
READY = r"the preload server \(pid \d+\) is ready: decimal in \d"
FACTS = os.path.join(jobs.HERE, "preload_facts.py")


def warm(seen):
    return seen["imported"]


def same_start(preloaded, cold):
    """What differs between two starts differs as it has to, nothing else does."""
    jobs.check(preloaded["imported"] and not cold["imported"], "it is not the preloaded one that has imported")
    theirs, ours = dict(cold, imported=None), dict(preloaded, imported=None)
    jobs.check(ours.pop("excepthook") in ("show", theirs.pop("excepthook")), f"excepthook {preloaded['excepthook']}")
    jobs.check(ours.pop("random") != theirs.pop("random"), "the same random numbers")
    cold_variables, variables = theirs.pop("environment"), ours.pop("environment")
    early = set(ours.pop("modules")) - set(theirs.pop("modules"))
    jobs.check(not early, f"imported early: {early}")
    for key, value in theirs.items():
        jobs.check(ours[key] == value, f"{key}: cold {value}, preloaded {ours[key]}")
    jobs.check(sorted(variables) == sorted(cold_variables), f"{set(variables) ^ set(cold_variables)}")
    may_differ = {"GROUP_RANK", "ROLE_RANK", "RANK", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT", "MUSTER_STOP_PATH", "MUSTER_HELD_SOCKET", "TORCHELASTIC_RUN_ID"}
    for name in set(variables) - may_differ:
        jobs.check(variables[name] == cold_variables[name], f"{name}: {cold_variables[name]}, preloaded {variables[name]}")


class Job:
    """One node of workers that write their facts down."""

    def __init__(self, scratch, *options, preload="decimal", nproc=2, script=(FACTS,), arguments=(), **more):
        self.scratch, self.nproc = scratch, nproc
        os.makedirs(scratch.path("facts"), exist_ok=True)
        self.mark = scratch.channel.mark()
        choice = [f"--preload={preload}"] if preload is not None else []
        command = [*script, scratch.channel.path, scratch.path("facts"), "two words", "${local_rank}", *arguments]
        env = scratch.env(LOGLEVEL="INFO", PYTHON_EXEC=jobs.python(), PYTHONPATH=scratch.path("modules"), PYTHONDONTWRITEBYTECODE="1", **more)
        self.agent = scratch.run("muster", "--standalone", f"--nproc-per-node={nproc}", "--restart-backoff=0", *choice, *options, *command, env=env)

    def starts(self, attempt=0):
        return {s.rank: s for s in self.scratch.channel.expect(self.nproc, "start", FORM_S, since=self.mark, attempt=attempt)}

    def facts(self, attempt=0):
        found = {}
        for rank, stamp in self.starts(attempt).items():
            with open(self.scratch.path("facts", str(stamp.pid)), encoding="utf-8") as text:
                found[rank] = json.load(text)
        return found

    def server(self):
        """Its process, the guardian's child that is no worker."""
        workers = {s.pid for s in self.scratch.channel.select("start")}
        found = [pid for pid in self.scratch.pids() if jobs.parent(jobs.parent(pid)) == self.agent.pid and pid not in workers]
        jobs.check(len(found) == 1, f"{found} are no workers")
        return found[0]

    def finish(self, attempt=0, code=0):
        for stamp in self.starts(attempt).values():
            jobs.tell_exit(stamp.pid, code)
        self.agent.expect(jobs.SOON_S, code)
        self.scratch.expect_nobody()

    def says(self, text, times=1):
        """It will: what workers write passes through the agent, and what it logs itself may come after their start."""
        self.agent.wait_line(re.escape(text), FORM_S, times)


def module(scratch, name, text):
    os.makedirs(scratch.path("modules"), exist_ok=True)
    path = scratch.path("modules", name + ".py")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def compare(scratch, *options, **more):
    cold = Job(scratch, *options, preload=None, **more)
    there = cold.facts()
    cold.finish()
    job = Job(scratch, *options, **more)
    here = job.facts()
    for rank, seen in here.items():
        same_start(seen, there[rank])
    jobs.check(len({seen["random"] for seen in here.values()}) == len(here), "ranks draw the same random numbers")
    job.finish()
    return job


def case_preloaded_start_is_the_usual_one():
    """A script, with its streams in files: what it can see of its start, and where its words go."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        job = compare(scratch, "--redirects=3", f"--log-dir={scratch.path('logs')}")
        for stream in ("stdout", "stderr"):
            for rank in range(2):
                paths = glob.glob(scratch.path("logs", "*", "attempt_0", str(rank), stream + ".log"))
                texts = [open(path, encoding="utf-8").read() for path in paths]
                jobs.check(texts == [f"{stream} of rank {rank}\n"] * 2, f"{texts}")
        job.says("is ready: decimal in ")


def case_preloaded_module_is_the_usual_one():
    """The same for -m, and for one worker, without streams that pass through the agent."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        with open(FACTS, encoding="utf-8") as text:
            scratch.write("some_module.py", text.read())
        compare(scratch, "--stderr-tail=0", nproc=1, script=("-m", "some_module"))


def case_preloaded_command_is_the_usual_one():
    """As PyTorch's launcher gives it: --no-python PYTHON -u SCRIPT."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        compare(scratch, script=("--no-python", jobs.python(), "-u", FACTS))


def case_preload_serves_every_attempt():
    """Restarts are forks of the same server, which outlives them and ends with the job."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=3")
        job.facts()
        server = job.server()
        for attempt in range(3):
            os.kill(job.starts(attempt)[1].pid, signal.SIGKILL)
            jobs.check(all(map(warm, job.facts(attempt + 1).values())), "not preloaded")
            jobs.check(job.server() == server, "another server")
        job.finish(3)


def case_preloaded_worker_fails_as_usual():
    """Exception, signal and exit code: traceback, report and restarts as usual."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=0")
        os.kill(job.starts()[1].pid, signal.SIGUSR1)
        job.agent.expect(jobs.SOON_S, 1)
        said = job.agent.err()
        trace = said[said.index("Traceback (most recent call last)") :]
        jobs.check("ValueError: as asked" in trace and "<string>" not in trace, f"not the usual traceback\n{trace}")
        job.says("exitcode  : 1")
        scratch.expect_nobody()
    with jobs.Scratch() as scratch:
        module(scratch, "has_hook", "import sys, traceback\ndef own(kind, problem, trace):\n    print('own hook', problem, len(traceback.extract_tb(trace)), file=sys.stderr)\n"
               "sys.excepthook = own\n")
        job = Job(scratch, "--max-restarts=0", preload="decimal,has_hook")
        os.kill(job.starts()[1].pid, signal.SIGUSR1)
        job.agent.expect(jobs.SOON_S, 1)
        job.says("own hook as asked 2\n")
        scratch.expect_nobody()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=0")
        os.kill(job.starts()[0].pid, signal.SIGSEGV)
        job.agent.expect(jobs.SOON_S, 1)
        job.says("exitcode  : -11")
        scratch.expect_nobody()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=0")
        jobs.tell_exit(job.starts()[0].pid, 7)
        job.agent.expect(jobs.SOON_S, 1)
        job.says("exitcode  : 7")
        scratch.expect_nobody()


def case_preload_server_that_dies_is_replaced():
    """Workers run on; the next attempt is served by another server. The fourth death in one attempt leaves workers to the usual start."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=2")
        job.facts()
        for deaths in range(1, 7):
            os.kill(job.server(), signal.SIGKILL)
            if deaths < 6:
                job.agent.wait_line(READY, FORM_S, times=deaths + 1)
            if deaths == 2:
                os.kill(job.starts()[0].pid, signal.SIGKILL)
                jobs.check(all(map(warm, job.facts(1).values())), "not preloaded")
        job.agent.wait_line("as 3 before it: workers are started as usual", FORM_S)
        os.kill(job.starts(1)[0].pid, signal.SIGKILL)
        jobs.check(not any(map(warm, job.facts(2).values())), "preloaded by nobody")
        job.finish(2)


def case_preload_server_dies_with_the_guardian():
    """Another guardian starts another server, whose forks the next attempt's workers are."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        job = Job(scratch, "--max-restarts=1")
        job.facts()
        os.kill(jobs.parent(job.server()), signal.SIGKILL)
        jobs.check(all(map(warm, job.facts(1).values())), "not preloaded")
        job.finish(1)


def case_preload_ends_with_its_agent():
    """SIGKILL and SIGTERM when workers run, these and Ctrl-C while it imports: nobody is left."""
    jobs.isolate()
    for how in (signal.SIGKILL, signal.SIGTERM):
        with jobs.Scratch() as scratch:
            job = Job(scratch)
            job.facts()
            job.agent.signal(how)
            job.agent.expect(jobs.SOON_S)
            scratch.expect_nobody()
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with jobs.Scratch() as scratch:
            module(scratch, "slow_one", f"import time\nopen({scratch.path('begun')!r}, 'w').close()\ntime.sleep(1000)\n")
            job = Job(scratch, preload="slow_one")
            jobs.wait_file(scratch.path("begun"), job.agent, FORM_S)
            job.agent.signal(how)
            job.agent.expect(jobs.SOON_S)
            scratch.expect_nobody()


# What a module does at import, and the sentence that says why it is left out.
UNSAFE = {
    "threads": ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n", "starts a thread (Thread-"),
    "socket": ("import socket\nkept = socket.socketpair()\n", "opens a connection (socket:"),
    "queue": ("import multiprocessing\nkept = multiprocessing.Pipe()\n", "opens a connection ("),
    "process": ("import subprocess\nkept = subprocess.Popen(['sleep', '1000'])\n", "starts a process ("),
    "closed": ("import os, socket\nnumber = os.open('/dev/null', os.O_RDONLY)\nimport decimal\nos.close(number)\nkept = socket.socket()\n", "opens a connection (socket:"),
    "variable": ("import os\nrank = os.environ.get('RANK')\n", "reads RANK, whose value only the worker has"),
    "local_rank": ("import os\nrank = int(os.getenv('LOCAL_RANK', '0'))\n", "reads LOCAL_RANK, whose value"),
    "map": ("import mmap\nkept = mmap.mmap(-1, 4096)\n", "keeps memory or a lock that forks would share (/dev/zero"),
    "lock": ("import multiprocessing\nkept = multiprocessing.Lock()\n", "keeps memory or a lock that forks would share (/dev/shm/sem."),
    "value": ("import multiprocessing\nkept = multiprocessing.Value('i', lock=False)\n", "keeps a file without a name (/dev/shm/"),
    "memfd": ("import os\nkept = os.memfd_create('a')\n", "keeps a file without a name (/memfd:a"),
    "nameless": ("import tempfile\nkept = tempfile.TemporaryFile()\n", "keeps a file without a name (/"),
    "temporary": ("import tempfile\nkept = tempfile.TemporaryDirectory(dir=FOLDER)\n", "for itself, which the first fork that ends would remove"),
    "named": ("import tempfile\nkept = tempfile.NamedTemporaryFile(dir=FOLDER)\n", "for itself, which the first fork that ends"),
    "own_lock": ("import fcntl\nkept = open(FOLDER + '/lock', 'w')\nfcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "locks the file "),
    "stream": ("import os\nos.dup2(os.open(FOLDER + '/said', os.O_CREAT | os.O_WRONLY), 1)\n", "leads the standard stream 1 to "),
    "errors": ("import os\nos.dup2(os.open(FOLDER + '/said', os.O_CREAT | os.O_WRONLY), 2)\n", "leads the standard stream 2 to "),
    "cpus": ("import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n", "changes on which processors it runs"),
    "locked": ("import ctypes\nkept = ctypes.create_string_buffer(4096)\nassert ctypes.CDLL(None).mlock(kept, 4096) == 0\n", "locks memory, which forks"),
    "cwd": ("import os\nos.chdir('/')\n", "changes the working folder to /, where the script"),
    "timer": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000)\n", "starts a timer"),
}

# They undo what they do.
SAFE = """import os, signal, socket, subprocess, sys, tempfile, threading
print("is_safe is imported", file=sys.stderr, flush=True)
threading.Thread(target=int).start()
[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]
socket.socketpair()
subprocess.run(["true"])
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile():
    here = os.getcwd()
    os.chdir(folder)
    os.chdir(here)
signal.alarm(100)
signal.alarm(0)
"""


def case_preload_leaves_out_what_is_unsafe():
    """Each sentence names the module. The other ones stay preloaded, also for the next attempt, and nothing is left of those."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        os.makedirs(scratch.path("kept"))
        for name, (text, _) in UNSAFE.items():
            module(scratch, "has_" + name, f"FOLDER = {scratch.path('kept')!r}\n" + text)
        module(scratch, "is_safe", SAFE)
        script = scratch.write("tells.py", "import os, sys\nprint(os.getcwd(), [name for name in sys.modules if name[:3] in ('has', 'is_')], file=sys.stderr, flush=True)\n"
                               f"sys.argv[0] = {FACTS!r}\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n")  # fmt: skip
        if len(os.sched_getaffinity(0)) == 1:
            module(scratch, "has_cpus", "import os\nos.getenv('RANK')\n")  # there is nothing to change
        names = ["is_safe", *("has_" + name for name in UNSAFE), "decimal"]
        job = Job(scratch, "--max-restarts=1", preload=",".join(names), script=(os.path.basename(script),))
        for attempt in range(2):
            jobs.check(all(map(warm, job.facts(attempt).values())), "not preloaded")
            job.says(f"{scratch.root} ['is_safe']", times=2 * (attempt + 1))
            if attempt == 0:
                os.kill(job.starts()[0].pid, signal.SIGKILL)
        for name, (_, why) in UNSAFE.items():
            why = "" if name == "cpus" else why
            jobs.check(re.search(f"the import of has_{name} .*{re.escape(why)}.*; has_{name} is left out", job.agent.err()), f"{name}: {job.agent.tail()}")
        jobs.check("as usual" not in job.agent.err(), job.agent.tail())
        job.says("is_safe is imported\n", times=2)
        left = set(os.listdir(scratch.path("kept"))) - {"lock", "said"}
        jobs.check(not left, f"left behind: {left}")
        job.finish(1)


def case_preload_refuses_when_nothing_is_left():
    """The only module is unsafe: the sentence names it, and workers start as usual."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        module(scratch, "has_threads", f"import decimal\nFOLDER = {scratch.root!r}\n" + UNSAFE["temporary"][0] + UNSAFE["threads"][0])
        there = set(os.listdir(scratch.root))
        job = Job(scratch, preload="has_threads")
        jobs.check(not any(map(warm, job.facts().values())), "forked all the same")
        job.says("the import of has_threads starts a thread (Thread-1")
        left = [name for name in set(os.listdir(scratch.root)) - there if os.path.isdir(scratch.path(name)) and name.startswith("tmp")]
        jobs.check(not left, f"left behind: {left}")
        job.says("started as usual")
        job.finish()


# What a module does at import; and what each worker finds then.
KEPT = {
    "position": ("file = open(FOLDER + '/numbers', 'rb', buffering=0)\nfile.seek(80)\n", "(os.lseek(keeps_position.file.fileno(), 0, os.SEEK_CUR), own_reads(keeps_position.file)) == (80, True)"),
    "copied": ("import os\nnumber = os.open(FOLDER + '/numbers', os.O_RDONLY)\ncopy = os.dup(number)\n",
               "[os.read(keeps_copied.number, 8), os.read(keeps_copied.copy, 8)] == [bytes(8), b'\\1' + bytes(7)]"),
    "buffered": ("file = open(FOLDER + '/numbers', 'rb')\nfile.read(8)\n", "(keeps_buffered.file.tell(), own_reads(keeps_buffered.file)) == (8, True)"),
    "appended": ("file = open(FOLDER + '/log', 'a')\n", "keeps_appended.file.write(f'{os.getpid()}\\n') > 0"),
    "inherited": ("import os\nnumber = os.open(FOLDER, os.O_RDONLY)\nos.set_inheritable(number, True)\n", "os.get_inheritable(keeps_inherited.number) and 'numbers' in os.listdir(keeps_inherited.number)"),
    "shared_lock": ("import fcntl\nfile = open(FOLDER + '/numbers')\nfcntl.flock(file, fcntl.LOCK_SH)\n", "'lock:' in open(f'/proc/self/fdinfo/{keeps_shared_lock.file.fileno()}').read()"),
    "not_followed": ("import os\nnumber = os.open(FOLDER + '/numbers', os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT)\n", "os.read(keeps_not_followed.number, 8) == bytes(8)"),
    "named_map": ("import mmap\nwith open(FOLDER + '/mapped', 'r+') as file:\n    map = mmap.mmap(file.fileno(), 8)\n", "keeps_named_map.map[0] == 1"),
    "generator": ("import random\ndrawn, given = random.Random(), random.Random(5)\nlater = random.Random()\nlater.seed(5)\nrandom.seed(5)\n",
                  "keeps_generator.given.random() == keeps_generator.later.random() == random.random() == random.Random(5).random()"),
    "null": ("file = open('/dev/null', 'w')\n", "True"),
}  # fmt: skip
KEPT_SCRIPT = """import os, random, struct, sys
%s

def own_reads(file):
    order = [random.Random(os.getpid()).randrange(10000) for _ in range(10000)]
    return all([file.seek(8 * n), struct.unpack("=Q", file.read(8))[0]][1] == n for n in order)

for expression in %r:
    print(f"holds: {eval(expression)}: {expression}", file=sys.stderr, flush=True)
print(f"drawn {keeps_generator.drawn.random()}", file=sys.stderr, flush=True)
keeps_appended.file.flush()
sys.argv[0] = %r
exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))
"""


def case_preload_keeps_files_and_generators():
    """Each worker has a position of its own in what modules keep open, and numbers of its own from what nobody has seeded."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        os.makedirs(scratch.path("kept"))
        with open(scratch.path("kept", "numbers"), "wb") as numbers:
            numbers.write(b"".join(struct.pack("=Q", number) for number in range(10000)))
        with open(scratch.path("kept", "mapped"), "wb") as mapped:
            mapped.write(b"\1" + bytes(7))
        for name, (text, _) in KEPT.items():
            module(scratch, "keeps_" + name, f"FOLDER = {scratch.path('kept')!r}\n" + text)
        names = ["keeps_" + name for name in KEPT]
        script = scratch.write("tells.py", KEPT_SCRIPT % ("import " + ", ".join(names), [seen for _, seen in KEPT.values()], FACTS))
        job = Job(scratch, "--max-restarts=2", preload=",".join(["decimal", *names]), script=(script,))
        open_files = set()
        for attempt in range(3):
            jobs.check(all(map(warm, job.facts(attempt).values())), "not preloaded")
            open_files.add(len(os.listdir(f"/proc/{job.server()}/fd")))
            if attempt < 2:
                os.kill(job.starts(attempt)[1].pid, signal.SIGKILL)
        job.says("holds: True", times=3 * 2 * len(KEPT))
        jobs.check(len(open_files) == 1, f"descriptors of the server: {open_files}")
        jobs.check(" left out" not in job.agent.err() and "holds: False" not in job.agent.err(), job.agent.tail())
        drawn = re.findall(r"drawn [0-9.e-]+", job.agent.err())
        jobs.check(len(set(drawn)) == 6, f"{drawn}")
        with open(scratch.path("kept", "log"), encoding="ascii") as log:
            jobs.check(len(set(log)) == 6, "lines of workers are lost")
        os.rename(scratch.path("kept", "numbers"), scratch.path("kept", "old"))
        job.finish(2)


def case_preload_gives_up_imports_that_hang():
    """An import that waits for ever, and a server that is stopped: workers start as usual, and later attempts do not wait."""
    jobs.isolate()
    for text in ("import time\ntime.sleep(1000)\n", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"):
        with jobs.Scratch() as scratch:
            module(scratch, "hangs", text)
            job = Job(scratch, "--max-restarts=1", preload="decimal,hangs", MUSTER_PRELOAD_TIMEOUT="0.5")
            jobs.check(not any(map(warm, job.facts().values())), "preloaded by nobody")
            job.says("has made no progress for 0.5 s (MUSTER_PRELOAD_TIMEOUT), and is given up; workers are started as usual")
            os.kill(job.starts()[0].pid, signal.SIGKILL)
            job.facts(1)
            job.finish(1)


def case_preload_lets_modules_look_through_the_variables():
    """As tqdm and fsspec do when they are imported, for those of their own: only these must be the same in the worker."""
    jobs.isolate()
    for name, begin, is_forked in (("tqdm.utils", "TQDM_", True), ("tqdm.others", "RAN", False), ("fsspec.config", "FSSPEC", True)):
        with jobs.Scratch() as scratch:
            folder, _, path = name.partition(".")
            os.makedirs(scratch.path("modules", folder))
            module(scratch, f"{folder}/__init__", "")
            module(scratch, f"{folder}/{path}", f"import os\nmine = {{name: value for name, value in dict(os.environ).items() if name.startswith({begin!r})}}\n")
            job = Job(scratch, preload=f"decimal,{name}")
            jobs.check(all(map(warm, job.facts().values())), f"{name}: not forked")
            jobs.check((f"{name} is left out" in job.agent.err()) != is_forked, f"{name}: forked is not {is_forked}")
            job.finish()


def case_preload_keeps_what_imports_set():
    """Variables that a module sets, removes, or sets for a moment: the worker finds them as if it had imported the module itself."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        module(scratch, "sets", "import os\n"
               "os.environ.setdefault('MINE_A', '1')\nos.environ.setdefault('MINE_B', '1')\nos.environ['MINE_C'] = '1'\n"
               "del os.environ['MINE_D']\nos.environ['MINE_E'] = os.environ['MINE_E'] + '1'\n"
               "os.environ['MINE_F'] = '1'\nassert os.environ['MINE_F'] == '1'\ndel os.environ['MINE_F']\n")
        show = "sorted((name, text) for name, text in os.environ.items() if name.startswith('MINE_'))"
        script = scratch.write("tells.py", f"import sets, os, sys\nprint({show}, file=sys.stderr, flush=True)\n"
                               f"sys.argv[0] = {FACTS!r}\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n")  # fmt: skip
        wanted = [("MINE_A", "1"), ("MINE_B", "2"), ("MINE_C", "1"), ("MINE_E", "21")]
        for preload in (None, "decimal,sets"):
            job = Job(scratch, preload=preload, script=(script,), MINE_B="2", MINE_C="2", MINE_D="2", MINE_E="2")
            jobs.check(all(map(warm, job.facts().values())) == bool(preload), f"with {preload}: not started so")
            job.says(str(wanted), times=2)
            job.finish()


def case_preload_imports_anew_what_has_changed():
    """Between two attempts a module's file changes: no worker has the old one."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = module(scratch, "version_of", "number = 1\n")
        script = scratch.write("says_version.py", "import sys, os\nimport version_of\nprint(f'version {version_of.number}', file=sys.stderr, flush=True)\n"
                               f"sys.argv[0] = {FACTS!r}\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n")  # fmt: skip
        job = Job(scratch, "--max-restarts=2", preload="decimal,version_of", script=(script,))
        job.facts()
        with open(path, "w", encoding="ascii") as file:
            file.write("number = 22\n")
        os.kill(job.starts()[0].pid, signal.SIGKILL)
        job.facts(1)
        job.says("version_of (" + path + ") has changed since it was imported")
        job.agent.wait_line(READY.replace("decimal", "decimal, version_of"), FORM_S, times=2)
        os.kill(job.starts(1)[0].pid, signal.SIGKILL)
        jobs.check(all(map(warm, job.facts(2).values())), "not preloaded")
        job.says("version 22\n", times=4)
        job.says("version 1\n", times=2)
        job.finish(2)


PYTORCH_WAYS = """
import multiprocessing, os, random, sys
import draws, numpy, torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([float(index)])

def double(number):
    return 2 * number

@record
def main():
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    drawn = [None] * dist.get_world_size()
    dist.all_gather_object(drawn, (random.random(), numpy.random.rand(), torch.initial_seed(), torch.get_num_threads(), list(multiprocessing.current_process().authkey), draws.drawn.random(), draws.old.rand(), draws.given.random()))
    for place in (0, 1, 2, 4, 5, 6):
        assert len({str(mine[place]) for mine in drawn}) == len(drawn), ("not drawn anew", place)
    assert {mine[3] for mine in drawn} == {2} and {mine[7] for mine in drawn} == {numpy.random.default_rng(5).random()}, drawn
    for way in ("spawn", "forkserver", "fork") if attempt == rank == 1 else ("fork",):
        with multiprocessing.get_context(way).Pool(1) as pool:
            assert pool.map(double, [1, 2]) == [2, 4]
        loaded = list(DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=way))
        assert torch.cat(loaded).sum().item() == 28
    weights = torch.ones(300, 300, requires_grad=True)
    (weights @ weights).sum().backward()
    dist.barrier()
    if attempt == 0 and rank == 1:
        raise ValueError("as recorded")
    if attempt == 0:
        dist.barrier()
    dist.destroy_process_group()
    os.write(os.open(sys.argv[1], os.O_RDWR), f"start ns=0 pid={os.getpid()} rank={rank} attempt={attempt}\\n".encode())

if __name__ == "__main__":
    main()
"""


def case_preloaded_pytorch_keeps_its_ways():
    """Groups form, fail and form again; @record, data loaders and processes of every kind, threads and random numbers are as usual."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        module(scratch, "draws", "import numpy\ndrawn, old, given = numpy.random.default_rng(), numpy.random.RandomState(), numpy.random.default_rng(5)\n")
        script = scratch.write("ways.py", PYTORCH_WAYS)
        job = Job(scratch, "--max-restarts=1", "--tee=2", f"--log-dir={scratch.path('logs')}", preload="numpy,torch,torch.distributed,draws", script=(script,),
                  OMP_NUM_THREADS="2")  # fmt: skip
        job.agent.expect(FORM_S, 0)
        job.starts(1)
        said = job.agent.err()
        jobs.check("ValueError: as recorded" in said and "started as usual" not in said and "left out" not in said, job.agent.tail())
        paths = glob.glob(scratch.path("logs", "*", "attempt_0", "1", "error.json"))
        jobs.check(len(paths) == 1, f"{paths}")
        with open(paths[0], encoding="utf-8") as text:
            jobs.check("as recorded" in json.load(text)["message"]["message"], f"{paths}")
        scratch.expect_nobody()


def case_preloaded_seeds_hold():
    """A module seeds the generators of Python, numpy and PyTorch at import: all ranks go on from there, as without --preload."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        module(scratch, "gives_seeds", "import random, numpy, torch\nrandom.seed(1)\nnumpy.random.seed(1)\ntorch.manual_seed(1)\n")
        script = scratch.write("tells.py", "import sys, gives_seeds, random, numpy, torch\n"
                               "print(f'draws {random.random():.5f} {numpy.random.rand():.5f} {torch.rand(1).item():.5f}', file=sys.stderr, flush=True)\n"
                               f"sys.argv[0] = {FACTS!r}\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n")  # fmt: skip
        job = Job(scratch, preload="decimal,gives_seeds", script=(script,))
        jobs.check(all(map(warm, job.facts().values())), "not preloaded")
        job.says("draws 0.13436 0.41702 0.75763", times=2)
        job.finish()


def case_preload_survives_its_imports():
    """Modules that end the process, change sys.path or read how the program was started: as in a worker that imports them itself."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        module(scratch, "leaves", "import sys\nsys.exit(0)\n")
        module(scratch, "looks", "import sys\nsys.path.insert(0, '/nowhere')\nseen = (sys.argv[0], sys.argv[-1], sys.modules['__main__'].__file__)\n")
        script = scratch.write("tells.py", "import looks, sys\nprint(looks.seen, sys.path[0], file=sys.stderr, flush=True)\n"
                               f"sys.argv[0] = {FACTS!r}\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n")  # fmt: skip
        job = Job(scratch, preload="leaves,looks,decimal", script=(script,), arguments=("last",))
        jobs.check(all(map(warm, job.facts().values())), "not preloaded")
        job.says("leaves cannot be imported: SystemExit: 0")
        job.says(f"{(script, 'last', script)} /nowhere\n", times=2)
        job.finish()
    with jobs.Scratch() as scratch:
        module(scratch, "dies", "import os\nos._exit(0)\n")
        job = Job(scratch, preload="decimal,dies")
        jobs.check(not any(map(warm, job.facts().values())), "preloaded by nobody")
        job.agent.wait_line("as 3 before it: workers are started as usual", FORM_S)
        job.finish()


def case_preload_is_for_python():
    """An option says so; a variable, which may hold for all jobs, is passed over. Names that are none are refused."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        told = scratch.run_to_end("muster", "--preload=torch", "--no-python", "true", code=1)
        jobs.check("--preload is for Python programs" in told.err(), told.tail())
        told = scratch.run_to_end("muster", "--preload=a;b", FACTS, code=1)
        jobs.check("names of modules" in told.err(), told.tail())
        scratch.run_to_end("muster", "--no-python", "true", code=0, env=scratch.env(MUSTER_PRELOAD="torch"))
        scratch.expect_nobody()


# ---------------------------------------------------------------------------
# spare nodes


class WarmPair(Pair):
    """Nodes A and B, and spares of Python workers."""

    def __init__(self, scratch, *options, **more):
        os.makedirs(scratch.path("facts"), exist_ok=True)
        os.environ.update(LOGLEVEL="INFO", MUSTER_WARM_IMPORTS=IMPORTS)
        native = ["--rdzv-backend=muster"] if BACKEND != "etcd-v3" else []
        options = [*native, "--spares=2", "--max-restarts=3", *options]
        worker = [FACTS, scratch.channel.path, scratch.path("facts"), "two words", "${local_rank}"]
        super().__init__(scratch, nnodes="2", options=options, worker=worker, **more)

    def start_spare(self, name="C", options=()):
        """Its server has imported."""
        spare = self.start(1, name=name, options=options)
        spare.wait_line(READY, FORM_S)
        return spare

    def servers(self, name):
        """The guardian's children, who are all that a spare agent has."""
        agent = self.agents[name].pid
        return [pid for pid in self.scratch.pids() if jobs.parent(jobs.parent(pid)) == agent]

    def lose(self, name):
        mark = self.channel.mark()
        self.agents[name].signal(signal.SIGKILL)
        return self.expect_world(4, FORM_S, mark)

    def facts_of(self, stamp):
        with open(self.scratch.path("facts", str(stamp.pid)), encoding="utf-8") as text:
            return json.load(text)


def take_over(scratch, pair, options=()):
    starts = pair.start_both()
    pair.start_spare(options=options)
    jobs.check(len(pair.servers("C")) == 1, f"{pair.servers('C')}")
    starts = pair.lose("B")
    cold = {f["environment"]["LOCAL_RANK"]: f for f in map(pair.facts_of, pair.workers_of(starts, "A"))}
    for stamp in pair.workers_of(starts, "C"):
        facts = pair.facts_of(stamp)
        jobs.check(facts["environment"]["RANK"] == str(stamp.rank), f"{facts['environment']}")
        same_start(facts, cold[facts["environment"]["LOCAL_RANK"]])
    return starts


def case_warm_spare_takes_over():
    """Forks of a spare's server become the workers of a killed node: a script sees no difference to a usual start."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch)
        pair.finish(take_over(scratch, pair))
        said = pair.agents["C"].err()
        jobs.check("nothing_of_that_name cannot be imported" in said and "neither" not in said, pair.agents["C"].tail())
        scratch.expect_nobody()


def case_warm_workers_have_error_files():
    """A spare's agent is killed after it took over: the outcome has the error file that a worker wrote."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.path("outcome.json")
        pair = WarmPair(scratch)
        starts = pair.workers_of(take_over(scratch, pair, [f"--outcome={path}"]), "C")
        environment = pair.facts_of(starts[0])["environment"]
        with open(environment["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as text:
            text.write("{}")
        pair.agents["C"].signal(signal.SIGKILL)
        pair.agents["A"].signal(signal.SIGTERM)
        pair.agents["A"].expect(FORM_S)
        scratch.expect_nobody()
        with open(path, encoding="ascii") as text:
            workers = json.load(text)["workers"]
        wrote = {w["local_rank"]: w["error_file"] for w in workers}
        jobs.check(sorted(w["pid"] for w in workers) == sorted(s.pid for s in starts), f"{workers}")
        local_rank = int(environment["LOCAL_RANK"])
        jobs.check(wrote == {local_rank: environment["TORCHELASTIC_ERROR_FILE"], 1 - local_rank: None}, f"{wrote}")


def case_warm_server_ends_with_its_agent():
    """SIGTERM, SIGKILL and the end of the job leave no server of a spare node."""
    jobs.isolate()
    for how in (signal.SIGTERM, signal.SIGKILL, None):
        with jobs.Scratch() as scratch:
            pair = WarmPair(scratch)
            starts = pair.start_both()
            spare = pair.start_spare()
            waiting = pair.servers("C")
            if how is not None:
                spare.signal(how)
                spare.expect(jobs.SOON_S)
                alive = [pid for pid in waiting if jobs.alive(pid)]
                if how == signal.SIGTERM:
                    jobs.check(not alive, f"{how.name} left {alive}")
            pair.finish(starts)
            scratch.expect_nobody()


def case_warm_server_dies_with_its_guardian():
    """Another guardian starts a new one, and the spare takes over as usual."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch)
        pair.start_both()
        spare = pair.start_spare()
        lost = pair.servers("C")
        os.kill(jobs.parent(lost[0]), signal.SIGKILL)
        spare.wait_line(READY, FORM_S, times=2)
        jobs.check(pair.servers("C") != lost, f"{lost}")
        starts = pair.lose("B")
        jobs.check(all(warm(pair.facts_of(s)) for s in pair.workers_of(starts, "C")), "not preloaded")
        pair.finish(starts)
        scratch.expect_nobody()


def case_spares_are_limited():
    """A node beyond --spares is refused with a sentence."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch, "--spares=1")
        starts = pair.start_both()
        pair.start_spare()
        late = pair.start(1, name="D")
        late.expect(jobs.SOON_S, 1)
        jobs.check("1 spare node waits already" in late.err(), f"no reason\n{late.tail()}")
        del pair.agents["D"]
        pair.finish(starts)
        scratch.expect_nobody()
