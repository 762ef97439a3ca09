"""An etcd that holds the rendezvous: what happens when it goes away, and with several of them to ask."""

import os
import shutil
import signal
import time

import case_end
import etcd
import jobs
from case_etcd3 import make_certificates
from nodes import Pair

BACKENDS = ("etcd-v2", "etcd")
CHANGE_S = 60
CONF = "--rdzv-conf=last_call_timeout=2"


def each(test):
    etcd.binary()
    jobs.isolate()
    for backend in BACKENDS:
        print(backend, flush=True)
        with jobs.Scratch() as scratch:
            test(scratch, backend)


def start_missed_etcd(pair):
    """Start the etcd of the pair once both agents miss it, and wait until both have its answer. An agent that does not ask
    while it is away says nothing."""
    for name in "AB":
        pair.agents[name].wait_line("etcd does not answer", 30)
    pair.etcd.start()
    for name in "AB":
        pair.agents[name].wait_line("etcd answers again", 30)


def case_etcd_restarts():
    """An etcd that is killed and started again stops no worker; after it a failure still restarts all of the job, and the
    job ends well."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF, "--max-restarts=2"], backend=backend)
        starts = pair.start_both()
        mark = scratch.channel.mark()
        pair.etcd.stop(signal.SIGKILL)
        start_missed_etcd(pair)
        jobs.check(not scratch.channel.select("signal", mark), "a worker was told to end")
        os.kill(pair.workers_of(starts, "B")[0].pid, signal.SIGKILL)
        pair.finish(pair.expect_world(4, CHANGE_S, mark))
        scratch.expect_nobody()

    each(test)


def case_etcd_restart_keeps_workers():
    """An etcd that is away for longer than a node may be silent, and comes back with its data, costs nothing: the workers keep
    their process ids, no restart is counted, and the job ends well."""
    silence_s = 2
    quick = f"{CONF},keep_alive_interval=1,keep_alive_max_attempt={silence_s}"

    def test(scratch, backend, nnodes, away_s, watched_s):
        pair = Pair(scratch, nnodes=nnodes, options=[quick, "--max-restarts=0"], backend=backend)
        starts = pair.start_both()
        mark = scratch.channel.mark()
        pair.etcd.stop(signal.SIGKILL)
        time.sleep(away_s)
        start_missed_etcd(pair)
        time.sleep(watched_s)  # in which they would take each other for dead
        touched = scratch.channel.select("signal", mark) + scratch.channel.select("start", mark)
        jobs.check(not touched, f"{touched}\n{pair.agents['A'].tail()}\n{pair.agents['B'].tail()}")
        pair.finish(starts)
        scratch.expect_nobody()

    etcd.binary()
    jobs.isolate()
    # A keep-alive of the legacy backend lives 10 s, and gets 5 s of grace.
    spans = {"etcd-v2": (2 * silence_s, 2 * silence_s), "etcd": (12, 7)}
    for backend, nnodes in (("etcd-v2", "2"), ("etcd-v2", "1:2"), ("etcd", "2")):
        print(backend, nnodes, flush=True)
        with jobs.Scratch() as scratch:
            test(scratch, backend, nnodes, *spans[backend])


def case_etcd_loses_its_data():
    """When an etcd comes back without its data the nodes form a new world, and the job ends well."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF], backend=backend)
        pair.start_both()
        mark = scratch.channel.mark()
        pair.etcd.stop(signal.SIGKILL)
        shutil.rmtree(scratch.path(f"{pair.etcd.name}.data"))
        pair.etcd.start()
        pair.finish(pair.expect_world(4, CHANGE_S, mark))
        scratch.expect_nobody()

    each(test)


def case_etcd_stays_away():
    """When etcd does not come back the agents end with exit code 1, and say which etcd is missing since when."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF + ",read_timeout=1"], backend=backend)
        pair.start_both()
        pair.etcd.stop()
        for name in "AB":
            pair.agents[name].expect(60, 1)
            said = pair.agents[name].err()
            jobs.check(f"{pair.etcd.endpoint}) has not answered" in said, f"no reason given\n{pair.agents[name].tail()}")
        scratch.expect_nobody()

    each(test)


def case_etcd_node_has_failed_for_good():
    """B has failed and is gone. That ends A's workers and A, with 1."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF, "--max-restarts=0"], backend=backend)
        starts = pair.start_both()
        jobs.tell_exit(pair.workers_of(starts, "B")[0].pid, 3)
        for name in "BA":
            pair.agents[name].expect(jobs.SOON_S, 1)
        pair.etcd.stop()
        scratch.expect_nobody()

    each(test)


