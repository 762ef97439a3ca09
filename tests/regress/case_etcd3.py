"""Jobs on etcd's v3 API: what happens to etcd in the middle of a job, and etcds that cannot be used."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

import certificates
import etcd
import jobs
from certificates import EC, openssl
from etcd import keys, post, text64
from nodes import Pair

FORM_S = 30
PREEMPTED = 75  # exit code
# Leases of two seconds, the least that etcd grants; silence is the same.
QUICK = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"
SILENCE_S = 2
# Long enough for a busy machine not to lose one, short enough to be waited for.
STEADY = "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=3"
# Whoever may still be at work in the world before gets no more time than that.
SOON_STOPPED = "--shutdown-timeout=1"
# Whoever waits for these misses FORM_S.
LATE_STOPPED = f"--shutdown-timeout={10 * FORM_S}"
PATIENT = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=20"


class Pair3(Pair):
    """Two nodes that meet at etcd-v3."""

    def __init__(self, scratch, server, endpoint=None, options=(), **more):
        super().__init__(scratch, endpoint=endpoint or server.endpoint, **more)
        self.server = server
        self.options = ["--rdzv-backend=etcd-v3", "--max-restarts=9", *options, *self.options]

    def start_both(self, timeout_s=FORM_S, first=()):
        """A and B; their four `start` stamps. With options for A alone, that one leads."""
        mark = self.channel.mark()
        self.start(0, options=first)
        if first:  # it is to be the leader
            wait_until(lambda: "/muster/pair/leader" in keys(self.server), "nobody leads")
        self.start(1)
        return self.expect_world(4, timeout_s, mark)

    def leader(self, server):
        """The name of the agent that holds the leader's key, and of the other one."""
        port = json.loads(value(server, "/muster/pair/leader"))["port"]
        for name, agent in self.agents.items():
            if agent.wait(0) is None and port in jobs.ports_of(agent.pid):
                return name, "AB".replace(name, "")
        raise jobs.Failed(f"no agent listens at port {port}")


def value(server, key):
    return keys(server, key)[key]


def fail_and_form(pair, starts, node, timeout_s=FORM_S):
    """A worker of `node` dies, and all four run again: both nodes hear each other."""
    mark = pair.channel.mark()
    os.kill(pair.workers_of(starts, node)[0].pid, signal.SIGKILL)
    return pair.expect_world(4, timeout_s, mark)


def expect_untouched(scratch, mark, seconds, pair):
    """Workers are not told to end meanwhile, and no agent ends."""
    for _ in range(int(seconds * 10)):
        jobs.check(not scratch.channel.select("signal", mark), "workers were stopped")
        jobs.check(all(agent.wait(0.05) is None for agent in pair.agents.values()), "an agent has ended")


def wait_until(holds, otherwise):
    for _ in range(int(FORM_S / 0.02)):
        if holds():
            return
        threading.Event().wait(0.02)
    raise jobs.Failed(otherwise)


def expect_no_keys(server):
    left = keys(server)
    jobs.check(not left, f"keys are left: {sorted(left)}")
    leases = post(server, "lease/leases", {}).get("leases", [])
    jobs.check(not leases, f"leases are left: {leases}")


def case_etcd3_leaves_nothing():
    """A job that has ended leaves no key and no lease; one whose agents are killed leaves none once these expire."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK, SOON_STOPPED])
        starts = pair.start_both()
        wanted = ["/muster/pair/leader", "/muster/pair/world"]
        wait_until(lambda: sorted(keys(server)) == wanted, f"other keys: {sorted(keys(server))}")  # a lease of 2 s may be late
        starts = fail_and_form(pair, starts, "B")
        wait_until(lambda: sorted(keys(server)) == wanted, f"rounds add keys: {sorted(keys(server))}")
        pair.finish(starts)
        expect_no_keys(server)
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK, SOON_STOPPED])
        pair.start_both()
        for agent in pair.agents.values():
            agent.signal(signal.SIGKILL)
            agent.expect(jobs.SOON_S)
        expect_no_keys_but_dead(server)


def case_etcd3_restarts():
    """etcd is killed and comes back with its data, at once or after longer than a lease: workers run on meanwhile, and
    failures cross nodes afterwards."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="2", options=[STEADY])
        starts = pair.start_both()
        for away_s, node in ((0, "B"), (8, "A")):
            mark = scratch.channel.mark()
            server.stop(signal.SIGKILL)
            expect_untouched(scratch, mark, away_s, pair)
            server.start()
            expect_untouched(scratch, mark, 1, pair)
            starts = fail_and_form(pair, starts, node)
        pair.finish(starts)
        expect_no_keys(server)


