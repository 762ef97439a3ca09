#!/usr/bin/env python3
# Every operation of the store with the real PyTorch on either side, and the same answers whoever serves and whoever asks.
# needs: torch
# waits: yes
"""Usage: test_store.py [NAME ...] [--seed N]; MUSTER_BINARY names the program, store_peer lies in tests/ beside it.

Servers: muster store, PyTorch's libuv server, PyTorch's classic server. Clients: PyTorch's, muster/store.h, the agent's. A
case runs with each server and each pair of clients (PyTorch's beside PyTorch's is the model). What PyTorch's servers do
differently from each other, or from ours on purpose, is said where it is expected.
"""
import os
import random
import struct
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "regress"), os.path.dirname(HERE)]
import cases  # noqa: E402
import jobs  # noqa: E402

ISOLATED = jobs.isolate()  # no name server: PyTorch's side asks one for each connection. Before PyTorch starts threads.

import store_peers as peers  # noqa: E402
from store_peers import MusterClient, Server, TorchClient  # noqa: E402

SHORT_MS = 100  # waited in vain
MIB = 1 << 20
BINARY = bytes(range(256)) + b"\0\0"


def expect_failure(kind, call, *arguments):
    try:
        got = call(*arguments)
    except kind as why:
        return str(why)
    raise AssertionError(f"{call} {arguments} gave {got!r:.200}, {kind.__name__} was expected")


def same(got, wanted):
    assert got == wanted, f"got {got!r:.300}, expected {wanted!r:.300}"


# --------------------------------------------------------------------------- pairs of clients on one server


def values(server, a, b):
    a.set("v/text", b"one")
    same(b.get("v/text"), b"one")
    b.set("v/text", b"two")
    b.settle()
    same(a.get("v/text"), b"two")
    a.set("v/binary", BINARY)
    same(b.get("v/binary"), BINARY)
    a.set("v/empty", b"")
    same(b.get("v/empty"), b"")
    b.set("v/" + "k" * 8000, b"long key")
    same(a.get("v/" + "k" * 8000), b"long key")
    a.set("", b"no name")
    same(b.get(""), b"no name")


def large_values(server, a, b):
    largest = b"x" * (8 * MIB)
    a.set("large", largest)
    same(b.get("large"), largest)
    # 40 MiB in one message; libuv's server, which parses a request anew for each piece of it, would take a minute.
    each = MIB if server.kind == "libuv" else 8 * MIB
    names = [f"large/{i}" for i in range(5)]
    several = [bytes([i + 1]) * (each - i) for i in range(5)]
    b.multi_set(names, several)
    b.settle()
    same(a.multi_get(names), several)
    b.append("large/a", largest[: 5 * MIB])
    b.append("large/a", b"y" * (3 * MIB))
    b.settle()
    same(a.get("large/a"), b"x" * (5 * MIB) + b"y" * (3 * MIB))
    for name in [*names, "large", "large/a"]:
        a.delete_key(name)


def numbers(server, a, b):
    same(a.add("n", 5), 5)
    same(b.add("n", -7), -2)
    same(a.get("n"), b"-2")
    same(a.add("n/zero", 0), 0)
    same(b.get("n/zero"), b"0")
    for name, text, wanted in (("a", b"12abc", 13), ("b", b" \t7", 8), ("c", b"+4", 5), ("d", b"-1", 0)):
        a.set(f"n/{name}", text)
        a.settle()
        same(b.add(f"n/{name}", 1), wanted)
        same(a.get(f"n/{name}"), str(wanted).encode())
    same(b.add("n/wrap", 2**63 - 1), 2**63 - 1)
    same(a.add("n/wrap", 1), -(2**63))
    same(b.get("n/wrap"), b"-9223372036854775808")


