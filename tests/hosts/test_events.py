#!/usr/bin/env python3
# A host is silent for a while, and meanwhile something else happens; or its connections go, and it does not.
# waits: yes
"""A case is named EVENT/BACKEND: a function below, with this backend. together.py says how to run one."""

import contextlib
import os
import re
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import hosts  # noqa: E402
import jobs  # noqa: E402
import silence  # noqa: E402
import together  # noqa: E402

EVENTS = {}  # name -> (function, backends, options of its job)
AGAIN_S = 15  # a world that may form has formed
PATIENCE_S = 60
CLOSE_S = 3
MANY = 2 << 20  # numbers that no socket takes at once
MEMBERS = ("host0", "host1")

# What `make test` plays: each event once, with a backend that differs.
CORNER = [  # `whole_matrix` of tests/tiers stands for the rest
    "the_other_node_succeeds/c10d",
    "the_silent_node_succeeds/muster",
    "a_worker_of_the_other_node_fails/static",
    "a_firewall_forgets/muster",
    "a_host_reboots/etcd-v3",
    "a_receiver_takes_nothing/c10d",
    "another_address/muster3",
    "the_name_is_wrong_at_first/c10d",
]

# What does not hold yet (together.py).
UNTIL = {
    "the_other_node_succeeds/static": "until the backend holds",
    "the_other_node_succeeds/muster": "until the backend holds",
    "the_other_node_succeeds/muster3": "until the backend holds",
    "the_other_node_succeeds/etcd-v3": "until the backend holds",
    "the_silent_node_succeeds/muster*": "until the backend holds",
    "the_silent_node_succeeds/etcd-v3": "until the backend holds",
    "a_newcomer_gets_the_place/*": "until the backend holds",
    "the_silence_is_told/*": "until it is told",
    "a_host_reboots_as_the_same_process/c10d": "until an agent with an old name, address and process id is a newcomer",
    "a_host_reboots_as_the_same_process/etcd-v2": "until an agent with an old name, address and process id is a newcomer",
    "a_firewall_forgets/*": "until agents connect anew",
    "a_firewall_forgets_workers/*": "until workers connect anew",
    "a_firewall_refuses/c10d": "until agents connect anew",
    "a_firewall_refuses/static": "until agents connect anew",
    "a_receiver_takes_nothing_in_a_cut/*": "until the backend holds",
    "another_address*": "until agents connect anew",
}


def event(backends=silence.BACKENDS, **options):
    def note(function):
        EVENTS[function.__name__] = (function, backends, options)
        return function

    return note


def names():
    return [f"{name}/{backend}" for name, (_, backends, _) in EVENTS.items() for backend in backends]


def play(name, times):
    """The job has begun when the function is called, unless begins=False is among the options. It ends in finish(). hold_s: another hold time."""
    event_name, _, backend = name.partition("/")
    if event_name not in EVENTS or backend not in EVENTS[event_name][1]:
        sys.exit(f"{name}? There are: {' '.join(names())}")
    function, _, options = EVENTS[event_name]
    options = dict(options)
    begins = options.pop("begins", True)
    times = times._replace(hold_s=options.pop("hold_s", times.hold_s))
    with hosts.Network(["host0", "host1", "host2"]) as network, jobs.Scratch() as scratch:
        job = silence.Job(network, scratch, backend, times=times, **options)
        if begins:
            job.begin()
        try:
            function(job, times)
        finally:
            print(f"{name}: {[repr(life) for life in job.lives]}, overlaps {job.overlaps()}, codes {job.codes()}", flush=True)
        check_once(job)


def check_once(job):
    jobs.check(not job.overlaps(), f"two workers of one rank: {job.overlaps()}\n{job.told()}")


def finish(job, starts, codes=None, end=True):
    """All workers are told to end; so many have started, and agents end with 0 or the codes that are given by name."""
    if end:
        job.tell("end")
    job.until(job.ended, AGAIN_S + job.times.shutdown_s, "not all agents have ended")
    check_once(job)
    jobs.check(starts is None or len(job.lives) == starts, f"workers have started {len(job.lives)} times, not {starts}\n{job.told()}")
    for name, code in job.codes().items():
        jobs.check(code in (codes or {}).get(name, (0,)), f"{name} has ended with {code}\n{job.told()}")


def cut(job, host="host1"):
    """The host is silent until job.network.heal(): for longer than a silence, unless the event takes its time."""
    job.network.cut(host)
    job.pass_time(job.times.interval_s)


def rest(job):
    """What is left of a cut, and its end. Returns when that was."""
    job.pass_time(job.times.cuts[20] - job.times.interval_s)
    job.network.heal()
    return time.monotonic_ns()


def until_agreed(job, since_ns):
    job.until(lambda: job.agreed(since_ns), AGAIN_S, "the agents have not agreed again")