def case_etcd3_loses_its_data():
    """etcd comes back empty: the leader says so and writes its world again, workers run on, and the next round forms."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK])
        starts = fail_and_form(pair, pair.start_both(), "B")
        leader, _ = pair.leader(server)
        mark = scratch.channel.mark()
        server.stop(signal.SIGKILL)
        shutil.rmtree(scratch.path("etcd.data"))
        server.start()
        pair.agents[leader].wait_line("etcd has lost data", FORM_S)
        wait_until(lambda: len(keys(server)) == 2, "the world is not written again")
        expect_untouched(scratch, mark, 0.1, pair)
        world = json.loads(value(server, "/muster/pair/world"))
        jobs.check(world["round"] == 2 and world["nodes"] == 2, f"another world is written: {world}")
        pair.finish(fail_and_form(pair, starts, "A"))
        expect_no_keys(server)


def case_etcd3_silent_leader_is_left_behind():
    """The agent that leads is frozen: the other one leads, and forms its world when the workers of the frozen one must
    have stopped; thawed, that comes back."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        stop_s = 3  # longer than the silence: neither of the two alone is as long as both
        pair = Pair3(scratch, server, nnodes="1:2", options=[QUICK, f"--shutdown-timeout={stop_s}"])
        pair.start_both()
        leader, other = pair.leader(server)
        took_s = pair.freeze(leader, FORM_S)
        print(f"the leader frozen: the other one runs again after {took_s:.1f} s")
        jobs.check(took_s >= SILENCE_S + stop_s, f"the other one has a world after {took_s:.1f} s already")
        jobs.check(pair.leader(server)[0] == other, "a frozen agent leads")
        starts = pair.thaw(leader, FORM_S)
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        pair.finish(starts)
        expect_no_keys(server)


def case_etcd3_leader_is_killed():
    """The agent that leads is killed: the other one leads, and waits for nobody's workers."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="1:2", options=[QUICK, LATE_STOPPED])
        pair.start_both()
        leader, other = pair.leader(server)
        mark = scratch.channel.mark()
        pair.agents[leader].signal(signal.SIGKILL)
        starts = pair.expect_world(2, FORM_S, mark)
        jobs.check(pair.leader(server)[0] == other, "a dead agent leads")
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        pair.finish(starts)
        expect_no_keys_but_dead(server)


def case_etcd3_leader_leaves():
    """The leader is told to end: the others form one world without it, at once."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="1:3", kinds=("muster",) * 3)
        mark = scratch.channel.mark()
        for index in range(3):
            pair.start(index)
        pair.expect_world(6, FORM_S, mark)
        leader, _ = pair.leader(server)
        mark = scratch.channel.mark()
        pair.agents[leader].signal(signal.SIGTERM)
        starts = pair.expect_world(4, FORM_S, mark)
        pair.agents[leader].expect(FORM_S)
        others = [agent for name, agent in pair.agents.items() if name != leader]
        jobs.check(len(scratch.channel.select("start", mark)) == 4, "more worlds than one")
        for agent in others:
            jobs.check(agent.err().count("forming the world again") == 1, agent.tail())
        pair.finish(starts)
        expect_no_keys_but_dead(server)