def compare_sets(server, a, b):
    same(a.compare_set("c", b"", b"one"), b"one")
    same(b.compare_set("c", b"bad", b"two"), b"one")
    same(b.compare_set("c", b"", b"two"), b"one")
    same(b.compare_set("c", b"one", b"two"), b"two")
    same(a.compare_set("c", b"two", b"two"), b"two")
    same(a.compare_set("c/absent", b"expected", b"desired"), b"expected")  # the protocol's lie
    same(b.check(["c/absent"]), False)
    a.set("c/empty", b"")
    a.settle()
    same(b.compare_set("c/empty", b"", b"was empty"), b"was empty")
    same(a.compare_set("c/none", b"", b""), b"")
    same(b.check(["c/none"]), True)
    same(b.compare_set("c/binary", b"", BINARY), BINARY)
    same(a.compare_set("c/binary", BINARY[:-1], b"x"), BINARY)
    same(a.get("c"), b"two")


def appends_and_deletions(server, a, b):
    a.append("a", b"ab")
    a.append("a", b"cd")
    a.settle()
    b.append("a", b"")
    b.append("a", BINARY)
    same(b.get("a"), b"abcd" + BINARY)
    before = a.num_keys()
    same(b.delete_key("a"), True)
    same(b.delete_key("a"), False)
    same(a.num_keys(), before - 1)
    same(a.check(["a"]), False)
    a.append("a", b"anew")
    same(a.get("a"), b"anew")


def several_keys(server, a, b):
    names = [f"m/{i}" for i in range(200)]
    several = [b"%d" % i * (i % 7) for i in range(200)]
    a.multi_set(names, several)
    a.settle()
    same(b.multi_get(names), several)
    same(b.multi_get(names[::-1]), several[::-1])
    same(b.multi_get(["m/5", "m/5"]), [several[5]] * 2)
    same(b.check(names), True)
    same(b.check([*names, "m/absent"]), False)
    same(b.check([]), True)
    b.wait(names)
    b.wait([])
    b.multi_set(["m/1", "m/1"], [b"first", b"last"])
    b.settle()
    same(a.get("m/1"), b"last")


def waiting(server, a, b):
    wakers = {
        "set": lambda key: b.set(key, b"v"),
        "add": lambda key: b.add(key, 1),
        "append": lambda key: b.append(key, b"v"),
        "multi_set": lambda key: b.multi_set([key], [b"v"]),
    }
    if server.kind != "classic":  # which never tells the waiting
        wakers["compare_set"] = lambda key: b.compare_set(key, b"", b"v")
    for how, wake in wakers.items():
        for turn in range(5):  # sometimes the wait comes first, sometimes the key
            keys = [f"w/{how}/{turn}", f"w/{how}/{turn}/too"]
            waits = a.start("wait", keys)
            wake(keys[1])
            wake(keys[0])
            waits.result()
            gets = a.start("get", f"w/{how}/{turn}/get")
            wake(f"w/{how}/{turn}/get")
            same(gets.result(), b"1" if how == "add" else b"v")
    both = a.start("multi_get", ["w/x", "w/y"])
    b.set("w/y", b"2")
    b.set("w/x", b"1")
    same(both.result(), [b"1", b"2"])


def waiting_in_vain(server, a, b):
    b.set("t/here", b"v")
    b.settle()
    for client in (a, b):
        text = expect_failure(peers.TimedOut, client.wait, ["t/here", "t/nowhere"], SHORT_MS)
        assert "/t/nowhere" in text, text
        expect_failure(peers.TimedOut, client.get, "t/nowhere", SHORT_MS)
        expect_failure(peers.TimedOut, client.multi_get, ["t/here", "t/nowhere"], SHORT_MS)
        same(client.get("t/here"), b"v")  # the connection is in step
        client.wait(["t/here"])
    b.set("t/nowhere", b"late")  # nobody waits any more
    same(a.get("t/nowhere"), b"late")
    same(a.add("t/n", 1), 1)


