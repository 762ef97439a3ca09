"""Jobs on etcd's v3 API: what happens to etcd in the middle of a job, and etcds that cannot be used."""

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import etcd
import jobs
from nodes import Pair

FORM_S = 30
PREEMPTED = 75  # exit code
# Leases of two seconds, the least that etcd grants.
QUICK = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"
# Long enough for a busy machine not to lose one, short enough to be waited for.
STEADY = "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=3"
PATIENT = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=20"


class Pair3(Pair):
    """Two nodes that meet at etcd-v3."""

    def __init__(self, scratch, server, endpoint=None, options=(), **more):
        super().__init__(scratch, endpoint=endpoint or server.endpoint, **more)
        self.options = ["--rdzv-backend=etcd-v3", "--max-restarts=9", *options, *self.options]

    def start_both(self, timeout_s=FORM_S, first=()):
        """A, which leads, then B; their four `start` stamps."""
        mark = self.channel.mark()
        self.start(0, options=first)
        self.start(1)
        return self.expect_world(4, timeout_s, mark)

    def leader(self, server):
        """The name of the agent that holds the leader's key, and of the other one."""
        identity = value(server, "/muster/pair/leader")
        letter = value(server, f"/muster/pair/from/{identity.decode()}")
        for name, agent in self.agents.items():
            if agent.wait(0) is None and agent.pid.to_bytes(8, "little") in letter:
                return name, "AB".replace(name, "")
        raise jobs.Failed(f"no agent has written {letter!r}")


def text64(text):
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def post(server, path, body, token=None):
    """What etcd's gateway answers, errors included."""
    request = urllib.request.Request(f"http://{server.endpoint}/v3/{path}", json.dumps(body).encode())
    if token:
        request.add_header("Authorization", token)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def keys(server, prefix="\0", token=None):
    end = "\0" if prefix == "\0" else prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = post(server, "kv/range", {"key": text64(prefix), "range_end": text64(end)}, token)
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")) for kv in found.get("kvs", [])}


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
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK])
        starts = pair.start_both()
        jobs.check(len(keys(server)) == 5, f"a leader, two nodes' keys: {sorted(keys(server))}")
        starts = fail_and_form(pair, starts, "B")
        jobs.check(len(keys(server)) == 5, f"rounds add keys: {sorted(keys(server))}")
        pair.finish(starts)
        expect_no_keys(server)
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK])
        pair.start_both()
        for agent in pair.agents.values():
            agent.signal(signal.SIGKILL)
            agent.expect(jobs.SOON_S)
        for _ in range(200):
            if not keys(server):
                break
            pair.agents["A"].wait(0)
            threading.Event().wait(0.1)
        expect_no_keys(server)


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
    """etcd comes back empty: the agents say so, and the job forms anew there."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="2", options=[QUICK])
        starts = fail_and_form(pair, pair.start_both(), "B")
        mark = scratch.channel.mark()
        server.stop(signal.SIGKILL)
        shutil.rmtree(scratch.path("etcd.data"))
        server.start()
        starts = pair.expect_world(4, FORM_S, mark)
        said = pair.agents["A"].err() + pair.agents["B"].err()
        jobs.check("etcd has lost its data" in said, f"nobody says so\n{pair.agents['A'].tail()}")
        pair.finish(starts)


def case_etcd3_leader_is_killed():
    """The agent that leads is killed, or frozen and thawed: the other one leads, and takes it in again."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        pair = Pair3(scratch, server, nnodes="1:2", options=[QUICK])
        pair.start_both()
        leader, other = pair.leader(server)
        mark = scratch.channel.mark()
        jobs.stop(pair.agents[leader].pid)
        pair.expect_world(2, FORM_S, mark)
        jobs.check(pair.leader(server)[0] == other, "a frozen agent leads")
        mark = scratch.channel.mark()
        os.kill(pair.agents[leader].pid, signal.SIGCONT)
        starts = pair.expect_world(4, FORM_S, mark)
        mark = scratch.channel.mark()
        pair.agents[other].signal(signal.SIGKILL)
        starts = pair.expect_world(2, FORM_S, mark)
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        pair.finish(starts)
        expect_no_keys_but_dead(server)


def case_etcd3_stop_outlives_its_leader():
    """A node is told that it will be taken away, and the leader dies before it has heard of it: the next one tells all."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        options = [QUICK, "--preempt-signal=SIGUSR1", "--preempt-grace=8"]
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
    for _ in range(100):
        if not keys(server):
            break
        threading.Event().wait(0.1)
    expect_no_keys(server)


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
    """A node is cut off while others change the state and etcd forgets how: it reads anew, follower and leader alike."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        gate = Gate(server.port)
        pair = Pair3(scratch, server, nnodes="2", options=[PATIENT])
        first = f"--rdzv-endpoint=127.0.0.1:{gate.port}"
        starts = pair.start_both(first=[first])
        for node in "BA":  # the one who is not cut off, then the one who is
            mark = scratch.channel.mark()
            gate.shut()
            os.kill(pair.workers_of(starts, node)[0].pid, signal.SIGKILL)
            scratch.channel.expect(1, "signal", FORM_S, since=mark)
            revision = int(post(server, "kv/range", {"key": text64("x")})["header"]["revision"])
            for _ in range(2):
                post(server, "kv/put", {"key": text64("x")})
            while node == "B" and int(post(server, "kv/range", {"key": text64("x")})["header"]["revision"]) < revision + 3:
                threading.Event().wait(0.02)  # B has written
            revision = int(post(server, "kv/range", {"key": text64("x")})["header"]["revision"])
            post(server, "kv/compaction", {"revision": str(revision)})
            gate.open()
            starts = pair.expect_world(4, FORM_S, mark)
        jobs.check("compacted" in pair.agents["A"].err(), f"nothing was compacted\n{pair.agents['A'].tail()}")
        pair.finish(starts)


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


def openssl(scratch, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=scratch.root, capture_output=True, text=True, check=False)
    jobs.check(done.returncode == 0, f"openssl {arguments}: {done.stderr}")


def make_certificates(scratch):
    """ca.pem, and signed by it server.pem, client.pem and named.pem; other.pem is another authority."""
    for name in ("ca", "other"):
        openssl(scratch, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    write(scratch.path("san"), "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name, subject in (("server", "/CN=server"), ("client", "/O=client"), ("named", "/CN=client")):
        openssl(scratch, "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        openssl(scratch, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
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
        user = f"user=muster,password_file={right},read_timeout=3"
        mine = f"cert={at('client.pem')},key={at('client.key')}"
        named = f"cert={at('named.pem')},key={at('named.key')}"
        refused(scratch, endpoint, "common name", f"--rdzv-conf=cacert={at('ca.pem')},{named},{user}")
        refused(scratch, endpoint, "certificate", f"--rdzv-conf=cacert={at('other.pem')},{mine},{user}")
        refused(scratch, endpoint, "no etcd has answered", f"--rdzv-conf=cacert={at('ca.pem')},{user}")
        refused(scratch, endpoint, "authentication failed",
                f"--rdzv-conf=cacert={at('ca.pem')},{mine},user=muster,password_file={write(at('wrong'), 'x')}")
        pair = Pair3(scratch, server, endpoint=endpoint, nnodes="2",
                     options=[f"--rdzv-conf=cacert={at('ca.pem')},{mine},{user}"])  # fmt: skip
        starts = fail_and_form(pair, pair.start_both(), "B")
        pair.finish(starts)