def case_etcd_done_nodes_are_not_missed():
    """Legacy: of three nodes two have succeeded and go, one by SIGTERM, one by SIGKILL. When their keep-alives have expired the
    third one's workers run on, and the job ends with 0."""
    os.environ["LOGLEVEL"] = "INFO"
    etcd.binary()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, kinds=("muster",) * 3, nnodes="1:3", options=[CONF], backend="etcd")
        for index in range(3):
            pair.start(index)
        starts = pair.expect_world(6, CHANGE_S, 0)
        mark = scratch.channel.mark()
        for name, how in (("B", signal.SIGTERM), ("C", signal.SIGKILL)):
            case_end.finish_and_go(scratch, pair, starts, name, how)
        pair.agents["A"].wait_line("a node has gone after its workers had succeeded: 2 of 3", CHANGE_S)
        case_end.expect_healthy_end(scratch, pair, starts, "A", mark)
        pair.etcd.stop()
        scratch.expect_nobody()


def case_etcd_mixed_end():
    """Legacy, with a torchrun: it has succeeded, waits at the end and is killed: Muster's workers run on, exit 0. It fails for
    good: Muster's agent stops its workers and exits 1."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.need_torch()
    etcd.need_python_etcd()
    etcd.binary()
    jobs.isolate()
    for code in (0, 3):
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, kinds=("muster", "torchrun"), nnodes="2", options=[CONF, "--max-restarts=0"], backend="etcd")
            starts = pair.start_both(CHANGE_S)
            mark = scratch.channel.mark()
            case_end.end_workers(pair, starts, "B", code)
            if code == 0:
                pair.etcd.wait_count("/torchelastic/p2p/run_pair/rdzv/v_1/kv/", "torchelastic/agent/terminal_state/num_members", 1)
                pair.agents["B"].signal(signal.SIGKILL)
                pair.agents["A"].wait_line("a node has gone after its workers had succeeded: 1 of 2", CHANGE_S)
                case_end.expect_healthy_end(scratch, pair, starts, "A", mark)
            else:
                pair.agents["B"].expect(CHANGE_S, 1)
                pair.agents["A"].expect(CHANGE_S, 1)
                said = pair.agents["A"].err()
                jobs.check("has left or died, and the job is closed" in said, f"no reason given\n{pair.agents['A'].tail()}")
            pair.etcd.stop()
            scratch.expect_nobody()


def case_etcd_endpoints():
    """Of several endpoints those that refuse are passed over."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF], backend=backend)
        pair.endpoint = f"127.0.0.1:{jobs.free_port()},localhost:{jobs.free_port()},{pair.etcd.endpoint}"
        pair.finish(pair.start_both())
        scratch.expect_nobody()

    each(test)


def case_etcd_without_v2():
    """An etcd that does not offer its v2 API is told apart at once, with what to do."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF], backend=backend)
        pair.etcd.stop()
        pair.etcd.start(enable_v2=False)
        pair.start(0).expect(30, 1)
        jobs.check("--enable-v2" in pair.agents["A"].err(), f"no reason given\n{pair.agents['A'].tail()}")
        pair.etcd.stop()
        scratch.expect_nobody()

    each(test)


def case_etcd_with_certificates():
    """An etcd behind https that wants certificates: nodes that have one meet, one without or whose authority is another
    ends with exit code 1 and the reason."""
    names = {"etcd-v2": ("ca_cert", "ssl_cert", "ssl_cert_key"), "etcd": ("cacert", "cert", "key")}

    def conf(backend, *values):
        pairs = [f"{key}={value}" for key, value in zip(names[backend], values) if value]
        return ",".join([CONF, "protocol=https", *pairs])

    def test(scratch, backend):
        make_certificates(scratch)
        at = scratch.path
        ca, cert, key = at("ca.pem"), at("client.pem"), at("client.key")
        pair = Pair(scratch, nnodes="2", options=[], backend=backend)
        pair.etcd.stop()
        extra = ["--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", at("server.pem"),
                 "--key-file", at("server.key")]  # fmt: skip
        pair.etcd = etcd.Etcd(scratch, "secure", extra=extra, scheme="https")
        pair.port, pair.endpoint = pair.etcd.port, pair.etcd.endpoint
        pair.options = [conf(backend, ca, cert, key)]
        starts = pair.start_both()
        for name, wrong in (
            ("C", conf(backend, ca, None, None)),
            ("D", conf(backend, at("other.pem"), cert, key)),
        ):
            refused = pair.start(1, name, options=[wrong + ",read_timeout=1"])
            refused.expect(30, 1)
            refused.signalled = True
            jobs.check("has not answered" in refused.err(), f"no reason given\n{refused.tail()}")
        pair.finish(starts)
        scratch.expect_nobody()

    each(test)