def queues(server, a, b):
    a.queue_push("q", b"one")
    a.queue_push("q", BINARY)
    a.queue_push("q", b"")
    same(a.queue_len("q"), 3)
    same(b.check(["q"]), True)
    b.wait(["q"])
    same(b.queue_pop("q"), b"one")
    same(b.queue_pop("q", 0), BINARY)
    same(b.queue_pop("q"), b"")
    same(b.queue_len("q"), 0)
    same(b.check(["q"]), False)
    expect_failure(peers.Empty, b.queue_pop, "q", 0)
    expect_failure(peers.TimedOut, b.queue_pop, "q", SHORT_MS)
    before = a.num_keys()
    for turn in range(5):
        pops = a.start("queue_pop", "q")
        b.queue_push("q", b"item %d" % turn)
        same(pops.result(), b"item %d" % turn)
    b.queue_push("q/name", b"item")  # beside the keys
    b.set("q/name", b"value")
    b.settle()
    same(a.num_keys(), before + 1)
    same(a.get("q/name"), b"value")
    same(a.delete_key("q/name"), True)
    same(a.queue_pop("q/name"), b"item")
    a.queue_push("q/large", b"z" * (8 * MIB))
    same(b.queue_pop("q/large"), b"z" * (8 * MIB))


def barriers(server, a, b):
    a.barrier("b/alone", 1)
    expect_failure(peers.TimedOut, a.barrier, "b/two", 2, SHORT_MS)
    same(b.get("b/two"), b"1")  # an arrival in vain stays counted
    b.barrier("b/two", 2)
    a.barrier("b/two", 2)
    for turn in range(5):
        arrives = a.start("barrier", f"b/{turn}", 2)
        b.barrier(f"b/{turn}", 2)
        arrives.result()
        same(b.get(f"b/{turn}"), b"2")


def listings(server, a, b):
    for key in a.list_keys():
        a.delete_key(key)
    rest = b.num_keys()
    names = sorted(f"l/{i}" for i in range(100))
    a.multi_set(names, [b"v"] * 100)
    a.settle()
    same(b.list_keys(), names)
    same(b.num_keys(), rest + 100)
    same(a.list_keys(), names)


CASES = [
    values,
    large_values,
    numbers,
    compare_sets,
    appends_and_deletions,
    several_keys,
    waiting,
    waiting_in_vain,
    queues,
    barriers,
    listings,
]

CONNECT = {"torch": TorchClient.connect, "muster": MusterClient.connect}
PAIRS = [("torch", "torch"), ("torch", "muster"), ("muster", "torch"), ("muster", "muster")]


def run_case(case, server):
    if (case is queues and not server.has_queues) or (case is barriers and not peers.HAS_BARRIERS):
        return
    for first, second in PAIRS:
        # Keys of the pair before are gone, so that each meets the same store.
        sweeper = MusterClient.connect(server.port)
        for key in sweeper.list_keys():
            sweeper.delete_key(key)
        sweeper.close()
        a, b = CONNECT[first](server.port), CONNECT[second](server.port)
        try:
            case(server, a, b)
        except BaseException:
            print(f"{case.__name__}: {first} and {second} on {server.kind}", flush=True)
            raise
        a.close()
        b.close()


# --------------------------------------------------------------------------- cases of their own, once for each server


def prefixes(server):
    plain = TorchClient.connect(server.port)
    nested = ("in", "out")  # PrefixStore("out", PrefixStore("in", store)): the outer one's name comes last
    theirs = TorchClient.connect(server.port, nested)
    ours = MusterClient.connect(server.port, nested)
    theirs.set("p", b"theirs")
    same(ours.get("p"), b"theirs")
    same(plain.get("in/out/p"), b"theirs")
    same(ours.add("p/n", 2), 2)
    same(theirs.add("p/n", 1), 3)
    same(plain.get("in/out/p/n"), b"3")
    ours.multi_set(["p/a", "p/b"], [b"1", b"2"])
    ours.settle()
    same(theirs.multi_get(["p/b", "p/a"]), [b"2", b"1"])
    same(theirs.check(["p/a", "p/b"]), True)
    same(plain.check(["in/out/p/a"]), True)
    same(ours.compare_set("p/a", b"1", b"3"), b"3")
    same(theirs.delete_key("p/b"), True)
    same(ours.check(["p/b"]), False)
    if peers.HAS_BARRIERS:
        arrives = theirs.start("barrier", "p/bar", 2)
        ours.barrier("p/bar", 2)
        arrives.result()
    if server.has_queues:
        ours.queue_push("p/q", b"item")
        same(theirs.queue_pop("p/q"), b"item")
    same(ours.num_keys(), theirs.num_keys())
    assert "p" in ours.list_keys() and "in/out/p" in plain.list_keys()
    for client in (plain, theirs, ours):
        client.close()


