"""An etcd that holds the rendezvous: what happens when it goes away, and with several of them to ask."""

import os
import shutil
import signal
import time

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


def case_etcd_restarts():
    """An etcd that is killed and started again stops no worker; after it a failure still restarts all of the job, and the
    job ends well."""

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF, "--max-restarts=2"], backend=backend)
        starts = pair.start_both()
        mark = scratch.channel.mark()
        pair.etcd.stop(signal.SIGKILL)
        pair.agents["A"].wait_line("etcd does not answer", 30)
        pair.etcd.start()
        for name in "AB":
            pair.agents[name].wait_line("etcd answers again", 30)
        jobs.check(not scratch.channel.select("signal", mark), "a worker was told to end")
        os.kill(pair.workers_of(starts, "B")[0].pid, signal.SIGKILL)
        pair.finish(pair.expect_world(4, CHANGE_S, mark))
        scratch.expect_nobody()

    each(test)


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
    """B has failed, closed the job and is gone without a trace when A's workers end well: A waits for nobody at the end."""

    def wait_gone(pair):
        """Until B's keep-alive has expired: nothing more will be heard of it. (With etcd-v2 there is none.)"""
        deadline = time.monotonic() + CHANGE_S
        folder = "/v2/keys/torchelastic/p2p/run_pair/rdzv/v_1"
        while sum("/rank_" in node["key"] for node in pair.etcd.ask(folder).get("node", {}).get("nodes", [])) > 1:
            jobs.check(time.monotonic() < deadline, "B's keep-alive does not expire")
            time.sleep(0.05)

    def test(scratch, backend):
        pair = Pair(scratch, nnodes="2", options=[CONF, "--max-restarts=0"], backend=backend)
        starts = pair.start_both()
        jobs.tell_exit(pair.workers_of(starts, "B")[0].pid, 3)
        pair.agents["B"].expect(jobs.SOON_S, 1)
        wait_gone(pair)
        for s in pair.workers_of(starts, "A"):
            jobs.tell_exit(s.pid, 0)
        pair.agents["A"].expect(jobs.SOON_S, 0)
        pair.etcd.stop()
        scratch.expect_nobody()

    each(test)


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