def until_runs(job, since_ns):
    """A whole world of workers, of which none has started before `since_ns`, unless that is 0."""
    def again():
        return job.runs() and all(life.start_ns > since_ns for life in job.living())

    job.until(again, AGAIN_S, "no world has formed again")


# --------------------------------------------------------------------------- within a cut


@event()
def the_other_node_succeeds(job, times):
    """It has to wait for the silent one, which goes on with its work."""
    cut(job)
    job.tell("end.host0")
    healed_ns = rest(job)
    until_agreed(job, healed_ns)
    job.pass_time(times.silence_s)
    jobs.check([life.host for life in job.living()] == ["host1"], f"not host1 alone is at work: {job.living()}\n{job.told()}")
    finish(job, 2)


@event()
def the_silent_node_succeeds(job, times):
    """It cannot tell anybody before the cut is over."""
    cut(job)
    job.tell("end.host1")
    healed_ns = rest(job)
    until_agreed(job, healed_ns)
    job.pass_time(times.silence_s)
    finish(job, 2)


@event()
def a_worker_of_the_other_node_fails(job, times):
    """The next world needs the silent node, and forms when that is back."""
    del times
    cut(job)
    begun_ns = time.monotonic_ns()
    job.tell("fail.host0")
    rest(job)
    until_runs(job, begun_ns)
    finish(job, 4)


@event()
def a_worker_of_the_silent_node_fails(job, times):
    """The others learn it when the node is back."""
    del times
    cut(job)
    begun_ns = time.monotonic_ns()
    job.tell("fail.host1")
    rest(job)
    until_runs(job, begun_ns)
    finish(job, 4)


def told_to_end(job, name, times):
    """The agent is told to end within a cut; it does, and leaves no worker behind."""
    cut(job)
    job.agents[name].signal(signal.SIGTERM)
    ends_s = times.shutdown_s + CLOSE_S + times.silence_s + 2
    job.until(lambda: job.ended([name]), ends_s, f"{name} has not ended")
    rest(job)
    jobs.check(not any(life.host == name for life in job.living()), f"a worker of {name} is left")
    other = next(host for host in MEMBERS if host != name)
    job.agents[other].signal(signal.SIGTERM)
    any_code = tuple(range(-64, 256))
    finish(job, None, dict.fromkeys(MEMBERS, any_code), end=False)


@event(conf=f",close_timeout={CLOSE_S}")
def the_other_agent_is_told_to_end(job, times):
    told_to_end(job, "host0", times)


@event(conf=f",close_timeout={CLOSE_S}")
def the_silent_agent_is_told_to_end(job, times):
    told_to_end(job, "host1", times)


@event()
def a_newcomer_gets_the_place(job, times):
    """When the silent node has not come back in time, and its workers must have ended. It may come back later."""
    cut(job)
    begun_ns = time.monotonic_ns()
    newcomer = job.start("host2", node_rank=1)
    job.until(lambda: any(life.host == "host2" for life in job.lives), times.hold_s + times.shutdown_s + AGAIN_S, "the newcomer gets no place")
    first_ns = min(life.start_ns for life in job.lives if life.host == "host2")
    least_s = times.hold_s + times.shutdown_s - 2 * times.interval_s
    waited_s = (first_ns - begun_ns) / silence.SECOND_NS
    jobs.check(waited_s >= least_s, f"the newcomer has the place after {waited_s:.1f} s, before {least_s} s\n{job.told()}")
    jobs.check("wait" in newcomer.err(), f"the newcomer has not said that it waits\n{newcomer.tail()}")
    rest(job)
    job.until(job.runs, AGAIN_S, "no world has formed again")
    job.pass_time(times.silence_s)
    finish(job, None, {"host1": (0, 1)})


@event(hold_s=90)
def the_silence_is_told(job, times):
    """After 15 s and each minute, by both sides, which name each other, or what they cannot reach."""
    cut(job)
    before = {name: len(job.agents[name].err()) for name in MEMBERS}
    names = {"host0": r"host1|10\.88\.0\.2\b", "host1": r"host0|10\.88\.0\.1\b|etcd"}

    def lines(name):
        return [line for line in job.agents[name].err()[before[name] :].splitlines() if re.search(names[name], line)]

    for count, within_s in ((1, 20), (2, 65)):
        job.until(lambda count=count: all(len(lines(name)) >= count for name in MEMBERS), within_s, f"not {count} lines on both sides")
    job.network.heal()
    goes_on(job, times, time.monotonic_ns())