def case_etcd3_stop_outlives_its_leader():
    """A node is told that it will be taken away, and the leader dies before it has heard of it: the next one tells all."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        options = [QUICK, SOON_STOPPED, "--preempt-signal=SIGUSR1", "--preempt-grace=8"]
        pair = Pair3(scratch, server, nnodes="3", kinds=("muster",) * 3, options=options)
        mark = scratch.channel.mark()
        for index in range(3):
            pair.start(index)
        pair.expect_world(6, FORM_S, mark)
        leader, _ = pair.leader(server)
        told, other = (pair.agents[name] for name in "ABC".replace(leader, ""))
        jobs.stop(pair.agents[leader].pid)
        told.signal(signal.SIGUSR1)
        told.wait_line("asking this node's workers to stop", FORM_S)
        pair.agents[leader].signal(signal.SIGKILL)
        for agent in (told, other):
            agent.expect(FORM_S, PREEMPTED)
        other.wait_line("says that the job stops", jobs.SOON_S)
        expect_no_keys_but_dead(server)


def expect_no_keys_but_dead(server):
    """Those of a killed agent go when its lease expires."""
    wait_until(lambda: not keys(server) and not post(server, "lease/leases", {}).get("leases"),
               "keys or leases of dead agents are left")  # fmt: skip


class Gate:
    """A port that leads to another one, until it is shut: connections end, and new ones are refused."""

    def __init__(self, target):
        self.target = target
        self.listener = None
        self.links = []
        self.lock = threading.Lock()
        self.port = 0
        self.open()

    def open(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def shut(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for link in self.links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            self.links.clear()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self.target))
                with self.lock:
                    self.links += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def case_etcd3_compacts():
    """The leader is cut off from etcd while that forgets its history: it reads anew, and tells the next world then."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        gate = Gate(server.port)
        pair = Pair3(scratch, server, nnodes="2", options=[PATIENT])
        starts = pair.start_both(first=[f"--rdzv-endpoint=127.0.0.1:{gate.port}"])
        mark = scratch.channel.mark()
        gate.shut()
        os.kill(pair.workers_of(starts, "B")[0].pid, signal.SIGKILL)
        scratch.channel.expect(1, "signal", FORM_S, since=mark)
        for _ in range(2):
            revision = post(server, "kv/put", {"key": text64("x")})["header"]["revision"]
        post(server, "kv/compaction", {"revision": revision})
        jobs.check(not scratch.channel.select("start", mark), "a world was told without etcd")
        gate.open()
        starts = pair.expect_world(4, FORM_S, mark)
        pair.agents["A"].wait_line("compacted", FORM_S)
        pair.finish(starts)


def case_etcd3_leader_is_cut_off_from_etcd():
    """The leader does not reach etcd when the next round is due: it lets the other node lead, and joins that later."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        gate = Gate(server.port)
        pair = Pair3(scratch, server, nnodes="1:2", options=[QUICK, SOON_STOPPED])
        starts = pair.start_both(first=[f"--rdzv-endpoint=127.0.0.1:{gate.port}"])
        gate.shut()
        expect_untouched(scratch, scratch.channel.mark(), 3, pair)  # longer than the lease
        mark = scratch.channel.mark()
        os.kill(pair.workers_of(starts, "B")[0].pid, signal.SIGKILL)
        pair.agents["A"].wait_line("another node may lead now", FORM_S)
        alone = pair.expect_world(2, FORM_S, mark)
        jobs.check({pair.agent_of(s) for s in alone} == {"B"}, "a node that does not reach etcd has a world")
        mark = scratch.channel.mark()
        gate.open()
        pair.finish(pair.expect_world(4, FORM_S, mark))
        expect_no_keys_but_dead(server)


def case_etcd3_leader_cannot_be_reached():
    """A node that does not reach the leader's address says which and why; the leader goes on leading."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="2", options=["--rdzv-conf=join_timeout=7"])
        pair.start(0, options=["--local-addr=192.0.2.1", "--rdzv-conf=join_timeout=60"])
        wait_until(lambda: "/muster/pair/leader" in keys(server), "nobody leads")
        port = json.loads(value(server, "/muster/pair/leader"))["port"]
        agent = pair.start(1)
        agent.wait_line(f"192.0.2.1:{port}: ", FORM_S)
        agent.expect(FORM_S, 1)
        jobs.check("unreachable" in agent.err(), f"no reason is given\n{agent.tail()}")
        jobs.check(json.loads(value(server, "/muster/pair/leader"))["port"] == port, "another one leads")
        pair.agents["A"].signal(signal.SIGINT)
        pair.agents["A"].expect(jobs.SOON_S)


def put_leader(server, addr, port):
    """A leader that is none of Muster's: it says nothing, and never goes by itself."""
    leader = {"muster": 1, "identity": f"{4711:032x}", "addr": addr, "port": port}
    post(server, "kv/put", {"key": text64("/muster/pair/leader"), "value": text64(json.dumps(leader))})


