"""A real etcd for tests, Debian's etcd-server with its v2 API: own ports, own data folder, ended with its scratch."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time

import jobs

START_S = 60


def binary():
    path = shutil.which("etcd", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/sbin")
    if not path:
        raise jobs.Skip("no etcd here (Debian and Ubuntu: the package etcd-server; tools/setup test installs it)")
    return path


def need_python_etcd():
    """torchrun reaches etcd with python-etcd."""
    code = "import etcd"
    if subprocess.run([jobs.python(), "-c", code], capture_output=True, check=False).returncode != 0:
        raise jobs.Skip(f"no python-etcd in {jobs.python()} (tools/setup test installs it)")


def text64(text):
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def post(server, path, body, token=None):
    """What etcd's gateway to the v3 API answers, errors included."""
    return answer(f"http://{server.endpoint}/v3/{path}", 10, data=json.dumps(body).encode(), headers={"Authorization": token} if token else {})


def answer(url, timeout, **request):
    """What stands there, in JSON; also behind an error."""
    import urllib.error  # all cases about nodes import this module, few have an etcd, and these take longer than the rest of a case's imports
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, **request), timeout=timeout) as found:
            return json.load(found)
    except urllib.error.HTTPError as error:
        return json.load(error)


def keys(server, prefix="\0", token=None):
    """The keys of the v3 API that begin so (all of them), with their values."""
    end = "\0" if prefix == "\0" else prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = post(server, "kv/range", {"key": text64(prefix), "range_end": text64(end)}, token)
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")) for kv in found.get("kvs", [])}


class Etcd:
    """One server on loopback, or at `address`. Its data outlive stop(), so that start() is a restart."""

    def __init__(self, scratch, name="etcd", extra=(), scheme="http", starts=True, address="127.0.0.1"):
        self.scratch = scratch
        self.name = name
        self.extra = list(extra)
        self.scheme = scheme
        self.address = address
        self.port = jobs.free_port()
        self.peer_port = jobs.free_port()
        self.members = [self]
        self.starts = 0
        self.process = None
        if starts:
            self.start()

    @property
    def endpoint(self):
        return f"{self.address}:{self.port}"

    @property
    def peer(self):
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self, enable_v2=True):
        self.launch(enable_v2)
        self.wait_ready("/v2/keys/" if enable_v2 else "/version")

    def launch(self, enable_v2=True):
        client, peer = f"{self.scheme}://{self.endpoint}", self.peer
        cluster = ",".join(f"{member.name}={member.peer}" for member in self.members)
        self.starts += 1
        command = [
            binary(), "--name", self.name, f"--enable-v2={str(enable_v2).lower()}", "--data-dir", self.scratch.path(f"{self.name}.data"),
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, "--log-level", "error", *self.extra,
        ]  # fmt: skip
        self.process = self.scratch.start(f"{self.name}{self.starts}", command)

    def wait_ready(self, path="/v2/keys/"):
        deadline = time.monotonic() + START_S
        if self.scheme == "https":
            jobs.wait_port(self.port, self.process, START_S)  # it talks to those alone who have a certificate
            return
        while not self._answers(path):
            jobs.check(self.process.wait(0.02) is None, f"etcd ended\n{self.process.tail()}")
            jobs.check(time.monotonic() < deadline, f"etcd does not answer\n{self.process.tail()}")

    def stop(self, how=signal.SIGTERM):
        self.process.signal(how)
        jobs.check(self.process.wait(START_S) is not None, "etcd does not end")

    def _answers(self, path):
        try:
            return self.ask(path) is not None
        except OSError:
            return False

    def ask(self, path, method="GET"):
        """What etcd answers, its errors included."""
        return answer(f"http://{self.endpoint}{path}", 5, method=method)

    def wait_count(self, folder, key, count):
        """Waits until a counter in an EtcdStore has that value. Polls."""
        deadline = time.monotonic() + START_S
        while self.ask(f"/v2/keys{folder}{text64(key)}").get("node", {}).get("value") != text64(str(count)):
            jobs.check(time.monotonic() < deadline, f"{key} does not become {count}")
            time.sleep(0.02)


def cluster(scratch, count):
    """So many members of one cluster."""
    members = [Etcd(scratch, f"etcd{i}-", starts=False) for i in range(count)]
    for member in members:
        member.members = members
        member.launch()
    for member in members:
        member.wait_ready()
    return members
