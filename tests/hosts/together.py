"""Cases of jobs on hosts, side by side: each in a process of its own, on hosts of its own.

    test_NAME.py [--real] [--together N] [NAME...]

Without names: the corner, and with `make test-all` (which leaves `whole_matrix` out of tests/tiers) all. --real: with the default settings of
the agents, which takes minutes. --together: so many at a time; they wait for most of the time. --list names all.

A test has a table UNTIL of what does not hold yet: patterns of names, and the reason. A case that fails is no failure of the test as long as a line is for
it; one that holds already is told. So take a line away when what it waits for is there."""

import fnmatch
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402
import silence  # noqa: E402

TOGETHER = 8


def reason(until, name):
    """Why it is no failure that this one fails, or None."""
    return next((why for pattern, why in until.items() if fnmatch.fnmatch(name, pattern)), None)


def play_one(play, name, times):
    """In a process of its own. Returns the exit code."""
    jobs.exit_on_signals()
    try:
        play(name, times)
    except jobs.Skip as why:
        print(f"{name}: {why}", flush=True)
        return jobs.SKIPPED
    except jobs.Failed as why:
        print(f"{name}: {why}", flush=True)
        return 1
    return 0


def tell(name, code, seconds, said, why):
    word = {0: "ok", jobs.SKIPPED: "SKIPPED"}.get(code, "FAILED")
    lines = said.rstrip().splitlines()
    if why and code != jobs.SKIPPED:
        word = f"{'holds already' if code == 0 else 'does not hold'}, {why}:"
        lines = lines[:2]
    print(f"{word} {name} ({seconds:.1f} s)", *(f"    {line}" for line in lines), sep="\n", flush=True)


def side_by_side(script, names, count, options, until):
    """Each in a process of its own, so many at a time. Returns exit codes by name."""
    waiting, running, codes = list(names), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                name = waiting.pop(0)
                child = subprocess.Popen([sys.executable, script, *options, "--one", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                         text=True, preexec_fn=jobs.die_with_parent)  # fmt: skip
                running[child.pid] = (name, child, time.monotonic())
            pid = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
            name, child, begun = running[pid]
            said = child.communicate()[0]
            del running[pid]
            codes[name] = child.returncode
            tell(name, child.returncode, time.monotonic() - begun, said, reason(until, name))
    finally:
        for _, child, _ in running.values():
            child.terminate()  # it cleans up
        for _, child, _ in running.values():
            child.communicate()
    return codes


def main(script, corner, everything, play, until):
    """corner: names; everything(): all of them. play(name, times) plays one. Returns the exit code."""
    words = sys.argv[1:]
    options = ["--real"] if "--real" in words else []
    times = silence.REAL if options else silence.SHORT
    words = [word for word in words if word != "--real"]
    if words[:1] == ["--one"]:
        return play_one(play, words[1], times)
    if words == ["--list"]:
        print("\n".join(everything()))
        return 0
    count = TOGETHER
    if words[:1] == ["--together"]:
        count, words = int(words[1]), words[2:]
    jobs.exit_on_signals()
    names = words or (everything() if cases.wanted("whole_matrix") else corner)
    codes = side_by_side(script, names, count, options, until)
    if set(codes.values()) == {jobs.SKIPPED}:
        print("SKIP: none of the cases can be played here")
        return jobs.SKIPPED
    failed = [name for name, code in codes.items() if code not in (0, jobs.SKIPPED) and not reason(until, name)]
    print(f"{len(codes) - len(failed)} of {len(codes)} as expected{'; failed: ' if failed else ''}{' '.join(failed)}", flush=True)
    return int(bool(failed))