def drop_leader(server):
    post(server, "kv/deleterange", {"key": text64("/muster/pair/leader")})


def case_etcd3_leader_hangs_before_it_is_reached():
    """A leader whose handshake never ends, and one whose name means nothing, are left when they lead no longer."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        secret = scratch.write("secret", "one that nobody guesses", 0o600)
        with socket.create_server(("127.0.0.1", 0)) as hung:
            hung.settimeout(FORM_S)
            put_leader(server, "127.0.0.1", hung.getsockname()[1])
            pair = Pair3(scratch, server, nnodes="1", options=[f"{QUICK},secret_file={secret}"])
            mark = scratch.channel.mark()
            pair.start(0)
            with hung.accept()[0]:
                drop_leader(server)
                pair.finish(pair.expect_world(2, FORM_S, mark))
        put_leader(server, "nobody.invalid", 4711)
        pair = Pair3(scratch, server, nnodes="1", options=[QUICK])
        mark = scratch.channel.mark()
        agent = pair.start(0)
        agent.wait_line("nobody.invalid", FORM_S)
        drop_leader(server)
        pair.finish(pair.expect_world(2, FORM_S, mark))
        expect_no_keys(server)


def case_etcd3_secret_and_status():
    """The session's secret and TLS come with a leader in etcd: a node without is refused, muster status works with both,
    and the death of a node's agent is told at once."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        certificates.make(scratch.root)
        server = etcd.Etcd(scratch)
        secret = scratch.write("secret", "one that nobody guesses", 0o600)
        conf = f"--rdzv-conf=secret_file={secret},{certificates.conf(scratch.root)}"
        pair = Pair3(scratch, server, nnodes="1:2", options=[f"{conf},keep_alive_interval=60"])
        pair.start_both()
        leader, other = pair.leader(server)
        stranger = scratch.run("muster", "--nnodes=1:2", "--rdzv-backend=etcd-v3", "--rdzv-id=pair",
                               f"--rdzv-endpoint={server.endpoint}", "--rdzv-conf=join_timeout=2",
                               "--local-addr=127.0.0.1", *jobs.worker(scratch))  # fmt: skip
        stranger.expect(FORM_S, 1)
        jobs.check("TLS" in stranger.err(), f"it does not say why\n{stranger.tail()}")
        place = json.loads(value(server, "/muster/pair/leader"))
        files = [f"--tls-{name}={scratch.path(file)}" for name, file in
                 (("cert", "member.pem"), ("key", "member.key"), ("ca", "authority.pem"))]  # fmt: skip
        report = subprocess.run(
            [jobs.muster_binary(), "status", f"{place['addr']}:{place['port']}", "--json", "--rdzv-id=pair",
             f"--secret-file={secret}", *files], capture_output=True, text=True, check=False)  # fmt: skip
        jobs.check(report.returncode == 0 and json.loads(report.stdout)["nodes"]["active"] == 2, report.stderr + report.stdout)
        mark = scratch.channel.mark()
        pair.agents[other].signal(signal.SIGKILL)  # silence alone would take 180 s
        pair.finish(pair.expect_world(2, FORM_S, mark))


def leader_of(cluster):
    """The member that leads the cluster."""
    status = post(cluster[0], "maintenance/status", {})
    by_id = {post(member, "maintenance/status", {})["header"]["member_id"]: member for member in cluster}
    return by_id[status["leader"]]