def counted_workers(server):
    """A world size: everybody adds one to the bare key "init/", which nobody lists."""
    theirs = TorchClient.connect(server.port, world_size=3)
    ours = MusterClient.connect(server.port, world_size=3)
    agent = MusterClient.connect_agent(server.port)
    same(agent.get_init(), b"2")
    same(agent.add_init(), 3)
    same(agent.get_init(), b"3")
    assert "init/" not in ours.list_keys() and "init/" not in theirs.list_keys()
    for client in (theirs, ours, agent):
        client.close()


def agents_client(server):
    agent, theirs = MusterClient.connect_agent(server.port), TorchClient.connect(server.port)
    same(agent.server_is_muster, server.kind == "muster")
    for case in (values, numbers, compare_sets, several_keys, waiting, waiting_in_vain):
        try:
            (case(server, agent, theirs) if case is not waiting else case_of_wakers(server, theirs, agent))
        except BaseException:
            print(f"agent's client, {case.__name__} on {server.kind}", flush=True)
            raise
    theirs.set("found", b"here")
    for key, value in (("absent", b""), ("found", b"here"), ("absent", b"")):  # nothing is set, and no connection lost
        same(agent.find(key), value)
    same(theirs.check(["absent"]), False)
    if server.kind == "classic":
        expect_failure(peers.Gone, agent.get, "absent", 0)  # it drops who asks for what is not there
    else:
        same(agent.get("absent", 0), b"")
    if server.kind == "muster":
        watch = agent.start("watch", "watched", b"")
        theirs.set("watched", b"new")
        same(watch.result(), b"new")
        same(agent.watch("watched", b"old"), b"new")
    elif server.kind == "libuv":
        expect_failure(peers.Unsupported, agent.watch, "watched", b"")
    agent.close()
    theirs.close()


def case_of_wakers(server, waiter, waker):
    """`waiting` with a client that has no append."""
    for turn in range(5):
        keys = [f"aw/{turn}", f"aw/{turn}/too"]
        for one, other in ((waiter, waker), (waker, waiter)):
            keys = [key + "+" for key in keys]
            waits = one.start("wait", keys)
            other.multi_set(keys[:1], [b"v"])
            other.add(keys[1], 1)
            waits.result()


def queues_of_the_classic_server(server):
    if server.has_queues:
        return
    theirs = TorchClient.connect(server.port, use_libuv=False)
    expect_failure(peers.Unsupported, theirs.queue_len, "q")
    ours = MusterClient.connect(server.port)
    expect_failure(peers.Gone, ours.queue_len, "q")
    same(theirs.add("still", 1), 1)
    huge = b"h" * (32 * MIB)  # it knows no limit, and what another client stored can be read
    theirs.set("huge", huge)
    reader = MusterClient.connect(server.port)
    same(reader.get("huge"), huge)
    expect_failure(peers.Limit, reader.set, "huge", huge)
    same(reader.add("still", 1), 2)
    for client in (theirs, ours, reader):
        client.close()


def bad_sums_end_the_connection(server):
    for connect in (TorchClient.connect, MusterClient.connect):
        for text in (b"", b"abc", b"99999999999999999999"):
            bad, good = connect(server.port), TorchClient.connect(server.port)
            good.set("bad", text)
            good.settle()
            if server.kind != "muster" and text[:1] == b"9":
                continue  # out of range
            expect_failure(peers.Gone, bad.add, "bad", 1)
            same(good.get("bad"), text)
            bad.close()
            good.close()


