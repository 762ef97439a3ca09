#!/usr/bin/env python3
# muster doctor --nnodes: processes on loopback, and nodes in network namespaces of which one has a slow link.
# waits: yes
"""Usage: test_doctor_nodes.py [CASE ...]; MUSTER_BINARY names the program."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402
import jobs  # noqa: E402
import machines  # noqa: E402
from jobs import Skip, check  # noqa: E402

PATIENCE_S = 120
isolated = None


def start(*arguments, prefix=(), **more):
    return subprocess.Popen(
        [*prefix, jobs.muster_binary(), "doctor", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def answers(processes):
    # What they measure is to be the network, also on a busy machine.
    jobs.put_before_all_others([process.pid for process in processes])
    found = []
    for process in processes:
        out, errors = process.communicate(timeout=PATIENCE_S)
        check(errors == "", errors)
        found.append(json.loads(out))
    return found


def of_check(answer, name):
    return [f for f in answer["findings"] if f["check"] == name]


def printing(found):
    """The one answer that has the pairs."""
    with_pairs = [answer for answer in found if "pairs" in answer]
    check(len(with_pairs) == 1, f"{len(with_pairs)} have printed the pairs: {found}")
    return with_pairs[0]


# ---------------------------------------------------------------------------


def four_processes_meet_on_loopback():
    port = jobs.free_port()
    found = answers(
        [start("--nnodes=4", f"--rdzv-endpoint=127.0.0.1:{port}", "--only=nodes,network") for _ in range(4)]
    )
    answer = printing(found)
    check(len(answer["nodes"]) == 4 and len(answer["pairs"]) == 6, f"{answer}")
    check({(p["from"], p["to"]) for p in answer["pairs"]} == {(a, b) for a in range(4) for b in range(a + 1, 4)}, f"{answer}")
    for pair in answer["pairs"]:
        check(pair["measured"] and pair["latency_us"] > 0, f"{pair}")
        check(min(pair["forward_mbps"], pair["backward_mbps"], pair["both_mbps"]) > 0, f"{pair}")
        check(abs(pair["ahead_us"]) < 1e6, f"one machine has one clock: {pair}")
    check(of_check(answer, "nodes")[0]["level"] == "ok", f"{answer}")
    for other in found:
        if other is not answer:
            check("have met" in of_check(other, "nodes")[0]["what"], f"{other}")


def an_odd_number_of_nodes():
    port = jobs.free_port()
    found = answers(
        [start("--nnodes=3", f"--rdzv-endpoint=127.0.0.1:{port}", "--only=nodes,network") for _ in range(3)]
    )
    check(len(printing(found)["pairs"]) == 3, f"{found}")


def nodes_that_do_not_come():
    port = jobs.free_port()
    found = answers(
        [start("--nnodes=3", f"--rdzv-endpoint=127.0.0.1:{port}", "--only=network", "--timeout=2") for _ in range(2)]
    )
    whats = [f["what"] for answer in found for f in of_check(answer, "network") if f["level"] == "error"]
    check(len(whats) == 2 and any("2 of 3 nodes have come" in what for what in whats), f"{whats}")


def a_stranger_on_the_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = answers([start("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--only=network", "--timeout=2")])
        check(of_check(found[0], "network")[0]["level"] == "error", f"{found}")


def nobody_without_an_endpoint():
    done = start("--nnodes=2")
    _, errors = done.communicate(timeout=PATIENCE_S)
    check(done.returncode == 2 and "--nnodes needs --rdzv-endpoint" in errors, errors)


# ---------------------------------------------------------------------------


@contextlib.contextmanager
def network(count):
    """Machines node0, node1 and so on, which know each other's names: a list."""
    if isolated:
        raise Skip(isolated)
    if not shutil.which("tc"):
        raise Skip("tc is not installed")
    with machines.Hub() as hub, contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        nodes = [hub.add(f"node{i}", f"{machines.NETWORK}{i + 1}", hostname=f"node{i}") for i in range(count)]
        hosts = os.path.join(folder, "hosts")
        with open(hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{node.address} {node.name}\n" for node in nodes))
        jobs.bind_mount(hosts, "/etc/hosts")
        stack.callback(jobs._libc.umount2, b"/etc/hosts", jobs.MNT_DETACH)
        yield nodes


def one_slow_link_is_pointed_at():
    with network(4) as nodes:
        machines.run("tc", "qdisc", "add", "dev", nodes[2].port, "root", "tbf", "rate", "30mbit", "burst", "64kb", "latency", "50ms")
        found = answers(
            [
                start("--nnodes=4", "--rdzv-endpoint=node0:29400", "--only=names,nodes,network", prefix=node.inside())
                for node in nodes
            ]
        )
        answer = printing(found)
        check([node["host"] for node in answer["nodes"]] == [f"node{i}" for i in range(4)], f"{answer}")
        warnings = [f["what"] for f in of_check(answer, "network") if f["level"] == "warning"]
        check(any("all links of node2 are slow" in what for what in warnings), f"{warnings}")
        check(not any("of node0" in w or "of node1" in w or "of node3" in w for w in warnings), f"{warnings}")
        check(of_check(answer, "nodes")[0]["level"] == "ok", f"names and traits: {of_check(answer, 'nodes')}")


def one_late_node_is_pointed_at():
    with network(3) as nodes:
        machines.run("tc", "qdisc", "add", "dev", nodes[1].port, "root", "netem", "delay", "20ms")
        found = answers(
            [start("--nnodes=3", "--rdzv-endpoint=node0:29400", "--only=network", prefix=node.inside()) for node in nodes]
        )
        warnings = [f["what"] for f in of_check(printing(found), "network")]
        check(any("node1 answers late" in what for what in warnings), f"{warnings}")


def one_pair_that_does_not_reach_each_other_is_pointed_at():
    with network(3) as nodes:
        nodes[1].run("ip", "route", "add", "blackhole", f"{nodes[2].address}/32")
        processes = [
            start("--nnodes=3", "--rdzv-endpoint=node0:29400", "--only=network", prefix=node.inside()) for node in nodes
        ]
        answer = printing(answers(processes))
        errors = [f["what"] for f in of_check(answer, "network") if f["level"] == "error"]
        check(len(errors) == 1 and "node1 does not reach node2" in errors[0], f"{errors}")
        check([process.returncode for process in processes] == [1, 0, 0], "the node that prints it has an error")


CASES = [
    four_processes_meet_on_loopback,
    an_odd_number_of_nodes,
    nodes_that_do_not_come,
    a_stranger_on_the_port,
    nobody_without_an_endpoint,
    one_slow_link_is_pointed_at,
    one_late_node_is_pointed_at,
    one_pair_that_does_not_reach_each_other_is_pointed_at,
]


def main():
    global isolated
    isolated = jobs.isolate(mounts=True)
    skipped = 0
    for case in cases.chosen(CASES):
        try:
            case()
            print(f"ok      {case.__name__}", flush=True)
        except Skip as why:
            skipped += 1
            print(f"SKIPPED {case.__name__}: {why}", flush=True)
    print(f"{len(CASES) - skipped} cases, {skipped} skipped")


main()