def reboot(job, times, as_before):
    """Its agent is started again, on the same host, with the same address; as_before: with the same process id, too, as in a container."""
    begun_ns = time.monotonic_ns()
    host = job.network.hosts["host1"]
    host.reboot()
    job.agents["host1"].wait(PATIENCE_S)
    job.network.heal()
    if not as_before:
        host.start(job.scratch, "sleeper", ["sleep", "1000"])
    job.start("host1", name="host1 again")
    patience_s = times.hold_s + times.shutdown_s + AGAIN_S
    job.until(lambda: job.runs() and all(life.start_ns > begun_ns for life in job.living()), patience_s, "no world has formed again")
    finish(job, 4, {"host1": (-signal.SIGKILL,)})


@event()
def a_host_reboots(job, times):
    """Nobody is told; who speaks to it is refused."""
    reboot(job, times, False)


@event()
def a_host_reboots_as_the_same_process(job, times):
    reboot(job, times, True)


@event()
def a_host_reboots_in_a_cut(job, times):
    """The others cannot know whether it was silent or dead."""
    cut(job)
    job.pass_time(times.cuts[20] - times.interval_s)
    reboot(job, times, False)


# --------------------------------------------------------------------------- connections go, and hosts do not

def goes_on(job, times, since_ns):
    """The same workers, after the agents have agreed again, and no late verdict."""
    until_agreed(job, since_ns)
    job.pass_time(2 * times.silence_s)
    finish(job, 2)


@event()
def a_firewall_forgets(job, times):
    """What belongs to old connections is dropped; new ones pass."""
    since_ns = time.monotonic_ns()
    job.network.forget()
    job.pass_time(times.silence_s)
    goes_on(job, times, since_ns)


@event(worker="c")
def a_firewall_forgets_workers(job, times):
    """As above, with workers that talk. Their connections are lost for good: they start again at worst."""
    begun_ns = time.monotonic_ns()
    job.network.forget()
    patience_s = times.hold_s + times.shutdown_s + AGAIN_S

    def talks_again():
        return job.runs(begun_ns) and time.monotonic_ns() - begun_ns > times.silence_s * silence.SECOND_NS

    job.until(talks_again, patience_s, "the workers do not talk again")
    finish(job, None)


@event()
def a_firewall_refuses(job, times):
    """Packets of old connections are answered by RST, as if the other process was gone. Workers may start again."""
    since_ns = time.monotonic_ns()
    job.network.forget(refuses=True)
    until_agreed(job, since_ns)
    job.until(lambda: job.runs(since_ns), AGAIN_S, "no world runs")
    job.pass_time(times.silence_s)
    finish(job, None)


@event(worker="c", count=MANY)
def a_receiver_takes_nothing(job, times):
    """A worker is stopped for longer than a silence; the kernel of its host answers for it."""
    life = next(life for life in job.living() if life.host == "host1")
    pid = job.network.hosts["host1"].pid_here(life.pid)
    jobs.stop(pid)
    job.pass_time(2 * times.silence_s)
    os.kill(pid, signal.SIGCONT)
    continued_ns = time.monotonic_ns()
    job.until(lambda: job.runs(continued_ns), AGAIN_S, "the workers do not talk again")
    finish(job, 2)


@event(worker="c", count=MANY)
def a_receiver_takes_nothing_in_a_cut(job, times):
    """A worker is stopped, and its host is cut off meanwhile."""
    life = next(life for life in job.living() if life.host == "host1")
    pid = job.network.hosts["host1"].pid_here(life.pid)
    jobs.stop(pid)
    cut(job)
    healed_ns = rest(job)
    with contextlib.suppress(ProcessLookupError):  # it has been killed, which is seen below
        os.kill(pid, signal.SIGCONT)
    until_agreed(job, healed_ns)
    job.until(lambda: job.runs(healed_ns), AGAIN_S, "the workers do not talk again")
    finish(job, 2)
    del times


@event()
def another_address(job, times):
    """The host of another node gets another address: its agent connects anew, and its workers, which talk to nobody, go on."""
    job.network.hosts["host1"].readdress(f"{hosts.NETWORK}77")
    goes_on(job, times, time.monotonic_ns())


@event(backends=("c10d", "static", "muster", "muster3"))
def another_address_of_the_store(job, times):
    """The host of the store gets another address, to which its name leads."""
    job.network.hosts["host0"].readdress(f"{hosts.NETWORK}77")
    goes_on(job, times, time.monotonic_ns())


@event(backends=("c10d", "static", "muster", "muster3"), begins=False)
def the_name_is_wrong_at_first(job, times):
    """The name of the store's host leads nowhere, then to an address of nobody, then to the host."""
    address = job.network.hosts["host0"].address
    job.network.give_name("host0", None)
    job.start("host1")
    job.pass_time(times.interval_s)
    job.network.give_name("host0", f"{hosts.NETWORK}99")
    job.pass_time(times.silence_s)
    job.network.give_name("host0", address)
    job.start("host0")
    job.until(job.runs, AGAIN_S, "the job does not begin")
    finish(job, 2)


if __name__ == "__main__":
    sys.exit(together.main(__file__, CORNER, names, play, UNTIL))