def wire_limits(server):
    """Over the limit: the sender loses its connection, nobody else."""
    if server.kind == "classic":
        return  # it has none
    good = TorchClient.connect(server.port)
    for name, arguments in (
        ("set", ("k" * 8192, b"v")),  # and the slash
        ("set", ("k", b"v" * (8 * MIB + 1))),
        ("append", ("k", b"v" * (8 * MIB + 1))),
    ):
        bad = TorchClient.connect(server.port)
        expect_failure(peers.Gone, lambda b=bad, n=name, a=arguments: (getattr(b, n)(*a), b.settle()))
        bad.close()
        careful = MusterClient.connect(server.port)
        expect_failure(peers.Limit, getattr(careful, name), *arguments)  # said before anything is sent
        same(careful.add("careful", 1) > 0, True)
        careful.close()
    same(good.check(["k"]), False)
    good.close()


def the_end_of_the_server(server):
    server = Server(server.kind)
    clients = [TorchClient.connect(server.port), MusterClient.connect(server.port)]
    waits = [client.start("wait", ["never"]) for client in clients]
    last = MusterClient.connect(server.port)
    same(last.add("n", 1), 1)
    server.kill()
    for wait in waits:
        expect_failure(peers.Gone, wait.result)
    expect_failure(peers.Gone, last.get, "n")
    for client in [*clients, last]:
        client.close()


def random_word(rng):
    return rng.choice([b"", b"1", b"-5", b" 42x", b"abc", BINARY, b"7" * 300, b"%d" % rng.randrange(10**6)])


def random_step(rng, with_queues):
    """An operation that does not wait, and its arguments. Keys are few, so that steps meet."""
    number, text, queue = f"n{rng.randrange(4)}", f"t{rng.randrange(6)}", f"q{rng.randrange(3)}"
    known = ["fixed", f"fixed{rng.randrange(3)}"]
    steps = [
        ("set", text, random_word(rng)),
        ("set", number, b"%d" % rng.randrange(-(10**9), 10**9)),
        ("add", number, rng.choice([0, 1, -1, 2**62, -(2**62), rng.randrange(-(10**9), 10**9)])),
        ("append", text, random_word(rng)),
        ("compare_set", text, random_word(rng), random_word(rng)),
        ("compare_set", text, b"", random_word(rng)),
        ("delete_key", rng.choice([text, number])),
        ("check", rng.sample(["t0", "t1", "t2", "n0", "n1", "q0", "fixed"], rng.randrange(4))),
        ("num_keys",),
        ("list_keys",),
        ("multi_set", [text, number, text], [random_word(rng), b"%d" % rng.randrange(99), random_word(rng)]),
        ("multi_get", known),
        ("get", "fixed"),
    ]
    if peers.HAS_BARRIERS:
        steps.append(("barrier", f"b{rng.randrange(3)}", 1))
    queue_steps = [
        ("queue_push", queue, random_word(rng)),
        ("queue_push", queue, random_word(rng)),
        ("queue_pop", queue, 0),
        ("queue_len", queue),
    ]
    return rng.choice(steps + (queue_steps if with_queues else []))


def transcript(client, seed, with_queues):
    rng = random.Random(seed)
    said = []
    client.multi_set(["fixed", "fixed0", "fixed1", "fixed2"], [b"f", BINARY, b"", b"2"])
    for _ in range(1000 if with_queues else 300):
        name, *arguments = random_step(rng, with_queues)
        try:
            said.append((name, arguments, getattr(client, name)(*arguments)))
        except peers.Empty:
            said.append((name, arguments, "empty"))
    return said


def random_steps(seed):
    """The same random operations: each server and client give the same answers."""
    for with_queues in (True, False):
        model = None
        for kind in ("libuv", "muster", *(() if with_queues else ("classic",))):
            for make, connect in CONNECT.items():
                server = Server(kind)
                client = connect(server.port)
                said = transcript(client, seed, with_queues)
                client.close()
                server.kill()
                model = model or said
                for number, (got, wanted) in enumerate(zip(said, model)):
                    assert got == wanted, f"{make} on {kind}, step {number}: {got!r:.300}, {wanted!r:.300} by PyTorch"


