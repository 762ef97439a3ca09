"""Hosts on one machine, and a network between them that fails in all the ways in which networks fail.

A host is a set of namespaces: network, host name, mounts (/etc/hosts, the boot id), process ids. Its interface is a tun device, and a
thread of this process is the switch between them. So nothing of the kernel is needed beside tun: no bridge, no firewall module. The
switch can cut off a host or a pair, in both directions or in one, lose and delay packets, forget connections as a stateful firewall
does, and refuse what belongs to them. A host can reboot, and it can get another address.

tests/regress/machines.py has machines on a bridge: simpler and faster, where cutting off is all that is needed.

Nothing here has a name in the system. A host lasts as long as the process that holds it, which dies with this process, and with it all
that runs on the host. So nothing is left behind, however a test ends, and any number of networks may stand side by side. Needs root,
/dev/net/tun, and the programs ip, unshare, nsenter and mount; jobs.Skip says what is missing."""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
import packets  # noqa: E402

NETWORK = "10.88.0."  # what all addresses begin with
HERE = "here"  # this process is a host too: an etcd runs beside it
HERE_ADDRESS = f"{NETWORK}254"
INTERFACE = "eth0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 65536
PACKETS_A_TURN = 64  # of one host, before the others have their turn
WAYS = ("both", "out", "in")  # out: what the host sends is lost
SPACES = ("net", "uts", "mnt")

_libc = ctypes.CDLL(None, use_errno=True)


def _enter(descriptor):
    """Moves this thread, or its future children, into a namespace."""
    if _libc.setns(descriptor, 0) != 0:
        raise jobs.Skip(f"setns: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def _inside(path, own):
    """This thread (for a namespace of process ids: what it starts) is in the namespace, then in its own again."""
    descriptors = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in (path, own)]
    try:
        _enter(descriptors[0])
        try:
            yield
        finally:
            _enter(descriptors[1])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise jobs.Skip(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def _need():
    """Skip, where hosts cannot be made. Moves this process into a network of its own."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if os.geteuid() != 0:
        raise jobs.Skip("hosts are made by root only")
    missing = [name for name in ("ip", "unshare", "nsenter", "mount", "hostname") if shutil.which(name) is None]
    if missing:
        raise jobs.Skip(f"not installed: {', '.join(missing)}")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise jobs.Skip("no /dev/net/tun here")
    lack = jobs.isolate(hostname=HERE)
    if lack:
        raise jobs.Skip(lack)


def _open_tun():
    """An interface of the network that this thread is in."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as why:
        os.close(tun)
        raise jobs.Skip(f"no tun device: {why.strerror}") from None
    return tun


class Host:
    """Made by Network.add(). address: the one that it has now, as text."""

    def __init__(self, network, name, address):
        self.network, self.name, self.address = network, name, address
        self.holder = None
        self.tun = -1
        self.boots = 0

    def _space(self, kind):
        return f"/proc/{self.holder.pid}/ns/{kind}"

    def _ip(self, *words):
        _run("nsenter", f"--net={self._space('net')}", "ip", *words)

    def boot(self):
        """Its namespaces, and its cable. The boot id is a new one."""
        self.boots += 1
        boot_id = self.network.write(f"{self.name}.boot{self.boots}", f"{uuid.uuid4()}\n")
        script = ('hostname "$0" && mount --bind "$1" /etc/hosts && mount --bind "$2" "$(readlink -f /etc/resolv.conf)" && '
                  "mount --bind \"$3\" /proc/sys/kernel/random/boot_id && ip link set lo up && echo ready && exec sleep infinity")  # fmt: skip
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script,
             self.name, self.network.names_path, self.network.resolver_path, boot_id],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, preexec_fn=jobs.die_with_parent)  # fmt: skip
        if self.holder.stdout.readline() != "ready\n":
            raise jobs.Skip("no right to make namespaces")
        with _inside(self._space("net"), "/proc/thread-self/ns/net"):
            self.tun = _open_tun()
        self._ip("addr", "add", f"{self.address}/24", "dev", INTERFACE)
        self._ip("link", "set", INTERFACE, "up")
        self.network.plug(self)

    def power_off(self):
        """All its processes are gone, and nothing of it reaches anybody."""
        self.network.unplug(self)
        if self.holder:
            self.holder.kill()
            self.holder.wait()
            self.holder.stdout.close()
            self.holder = None
        if self.tun >= 0:
            os.close(self.tun)
            self.tun = -1

    def reboot(self):
        """Loses its power and is back at once: packets of its old connections are refused, by a kernel that knows nothing of them."""
        self.power_off()
        self.boot()

    def readdress(self, address):
        """It has another address from now on, and its name leads there."""
        self._ip("addr", "del", f"{self.address}/24", "dev", INTERFACE)
        self._ip("addr", "add", f"{address}/24", "dev", INTERFACE)
        self.network.unplug(self)
        self.address = address
        self.network.plug(self)
        self.network.give_name(self.name, address)

    def start(self, scratch, name, command, env=None, **streams):
        """A process of the scratch, on this host. Its pid is one of this process's; it sees another. streams: as in Scratch.start()."""
        spaces = [f"--{option}={self._space(kind)}" for option, kind in (("net", "net"), ("uts", "uts"), ("mount", "mnt"))]
        with _inside(self._space("pid_for_children"), "/proc/thread-self/ns/pid"):
            return scratch.start(name, ["nsenter", *spaces, "--", *command], env, **streams)

    def pid_here(self, pid):
        """What this process calls a process that calls itself `pid` there; None: there is none."""
        space = os.readlink(f"/proc/{self.holder.pid}/ns/pid_for_children")
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/status", encoding="ascii", errors="replace") as status:
                numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
                if len(numbers) > 1 and int(numbers[-1]) == pid and os.readlink(f"/proc/{entry}/ns/pid") == space:
                    return int(entry)
        return None