def case_etcd3_cluster_member_is_killed():
    """Three members of an etcd cluster, and its leader is killed twice: the job does not mind."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        cluster = etcd.cluster(scratch, 3)
        endpoint = ",".join(f"http://{server.endpoint}" for server in cluster)
        pair = Pair3(scratch, cluster[0], endpoint=endpoint, nnodes="2", options=[PATIENT])
        starts = pair.start_both()
        for node in "BA":
            mark = scratch.channel.mark()
            leader = leader_of(cluster)
            leader.stop(signal.SIGKILL)
            expect_untouched(scratch, mark, 1, pair)
            starts = fail_and_form(pair, starts, node)
            leader.start()
        pair.finish(starts)


def refused(scratch, endpoint, words, *options):
    """An agent ends with exit code 1, and these words."""
    agent = scratch.run(
        "muster", "--nnodes=2", "--rdzv-backend=etcd-v3", "--rdzv-id=x", f"--rdzv-endpoint={endpoint}", *options,
        *jobs.worker(scratch),
    )  # fmt: skip
    agent.expect(60, 1)
    jobs.check(words in agent.err(), f"'{words}' is not said\n{agent.tail()}")


def enable_auth(server):
    """root, and muster, who may write below /muster/ alone."""
    for name, password in (("root", "r"), ("muster", "s3,cret")):
        post(server, "auth/user/add", {"name": name, "password": password})
        post(server, "auth/role/add", {"name": name})
    permission = {"permType": "READWRITE", "key": text64("/muster/"), "range_end": text64("/muster0")}
    post(server, "auth/role/grant", {"name": "muster", "perm": permission})
    for name in ("root", "muster"):
        post(server, "auth/user/grant", {"user": name, "role": name})
    post(server, "auth/enable", {})


def write(path, text):
    with open(path, "w", encoding="ascii") as out:
        out.write(text)
    return path


def case_etcd3_users():
    """etcd with users: without one, with a wrong password, beyond what the user may; then the job, beyond the life of a
    token."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        for kind, size in (("private", "2048"), ("public", "")):
            source = ["genrsa", "-out", scratch.path("private.pem"), size] if size else [
                "rsa", "-in", scratch.path("private.pem"), "-pubout", "-out", scratch.path("public.pem")]  # fmt: skip
            jobs.check(subprocess.run(["openssl", *source], capture_output=True, check=False).returncode == 0, kind)
        token = f"jwt,pub-key={scratch.path('public.pem')},priv-key={scratch.path('private.pem')},sign-method=RS256,ttl=2s"
        server = etcd.Etcd(scratch, extra=["--auth-token", token])
        enable_auth(server)
        right, wrong = write(scratch.path("right"), "s3,cret\n"), write(scratch.path("wrong"), "x\n")
        refused(scratch, server.endpoint, "wants to know a user")
        refused(scratch, server.endpoint, "authentication failed", f"--rdzv-conf=user=muster,password_file={wrong}")
        refused(scratch, server.endpoint, "No such file", "--rdzv-conf=user=muster,password_file=/nonexistent")
        user = f"user=muster,password_file={right}"
        refused(scratch, server.endpoint, "readwrite", f"--rdzv-conf={user},etcd_prefix=/elsewhere")
        pair = Pair3(scratch, server, nnodes="2", options=[f"{STEADY},{user}"])
        starts = pair.start_both()
        expect_untouched(scratch, scratch.channel.mark(), 5, pair)  # the token lives for 2 s
        starts = fail_and_form(pair, starts, "B")
        pair.finish(starts)
        root = post(server, "auth/authenticate", {"name": "root", "password": "r"})["token"]
        jobs.check(not keys(server, token=root), f"keys are left: {keys(server, token=root)}")


def case_etcd3_is_full():
    """An etcd whose space is used up refuses writes: the agent says what to do."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch, extra=["--quota-backend-bytes", str(1 << 20)])
        for i in range(1000):  # it looks at its size from time to time
            answer = post(server, "kv/put", {"key": text64(f"fill{i}"), "value": text64("x" * 60000)})
            if "error" in answer:
                break
        jobs.check("space exceeded" in answer.get("error", ""), f"etcd is not full: {answer}")
        refused(scratch, server.endpoint, "its space is used up")


class Impostor:
    """Answers every request the same way."""

    def __init__(self, answer):
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                link, _ = self.listener.accept()
                threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link):
        with contextlib.suppress(OSError), link:
            if link.recv(65536):
                link.sendall(self.answer)


def http(status, body):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def case_etcd3_impostors():
    """Servers that are no etcd, or none at all: exit code 1 and a sentence."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        for answer, words in (
            (http("404 Not Found", "404 page not found\n"), "is no etcd of version 3.4 or later (HTTP 404"),
            (http("200 OK", "<html>hello</html>"), "is no etcd of version 3.4 or later (HTTP 200"),
            (http("200 OK", '{"header":{"revision":"1"}}'), "a lease without a number"),
            (b"\0\1\2\3 garbage\r\n\r\n", "127.0.0.1"),
        ):
            refused(scratch, Impostor(answer).endpoint, words, "--rdzv-conf=read_timeout=2")
        refused(scratch, f"127.0.0.1:{jobs.free_port()}", "no etcd has answered", "--rdzv-conf=read_timeout=2")
        busy = http("503 Service Unavailable", '{"error":"etcdserver: no leader","code":14}')
        refused(scratch, Impostor(busy).endpoint, "etcdserver: no leader", "--rdzv-conf=read_timeout=2")
        agent = scratch.run("muster", "--nnodes=2", "--rdzv-backend=etcd-v3", "--rdzv-endpoint=ftp://a:1",
                            *jobs.worker(scratch))  # fmt: skip
        agent.expect(jobs.SOON_S, 1)
        jobs.check("not by ftp://" in agent.err(), agent.tail())