# --------------------------------------------------------------------------- who hosts, and files


def muster_hosts():
    """The store in a C worker of rank 0 waits for PyTorch's worker."""
    port = jobs.free_port()
    host = MusterClient("store_peer", "host", "-", port, 2, peers.PATIENCE_MS)
    theirs = TorchClient.connect(port, world_size=2)
    same(int(host.read()[0]), port)
    host.set("k", b"v")
    same(theirs.get("k"), b"v")
    theirs.close()
    host.close()


def pytorch_hosts():
    """And the other way round."""
    for use_libuv in (True, False):
        port = jobs.free_port()
        code = (
            "from torch.distributed import TCPStore\nimport sys\n"
            f"store = TCPStore('127.0.0.1', {port}, 2, True, use_libuv={use_libuv})\n"
            "store.set('k', 'v')\nprint('all here', flush=True)\nsys.stdin.read()\n"
        )
        host = jobs.ForkedPython(code)
        ours = MusterClient.connect(port, world_size=2)
        same(host.stdout.readline(), "all here\n")
        same(ours.get("k"), b"v")
        ours.close()
        host.stdin.close()
        same(host.wait(), 0)


def one_file_for_both():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        theirs, ours = TorchClient.open_file(path, 2), MusterClient.open_file(path, 2)
        for a, b in ((theirs, ours), (ours, theirs)):
            a.set("k", BINARY)
            same(b.get("k"), BINARY)
            same(b.add("n", 5), a.add("n", 0))
            same(a.compare_set("c", b"", b"one"), b.compare_set("c", b"x", b"two"))
            same(b.compare_set("c", b"one", b""), b"")
            same(a.compare_set("c/absent", b"expected", b"x"), b"expected")
            same(b.check(["c/absent"]), False)
            a.delete_key("k")
            same(b.check(["k"]), False)
            b.set("a", b"ab")
            b.append("a", b"cd")
            same(a.get("a"), b"abcd")
            a.multi_set(["m1", "m2"], [b"1", b""])
            same(b.multi_get(["m2", "m1"]), [b"", b"1"])
            waits = a.start("wait", [f"late/{a.make}"])
            b.set(f"late/{a.make}", b"v")
            waits.result()
            expect_failure(peers.TimedOut, b.wait, ["never"], SHORT_MS)
            same(a.num_keys(), b.num_keys())
            large = b"L" * (8 * MIB)
            a.set("large", large)
            same(b.get("large"), large)
        ours.close()
        assert os.path.exists(path)
        theirs.close()
        assert not os.path.exists(path)  # the last one removes it


ALONE = [
    prefixes,
    counted_workers,
    agents_client,
    queues_of_the_classic_server,
    bad_sums_end_the_connection,
    wire_limits,
    the_end_of_the_server,
]
HOSTS = [muster_hosts, pytorch_hosts, one_file_for_both]


def main():
    arguments = sys.argv[1:]
    seed = random.SystemRandom().randrange(2**32)
    if "--seed" in arguments:
        at = arguments.index("--seed")
        seed = int(arguments[at + 1])
        del arguments[at : at + 2]
    print(f"seed {seed}{f', not isolated: {ISOLATED}' if ISOLATED else ''}", flush=True)
    everything = [*CASES, *ALONE, *HOSTS, random_steps]
    wanted = [case for case in everything if case.__name__ in arguments or (not arguments and cases.wanted(case.__name__))]
    servers = [Server(kind) for kind in ("muster", "libuv", "classic")]
    for case in wanted:
        started = time.monotonic()
        if case is random_steps:
            case(seed)
        elif case in HOSTS:
            case()
        else:
            for server in servers:
                run_case(case, server) if case in CASES else case(server)
        print(f"{case.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    for server in servers:
        server.kill()


main()