class Network:
    """Hosts and their switch, as a context.

    note(port): from then on the switch notes when a host asks at this port and is answered (answered_after())."""

    def __init__(self, names=(), seed=1):
        _need()
        self.hosts = {}
        self.folder = tempfile.mkdtemp(prefix="muster-hosts-")
        self.names = {HERE: HERE_ADDRESS}
        self.names_path = self.write("names", "")
        self.resolver_path = self.write("resolver", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self._lock = threading.Lock()  # of all that follows
        self._ports = {}  # tun -> host name
        self._tables = {}  # address -> (host name, tun)
        self._dropped = set()  # (from, to)
        self._loss, self._delay = {}, {}  # (from, to) -> share; seconds
        self._connections = None  # those that the firewall knows; None: there is none
        self._refuses = False
        self._noted = {}  # port -> [(ns, host that asked, is an answer)]
        self._random = random.Random(seed)
        self._ends, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._here = -1
        self._thread = threading.Thread(target=self._carry, daemon=True)
        try:
            self._here = _open_tun()
            _run("ip", "addr", "add", f"{HERE_ADDRESS}/24", "dev", INTERFACE)
            _run("ip", "link", "set", INTERFACE, "up")
            self._ports[self._here] = HERE
            self._tables[socket.inet_aton(HERE_ADDRESS)] = (HERE, self._here)
            self._thread.start()
            for name in names:
                self.add(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for host in self.hosts.values():
            host.power_off()
        self.hosts = {}
        os.write(self._wake, b"end")
        if self._thread.ident:
            self._thread.join()
        for descriptor in (self._here, self._ends, self._wake):
            if descriptor >= 0:
                os.close(descriptor)
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, text):
        """A file of the network's. An old one is written over: it may be mounted."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    # ------------------------------------------------------------------- hosts

    def add(self, name, address=None):
        """A host that runs. By default its address follows from how many there are: host0 has NETWORK 1."""
        address = address or f"{NETWORK}{len(self.hosts) + 1}"
        host = self.hosts[name] = Host(self, name, address)
        self.give_name(name, address)
        host.boot()
        return host

    def give_name(self, name, address):
        """From now on the name leads there, for all hosts; None: nowhere."""
        self.names[name] = address
        lines = [f"{address} {name}\n" for name, address in self.names.items() if address]
        self.write("names", "127.0.0.1 localhost\n" + "".join(lines))

    def plug(self, host):
        with self._lock:
            self._ports[host.tun] = host.name
            self._tables[socket.inet_aton(host.address)] = (host.name, host.tun)
        os.write(self._wake, b"more")

    def unplug(self, host):
        with self._lock:
            self._ports.pop(host.tun, None)
            self._tables.pop(socket.inet_aton(host.address), None)

    # ------------------------------------------------------------------- what goes wrong

    def _pairs(self, host, other, way):
        others = [other] if other else [name for name in (*self.hosts, HERE) if name != host]
        outward, inward = {(host, name) for name in others}, {(name, host) for name in others}
        return {"both": outward | inward, "out": outward, "in": inward}[way]

    def cut(self, host, other=None, way="both"):
        """From now on nothing passes between the host and the other one (all others), or nothing that the host sends ("out") or
        that is sent to it ("in")."""
        with self._lock:
            self._dropped |= self._pairs(host, other, way)

    def heal(self):
        """Nothing is cut, lost or late any more. A firewall stays."""
        with self._lock:
            self._dropped.clear()
            self._loss.clear()
            self._delay.clear()

    def lose(self, host, share, other=None, way="both"):
        """This share of the packets is lost."""
        with self._lock:
            self._loss.update(dict.fromkeys(self._pairs(host, other, way), share))

    def delay(self, host, seconds, other=None, way="both"):
        """Packets arrive so much later."""
        with self._lock:
            self._delay.update(dict.fromkeys(self._pairs(host, other, way), seconds))

    def forget(self, refuses=False):
        """A stateful firewall stands between all hosts, and knows none of their connections: it drops what belongs to them, or
        refuses it (RST). New connections pass. Once more: it forgets again."""
        with self._lock:
            self._connections, self._refuses = set(), refuses

    def remember(self):
        """The firewall is gone."""
        with self._lock:
            self._connections = None

    # ------------------------------------------------------------------- what is seen

    def note(self, port):
        with self._lock:
            self._noted.setdefault(port, [])

    def answered_after(self, host, port, since_ns):
        """When (CLOCK_MONOTONIC) the host first got data from a noted port that it had sent data to after `since_ns`; None: not yet.
        A packet that is sent again counts as data."""
        with self._lock:
            noted = [(when, answer) for when, who, answer in self._noted.get(port, ()) if who == host and when > since_ns]
        asked = next((when for when, answer in noted if not answer), None)
        return next((when for when, answer in noted if answer and asked and when >= asked), None)

    # ------------------------------------------------------------------- the switch

    def _carry(self):
        """The thread."""
        due, order = [], itertools.count()
        while True:
            with self._lock:
                ports = list(self._ports)
            poller = select.poll()
            for descriptor in (*ports, self._ends):
                poller.register(descriptor, select.POLLIN)
            wait_ms = max(0.0, (due[0][0] - time.monotonic()) * 1000) if due else None
            for descriptor, _ in poller.poll(wait_ms):
                if descriptor == self._ends:
                    if b"end" in os.read(self._ends, 4096):
                        return
                    continue
                self._take(descriptor, due, order)
            while due and due[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(due)
                with self._lock:  # it may have lost its power meanwhile
                    tun = next((tun for tun, name in self._ports.items() if name == target), None)
                    if tun is not None:
                        with contextlib.suppress(OSError):
                            os.write(tun, packet)

    def _take(self, tun, due, order):
        for _ in range(PACKETS_A_TURN):
            with self._lock:
                source = self._ports.get(tun)
                if source is None:
                    return
                try:
                    packet = os.read(tun, PACKET_BYTES)
                except OSError:
                    return
                for target, late_s, out in self._judge(source, packet):
                    heapq.heappush(due, (time.monotonic() + late_s, next(order), target, out))

    def _judge(self, source, packet):
        """What becomes of a packet: [(host, seconds late, packet)]."""
        ends = packets.addresses(packet)
        if ends is None or ends[1] not in self._tables or self._tables.get(ends[0], ("",))[0] != source:
            return []  # to nobody, or from an address that the host has no more
        target = self._tables[ends[1]][0]
        pair = (source, target)
        if pair in self._dropped or self._random.random() < self._loss.get(pair, 0):
            return []
        segment = packets.segment(packet)
        if segment and self._connections is not None:
            if segment.opens:
                self._connections.add(segment.connection)
            elif segment.connection not in self._connections:
                refused = self._refuses and not segment.flags & packets.RST
                return [(source, 0, packets.refusal(segment))] if refused else []
        if segment and segment.payload > 0 and self._noted:
            now = time.monotonic_ns()
            if segment.target_port in self._noted:
                self._noted[segment.target_port].append((now, source, False))
            elif segment.source_port in self._noted:
                self._noted[segment.source_port].append((now, target, True))
        return [(target, self._delay.get(pair, 0), packet)]
