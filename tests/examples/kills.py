"""Jobs whose ranks are killed again and again, and what they end with. For tests, and for a long series:

    tests/examples/kills.py [--count N] [--seed S] [--program gpt|mnist] [--sharding ddp|fsdp]

kills ranks of N processes in all, at any moment, in jobs of 20 kills each, and compares every job's last snapshot with that of
a job that nobody disturbed. MUSTER_BINARY names the launcher; the trainers are in examples/ beside it.
"""

import argparse
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time

import trainers

GPT = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--batch=8", "--evaluate-every=0", "--report-every=0",
       "--save-every=0", "--sample=0", "--dropout=0.1")
STARTED = re.compile(r"^rank (\d+) of (\d+): pid (\d+), restart (\d+)")
FOUND = re.compile(r"^from (?:step (\d+), which was in memory|memory of epoch \d+, step (\d+)): ")


class Tally:
    """What the jobs came to: steps at which they went on, and seconds from a kill until that was known."""

    def __init__(self):
        self.kills, self.resumed, self.seconds, self.scratch = 0, [], [], 0


def job(program, workers, kills, arguments, folder, chance, pause, tally):
    """Runs a job, kills a rank each time that all have started and worked for a moment; its last snapshot."""
    options = ("--restart-backoff=0", f"--max-restarts={kills + 1}")
    command = trainers.command(workers, program, *arguments, f"--snapshot={folder}", launcher_options=options)
    left, pids, killed_at, attempt = kills, {}, {}, 0
    with trainers.Launcher(command) as launcher:
        for line in launcher.process.stdout:
            launcher.text += line
            found, started = FOUND.match(line), STARTED.match(line)
            if found:
                tally.resumed.append(int(found[1] or found[2]))
                if attempt - 1 in killed_at:
                    tally.seconds.append(time.monotonic() - killed_at[attempt - 1])
            tally.scratch += line.startswith("from scratch")
            if not started:
                continue
            if int(started[1]) == 0:
                attempt = int(started[4])  # whose next line says from where it goes on
            ranks = pids.setdefault(int(started[4]), [])
            ranks.append(int(started[3]))
            if len(ranks) == int(started[2]) and left > 0:
                time.sleep(chance.random() * pause)  # any moment will do
                try:
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                except ProcessLookupError:  # the job is over
                    continue
                killed_at[int(started[4])] = time.monotonic()
                left -= 1
        code = launcher.process.wait()
    tally.kills += kills - left
    assert code == 0, f"exit code {code}\n{launcher.text}"
    return trainers.snapshot(folder)


def compare(program, workers, kills, arguments, chance, pause, tally):
    """A job with kills and one without must end with the same bits, and only one of them may begin at the beginning."""
    with tempfile.TemporaryDirectory() as folder:
        whole = job(program, workers, 0, arguments, f"{folder}/whole", chance, pause, Tally())
        before = tally.scratch
        killed = job(program, workers, kills, arguments, f"{folder}/killed", chance, pause, tally)
        trainers.assert_same_bits(killed, whole)
        assert tally.scratch <= before + kills, "a committed state was not found"


def arguments_of(program, sharding, steps):
    return (*GPT, f"--sharding={sharding}", f"--steps={steps}") if program == "gpt" else (f"--steps={steps}", "--epochs=1000")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", choices=("gpt", "mnist"), default="gpt")
    parser.add_argument("--sharding", choices=("ddp", "fsdp"), default="fsdp")
    given = parser.parse_args()
    chance, tally = random.Random(given.seed), Tally()
    while tally.kills < given.count:
        compare(given.program, 2, min(20, given.count - tally.kills), arguments_of(given.program, given.sharding, 3000),
                chance, 0.3, tally)
        print(f"{tally.kills} kills", flush=True)
    seconds = sorted(tally.seconds)
    print(f"{tally.kills} ranks killed, {len(tally.resumed)} times a committed step was found, {tally.scratch} times none was there yet; "
          f"from a kill to the state: median {1e3 * statistics.median(seconds):.0f} ms, "
          f"99 % {1e3 * seconds[len(seconds) * 99 // 100]:.0f} ms, most {1e3 * seconds[-1]:.0f} ms")
    print("all jobs ended with the bits of an undisturbed one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