def make_certificates(scratch):
    """ca.pem, and signed by it server.pem, client.pem and named.pem; other.pem is another authority."""
    for name in ("ca", "other"):
        openssl(scratch.root, "req", "-x509", *EC, "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    write(scratch.path("san"), "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name, subject in (("server", "/CN=server"), ("client", "/O=client"), ("named", "/CN=client")):
        openssl(scratch.root, "req", *EC, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(scratch.root, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "san", "-out", f"{name}.pem")  # fmt: skip


def case_etcd3_tls():
    """TLS with client certificates and a user: the job runs, a stranger without a certificate or with another authority
    is told."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        make_certificates(scratch)
        at = scratch.path
        plain = etcd.Etcd(scratch)  # the same data, to create the user
        enable_auth(plain)
        plain.stop()
        extra = ["--client-cert-auth", "--trusted-ca-file", at("ca.pem"), "--cert-file", at("server.pem"),
                 "--key-file", at("server.key")]  # fmt: skip
        server = etcd.Etcd(scratch, extra=extra, scheme="https")
        endpoint = f"https://{server.endpoint}"
        right = write(at("right"), "s3,cret")
        user = f"user=muster,password_file={right}"
        mine = f"cert={at('client.pem')},key={at('client.key')}"
        soon = "read_timeout=3"  # where no answer comes; the others may be slow on a busy machine
        named = f"cert={at('named.pem')},key={at('named.key')}"
        refused(scratch, endpoint, "common name", f"--rdzv-conf=cacert={at('ca.pem')},{named},{user}")
        refused(scratch, endpoint, "certificate", f"--rdzv-conf=cacert={at('other.pem')},{mine},{user},{soon}")
        refused(scratch, endpoint, "no etcd has answered",
                f"--rdzv-conf=cacert={at('ca.pem')},{user},{soon}")
        refused(scratch, endpoint, "authentication failed",
                f"--rdzv-conf=cacert={at('ca.pem')},{mine},user=muster,password_file={write(at('wrong'), 'x')}")
        pair = Pair3(scratch, server, endpoint=endpoint, nnodes="2",
                     options=[f"--rdzv-conf=cacert={at('ca.pem')},{mine},{user}"])  # fmt: skip
        starts = fail_and_form(pair, pair.start_both(), "B")
        pair.finish(starts)


def case_etcd3_without_its_libraries():
    """A library that cannot be loaded is named, and the agent ends as after any other failure to start."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        secret = write(scratch.path("secret"), "0123456789abcdef" * 2)
        os.chmod(secret, 0o600)
        hidden = {
            ("libcurl.so.4",): ("etcd-v3", "HTTP needs libcurl", ()),
            ("libssl.so.3", "libssl.so.1.1"): ("muster", "need OpenSSL 3 or 1.1.1", (f"--rdzv-conf=secret_file={secret}",)),
        }
        for libraries, (backend, words, options) in hidden.items():
            folder = scratch.path(backend)
            os.mkdir(folder)
            for library in libraries:
                write(os.path.join(folder, library), "")  # the loader finds this one first, and refuses it
            agent = scratch.run(
                "muster", "--nnodes=2", f"--rdzv-backend={backend}", "--rdzv-id=x", "--rdzv-endpoint=127.0.0.1:1",
                *options, *jobs.worker(scratch), env=scratch.env(LD_LIBRARY_PATH=folder),
            )  # fmt: skip
            agent.expect(20, 1)
            jobs.check(words in agent.err(), f"'{words}' is not said\n{agent.tail()}")
