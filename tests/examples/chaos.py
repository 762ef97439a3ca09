"""Jobs in which everything happens that may happen to workers, guardians and agents, and what they end with. For tests, and for a long
series (make soak-chaos):

    tests/examples/chaos.py [--count N] [--seed S] [--backend c10d|static|muster|muster3] [--survivors yes|no]
                            [--victim rank|guardian|agent|pause|arrival|mixed] [--logs FOLDER]

The number of a job, from --seed on, says all about it: --seed=17 --count=1 plays job 17 again. A job has one to three hosts, which are
agents of this machine whose ranks share no memory. At random moments a worker, a guardian or an agent is killed, a worker or an agent
is stopped for a while, or an agent comes. An agent that was killed is replaced at once, or not. The trainers keep their state, and give
the same bits on any number of ranks; with --survivors=continue some jobs shrink.

A job is lost if an agent that was left ends with another code than 0, hangs, or leaves something behind, or if the last snapshot is not
that of an undisturbed job. It may fail where restarts, nodes, or the host of the store were not left: then its agents name what was done.
"""

import argparse
import collections
import itertools
import os
import re
import signal
import sys
import tempfile
import time

import kills
import trainers
from chaos_plan import BACKENDS, CELLS, VICTIMS, Plan

IMAGES, TEST_IMAGES = 262, 24
BOUND_S = 120  # from the last thing done to a job to its end
JUST_S = 3  # a job that ends so soon after something was done may not have felt it
LAST = re.compile(r"^(median step: |final test accuracy: )")
WORLD = re.compile(r"Rendezvous complete: round (\d+)")
WORKER = re.compile(r"worker started: .*, rank (\d+), pid (\d+)")
BLAMED = re.compile(r"(?:connect to rank (\d+)|rank (\d+) (?:\([^)]*\) |on host \S+ )?(?:has died|has ended|is gone))")
PID = re.compile(r"pid:? (\d+)")
EXCUSED = {  # by what may be missing: what the report of an agent that ends with 1 then says
    "restarts": r"pid:? \d+",
    "nodes": r"no world was formed|no world of \d+ to \d+ nodes within|no further round|has gone|were lost|has left|cannot be formed|did not come",
    "quorum": r"may have been in a world before|has not come|have not come",
    "host": r"store|rendezvous|coordinator|pid:? \d+",
    "start": r"pid:? \d+",
    "end": r"succeeded already|is closed|has ended|came too late|too late|no further round",
}


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def marked(mark):
    """Processes with this in their environment."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Lost(Exception):
    """A job that did not end as it had to."""


class Job(kills.Team):
    """One job. What was done to it is in its text, beside what it said."""

    def __init__(self, plan, folder):
        self.plan, self.folder, self.chance = plan, folder, plan.chance
        self.began_at, self.host_of, self.words, self.log = time.monotonic(), {}, collections.defaultdict(str), []
        self.victims, self.started = set(), collections.defaultdict(dict)  # process ids, ranks by them
        self.worlds = collections.defaultdict(set)  # agents, by round
        self.gone, self.stopped, self.done = set(), {}, []
        self.missing = set()  # what the job may lack: keys of EXCUSED
        self.last_at, self.failed, self.failures = None, {}, collections.Counter()
        os.makedirs(f"{folder}/tmp")
        self.mark = f"MUSTER_CHAOS_FOLDER={folder}"
        super().__init__(plan.layout, plan.options(), [trainers.program(plan.program), *plan.base, *plan.more, f"--snapshot={folder}/snapshot"],
                         {"LOGLEVEL": "INFO", "TMPDIR": f"{folder}/tmp", "MUSTER_CHAOS_FOLDER": folder})

    def start(self, host):
        launcher = super().start(host)
        self.host_of[launcher] = host
        self.note(f"agent {launcher.pid} of host {host} begins")
        return launcher

    def note(self, what):
        self.log.append(f"{time.monotonic() - self.began_at:8.3f}    # {what}\n")

    # ---- what is there ----

    def at_work(self):
        return [launcher for launcher in self.launchers if launcher.poll() is None and launcher not in self.gone]

    def workers(self, launcher):
        return [worker for guardian in children(launcher.pid) for worker in children(guardian)]

    def draw_worker(self):
        """A worker, its guardian, and its agent; None: there is none at the moment."""
        found = [(worker, guardian, launcher) for launcher in self.at_work() for guardian in children(launcher.pid)
                 for worker in children(guardian) if worker not in self.victims]
        if self.plan.shrinks and len(found) < 2:
            return None
        return self.chance.choice(found) if found else None

    # ---- what is done ----

    def act(self):
        """False: it could not be done at the moment."""
        if self.missing & {"host", "nodes"}:
            return False
        kinds = VICTIMS[:-1] if self.plan.victim == "mixed" else (self.plan.victim, )
        kind = self.chance.choice(kinds)
        try:
            did = getattr(self, f"do_{kind}")()
        except (ProcessLookupError, FileNotFoundError):
            did = False
        if did:
            self.done.append((time.monotonic(), kind))
        return did

    def _kill_worker(self, has_guardian):
        found = self.draw_worker()
        if not found:
            return False
        worker, guardian, launcher = found
        killed = children(guardian) if has_guardian else [worker]
        if self.plan.shrinks and has_guardian and len([w for other in self.at_work() for w in self.workers(other)]) <= len(killed):
            return False
        self.note(f"kill {'guardian ' + str(guardian) if has_guardian else 'worker'} of host {self.host_of[launcher]}: {killed}")
        self.victims.update(killed)
        os.kill(guardian if has_guardian else worker, signal.SIGKILL)
        self.failures[self.host_of[launcher]] += 1
        if self.plan.shrinks and not self.trains:
            self.missing.add("start")  # there may be no group yet that could shrink
        if sum(self.failures.values()) > self.plan.restarts:
            self.missing.add("restarts")
        return True

    def do_rank(self):
        return self._kill_worker(False)

    def do_guardian(self):
        return self._kill_worker(True)

    def do_agent(self):
        launchers = self.at_work()
        if not launchers or (self.plan.shrinks and len(launchers) < 2):
            return False
        launcher = self.chance.choice(launchers)
        host = self.host_of[launcher]
        serves = len(self.ports) == 1 and host == 0
        if serves and not self.plan.may_lose:
            return False
        has_spare = len(launchers) - 1 >= self.plan.least
        must_return = self.plan.backend == "static" and self.plan.survivors  # else the others wait in vain (docs/process-groups.md)
        is_replaced = not serves and (must_return or self.chance.random() < (0.5 if has_spare or self.plan.may_lose else 1))
        self.note(f"kill agent {launcher.pid} of host {host}, {'which is replaced' if is_replaced else 'for good'}")
        self.victims.update((launcher.pid, *self.workers(launcher)))
        self.gone.add(launcher)
        launcher.kill()
        launcher.wait()
        if is_replaced:
            self.launchers.append(self.start(host))
        elif serves:
            self.missing.add("host")
        elif not has_spare:
            self.missing.add("nodes")
        members = self.worlds[max(self.worlds, default=0)]
        if self.plan.backend == "muster3" and 2 * len(members - self.gone) <= len(members):
            self.missing.add("quorum")  # of those who know which worlds there were
        return True

    def do_pause(self):
        found = self.draw_worker()
        if not found:
            return False
        pid = found[0] if self.chance.random() < 0.5 else found[2].pid
        seconds = 1 + 7 * self.chance.random()**2
        if pid not in self.stopped:
            self.note(f"stop {'worker' if pid == found[0] else 'agent'} {pid} of host {self.host_of[found[2]]} for {seconds:.1f} s")
            os.kill(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + seconds
        return True

    def do_arrival(self):
        taken = {self.host_of[launcher] for launcher in self.at_work()}
        free = [host for host in range(4) if host not in taken]
        if self.plan.backend == "static" or self.plan.layout.hosts == 1 or not free:
            return self.do_pause()
        self.note(f"a new agent, of host {free[0]}")
        self.launchers.append(self.start(free[0]))
        return True

    def wake(self, everybody=False):
        now = time.monotonic()
        for pid, until in list(self.stopped.items()):
            if everybody or now >= until:
                del self.stopped[pid]
                self.note(f"continue {pid}")
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass

    # ---- the course of it ----

    def play(self):
        act_at = time.monotonic() + 0.5 * self.chance.random()
        self.trains = False
        while self.left > 0:
            heard = self.next(0.05)
            now = time.monotonic()
            self.wake()
            if heard:
                self.hear(*heard)
            if self.last_at is None and len(self.done) < self.plan.deeds and now >= act_at:
                act_at = now + (self.chance.random()**2 * 1.5 if self.act() else 0.05)
            if now > BOUND_S + (self.done[-1][0] if self.done else self.began_at):
                self.note(f"still there after {BOUND_S} s: {[launcher.pid for launcher in self.launchers if launcher.poll() is None]}")
                raise Lost("hangs")

    def hear(self, launcher, came_at, line):
        host = self.host_of.get(launcher, "?")
        if line is None:
            self.note(f"agent {launcher.pid} of host {host} has ended: {launcher.returncode}")
            if launcher.returncode == 0 and self.last_at is None:
                self.last_at = came_at
            return
        self.log.append(f"{came_at - self.began_at:8.3f} {host} {line}")
        self.words[launcher] += line
        formed = WORLD.search(line)
        if formed:
            self.worlds[int(formed[1])].add(launcher)
        started = WORKER.search(line)
        if started:
            self.started[launcher][int(started[2])] = int(started[1])
        if kills.STARTED.match(line):
            self.trains = False
        if re.match(r"step \d|epoch \d", line):
            self.trains = True
        if LAST.match(line):
            self.last_at = came_at
        if self.has_succeeded and kills.LATE in line:
            self._dismiss_late()

    # ---- what came of it ----

    def just_done(self):
        """Something was done when the job was about to end. Who was hit then may find it over."""
        return self.last_at is not None and bool(self.done) and self.last_at - self.done[-1][0] < JUST_S

    def judge_code(self, launcher):
        code = launcher.returncode
        if code == 0 or launcher in self.late or launcher in self.gone:
            return
        words = self.words[launcher]
        cause = words.rpartition("Root Cause")[2]
        ranks = {ranks[pid] for ranks in self.started.values() for pid in set(ranks) & self.victims}
        is_true = bool({int(pid) for pid in PID.findall(cause)} & self.victims or {int(found[1] or found[2]) for found in BLAMED.finditer(cause)} & ranks)
        missing = self.missing | ({"end"} if self.just_done() or launcher not in self.launchers[:self.plan.layout.hosts] else set())
        if self.plan.shrinks and is_true and "start" not in missing:
            if set(self.started[launcher]) <= self.victims:
                return
            raise Lost(f"host {self.host_of[launcher]} ended with {code}, and had workers that were let alone")
        if "restarts" in missing and cause and not is_true:
            raise Lost(f"host {self.host_of[launcher]} names another cause")
        if not any(re.search(EXCUSED[what], words) for what in missing):
            raise Lost(f"host {self.host_of[launcher]} ended with {code}" + (f", without a true cause: {sorted(missing)}" if missing else ""))

    def judge(self, whole):
        for launcher in self.host_of:
            self.judge_code(launcher)
        codes = [launcher.returncode for launcher in self.host_of if launcher not in self.gone and launcher not in self.late]
        if 0 in codes or not self.missing:
            if not os.path.isdir(f"{self.folder}/snapshot"):
                raise Lost("no snapshot")
            try:
                trainers.assert_same_bits(trainers.snapshot(f"{self.folder}/snapshot"), whole)
            except AssertionError as problem:
                raise Lost(str(problem)) from None
        until = time.monotonic() + 5
        while (left := marked(self.mark)) and time.monotonic() < until:
            time.sleep(0.02)
        if left:
            raise Lost(f"left behind: {[process_line(pid) for pid in left]}")
        files = [name for name in os.listdir(f"{self.folder}/tmp") if not name.startswith("torchelastic_")]  # logs of attempts that failed
        if files:
            raise Lost(f"left in /tmp: {files}")

    def end_all(self):
        self.wake(everybody=True)
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.terminate()
        until = time.monotonic() + 10
        while marked(self.mark) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in marked(self.mark):
            self.note(f"had to be killed: {process_line(pid)}")
            os.kill(pid, signal.SIGKILL)


def process_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return f"{pid} {file.read().replace(b'%c' % 0, b' ').decode(errors='replace')}"
    except OSError:
        return str(pid)


class Wholes:
    """The last snapshots of undisturbed jobs. The number of ranks changes no bit."""

    def __init__(self):
        self.known = {}
        self.data = tempfile.TemporaryDirectory()
        self.option = trainers.small_data(self.data.name, IMAGES, TEST_IMAGES)

    def of(self, plan):
        if plan.program == "mnist":
            plan.base += (self.option,)
        if plan.base not in self.known:
            with tempfile.TemporaryDirectory() as folder:
                trainers.run(0, plan.program, *plan.base, f"--snapshot={folder}/whole")
                self.known[plan.base] = trainers.snapshot(f"{folder}/whole")
        return self.known[plan.base]


def play(plan, wholes, logs):
    """Why the job was lost, or None; its log is kept then."""
    whole, why, before = wholes.of(plan), None, set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="muster-chaos-") as folder:
        job = Job(plan, folder)
        try:
            with job:
                try:
                    job.play()
                except Lost as problem:
                    why = str(problem)
                finally:
                    job.end_all()
            if why is None:
                job.judge(whole)
        except Lost as problem:
            why = str(problem)
        left = {name for name in set(os.listdir("/dev/shm")) - before if "muster" in name}
        why = why or (f"left in /dev/shm: {left}" if left else None)
        if why or os.environ.get("MUSTER_CHAOS_KEEP"):
            os.makedirs(logs, exist_ok=True)
            with open(os.path.join(logs, f"job-{plan.number}.txt"), "w", encoding="utf-8") as file:
                file.write(f"job {plan.number}: {plan}\n{why}\n")
                file.writelines(job.log)
    return why, job


def series(plans, logs):
    """Plays them. How many there were, by cell, and which were lost."""
    counts, lost, wholes = collections.Counter(), collections.defaultdict(list), Wholes()
    for plan in plans:
        number, began_at = plan.number, time.monotonic()
        why, job = play(plan, wholes, logs)
        cell = (plan.backend, plan.survivors, plan.victim)
        counts[cell] += 1
        if why:
            lost[cell].append(number)
        may = f", may fail for want of {', '.join(sorted(job.missing))}" if job.missing else ""
        codes = [launcher.returncode for launcher in job.host_of]
        print(f"{'LOST ' if why else ''}job {number} ({time.monotonic() - began_at:.1f} s): {plan}; {len(job.done)} deeds, codes {codes}{may}"
              f"{': ' + why if why else ''}", flush=True)
    return counts, lost


def table(counts, lost):
    print(f"{'backend':8} {'survivors':9} {'victim':9} {'jobs':>5} {'lost':>5}  jobs that were lost (--seed=N --count=1)")
    for cell in sorted(counts):
        print(f"{cell[0]:8} {'continue' if cell[1] else 'stop':9} {cell[2]:9} {counts[cell]:5} {len(lost[cell]):5}  "
              f"{' '.join(map(str, lost[cell]))}")
    print(f"{sum(counts.values())} jobs, {sum(map(len, lost.values()))} lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--survivors", choices=("yes", "no"))
    parser.add_argument("--victim", choices=VICTIMS)
    parser.add_argument("--logs", default=os.path.join(tempfile.gettempdir(), "muster-chaos-logs"), help="where logs of lost jobs go")
    given = parser.parse_args()
    wanted = (given.backend, {"yes": True, "no": False}.get(given.survivors), given.victim)
    plans = map(Plan, (number for number in itertools.count(given.seed)
                       if all(want in (None, is_so) for want, is_so in zip(wanted, CELLS[number % len(CELLS)]))))
    counts, lost = series(itertools.islice(plans, given.count), given.logs)
    table(counts, lost)
    if any(lost.values()):
        print(f"logs of lost jobs: {given.logs}")
    return int(any(lost.values()))


if __name__ == "__main__":
    sys.exit(main())
