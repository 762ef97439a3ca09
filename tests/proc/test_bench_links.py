#!/usr/bin/env python3
# `muster bench --tune=links` on three hosts (network namespaces) whose pairs are joined by different cables: what it
# prints says which cables to use, groups then use these, and a line that does not fit any more is passed over.
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
import machines  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
HOSTS = "abc"
# Cable n is the network 10.98.n.0, where host number i has the address i + 1. The slow one costs more than it gains.
CABLES = (("a", "b", "200mbit"), ("a", "b", "200mbit"), ("a", "c", "200mbit"), ("a", "c", "10mbit"),
          ("b", "c", "200mbit"))
hub = None


def lay_cables():
    for i, host in enumerate(HOSTS, 1):
        hub.add(host, f"{machines.NETWORK}{i}")
    for number, (left, right, rate) in enumerate(CABLES):
        name = f"cable{number}"
        ends = hub.machines[left], hub.machines[right]
        machines.run("ip", "link", "add", name, "netns", str(ends[0].holder.pid), "type", "veth", "peer", "name", name,
                     "netns", str(ends[1].holder.pid))
        for end in ends:
            end.run("ip", "addr", "add", f"10.98.{number}.{HOSTS.index(end.name) + 1}/24", "dev", name)
            end.run("ip", "link", "set", name, "up")
            end.run("tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "20ms")


def bench(*arguments, **environment):
    """Of all hosts: the first one's stdout, and what all have written to stderr."""
    port, ranks = str(jobs.free_port()), []
    for i, host in enumerate(HOSTS):
        ranks.append(subprocess.Popen(
            [*hub.machines[host].inside(), BINARY, "bench", *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "RANK": str(i), "WORLD_SIZE": str(len(HOSTS)), "MASTER_ADDR": hub.machines[HOSTS[0]].address,
                 "MASTER_PORT": port, "MUSTER_SOCKET_IFNAME": "cable", "MUSTER_SHM": "0", **environment}))
    # What two cables carry is to be the cables' own rate, also on a busy machine.
    jobs.put_before_all_others([rank.pid for rank in ranks])
    told = [rank.communicate(timeout=200) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{arguments}: {[rank.returncode for rank in ranks]}\n{told}")
    return told[0][0], "".join(errors for _, errors in told)


def bytes_sent(host, cable):
    text = subprocess.run([*hub.machines[host].inside(), "cat", "/proc/self/net/dev"],
                          capture_output=True, text=True, check=True).stdout
    return int(re.search(rf"cable{cable}:(.*)", text).group(1).split()[8])


def cables_of(line):
    """The cables that the line names, and their ends."""
    pairs = [re.fullmatch(r"10\.98\.(\d)\.(\d)=10\.98\.(\d)\.(\d)", word).groups() for word in line.split()[2:]]
    assert all(pair[0] == pair[2] for pair in pairs), line
    return {int(pair[0]) for pair in pairs}


def each_pair_of_hosts_has_its_line():
    table, _ = bench("--tune=links", "-e", "512K")
    lines = [line for line in table.splitlines() if line.startswith("link ")]
    assert [cables_of(line) for line in lines] == [{0, 1}, {2}, {4}], table
    heads = re.findall(r"^# hosts \d \(.*\) and \d \(.*\): \d+ Mbit/s, \d+ us there and back$", table, re.M)
    assert len(heads) == 3, table
    return table


def a_table_is_used(table):
    with tempfile.NamedTemporaryFile("w", suffix=".choice") as file:
        file.write(table)
        file.flush()
        before = bytes_sent("a", 3), bytes_sent("c", 3)
        _, errors = bench("sendrecv", "-b", "1M", "-e", "1M", "-n", "3", MUSTER_CHOICE_FILE=file.name,
                          MUSTER_DEBUG="INFO")
        assert bytes_sent("a", 3) - before[0] < 10000 and bytes_sent("c", 3) - before[1] < 10000
        assert "and 3 links" in errors and "passed over" not in errors, errors
    with tempfile.NamedTemporaryFile("w", suffix=".choice") as file:
        file.write(table.replace("10.98.2.3", "10.98.2.9").replace("10.98.0.2", "10.98.0.9"))
        file.flush()
        _, errors = bench("sendrecv", "-b", "1M", "-e", "1M", "-n", "1", MUSTER_CHOICE_FILE=file.name,
                          MUSTER_DEBUG="INFO")
        # Of the line with one cable nothing is left that would say whom it is about.
        passed_over = r"MUSTER_CHOICE_FILE for the link to rank [01] is passed over: 10\.98\.0\.9 is not among"
        assert re.search(passed_over, errors), errors


def one_host_is_an_error():
    done = subprocess.run([BINARY, "bench", "--tune=links", "--ranks", "2"], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode != 0 and "measures between hosts, but all ranks run on one" in done.stderr, done


jobs.isolate()
try:
    with machines.Hub() as hub:
        lay_cables()
        a_table_is_used(each_pair_of_hosts_has_its_line())
        one_host_is_an_error()
except jobs.Skip as lack:
    print(f"SKIP: {lack}")
    sys.exit(77)
