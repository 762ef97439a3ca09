#!/usr/bin/env python3
# Nodes that are taken away with notice: the job stops at one point, saves, ends with 75, and goes on when started again.
# waits: yes
import re
import signal
import sys
import tempfile

from preempted import PREEMPTED, WITHOUT_END, job, stopped_after, toy


def all_nodes_stop_after_the_same_epoch():
    usr1 = ["--preempt-signal=SIGUSR1", "--preempt-grace=100"]
    with tempfile.TemporaryDirectory() as snapshots:
        with job("muster", 2, toy(WITHOUT_END, snapshots), usr1) as agents:
            for agent in agents:
                agent.wait_for(r"\] epoch 3:")
            agents[1].process.send_signal(signal.SIGUSR1)
            for agent in agents:
                agent.end(PREEMPTED)
                assert re.search("the job stops before its end: node .* is taken away: SIGUSR1", agent.text), agent.text
                assert "charged" not in agent.text, agent.text
            epoch = stopped_after(agents)
        with job("muster", 2, toy(str(epoch + 2), snapshots), usr1) as agents:
            for agent in agents:
                agent.end(0)
            text = "".join(agent.text for agent in agents)
            assert f"going on from the snapshot of epoch {epoch} " in text, text
            assert len(re.findall(r"\[rank 0\] epoch \d+:", text)) == 2, text
            assert "restart 0" in text and "restart 1" not in text, text


def a_node_that_is_told_by_none_of_the_agents_hears_it_from_the_workers():
    """With c10d only the workers agree; the node that is not taken away has ended well, as far as it knows."""
    with tempfile.TemporaryDirectory() as snapshots:
        with job("c10d", 2, toy(WITHOUT_END, snapshots), ["--preempt-signal=SIGUSR1", "--preempt-grace=100"]) as agents:
            for agent in agents:
                agent.wait_for(r"\] epoch 3:")
            agents[1].process.send_signal(signal.SIGUSR1)
            agents[1].end(PREEMPTED)
            agents[0].end(0)
            epoch = int(re.search(r"stopping after epoch (\d+)", agents[0].text)[1])
            assert f"stopping after epoch {epoch}\n" in agents[1].text, agents[1].text
            assert "the other nodes cannot be told" in agents[1].text, agents[1].text
            assert f"epoch {epoch}: snapshot saved" in agents[0].text + agents[1].text


def one_node_alone_and_sigterm():
    with tempfile.TemporaryDirectory() as snapshots:
        with job("standalone", 1, toy(WITHOUT_END, snapshots), ["--preempt-signal=SIGTERM"]) as (agent,):
            agent.wait_for(r"\] epoch 3:")
            agent.process.send_signal(signal.SIGTERM)
            agent.process.send_signal(signal.SIGTERM)  # repeated: the same notice
            agent.end(PREEMPTED)
            stopped_after([agent])
            assert "death signal" not in agent.text, agent.text


KNOWS_NOTHING = ["--no-python", "sh", "-c", "echo up; exec sleep 1000"]
SAVES_ON_SIGTERM = ["--no-python", "sh", "-c", "trap 'echo saved; exit 0' TERM; echo up; sleep 1000 & wait"]
OBEYS_NOBODY = ["--no-python", "sh", "-c", "trap '' TERM; echo up; sleep 1000 & wait; sleep 1000"]


def workers_that_do_not_ask_are_told_by_signals():
    for command, expected in ((KNOWS_NOTHING, "2 of 2 workers of this node did not exit with 0"),
                              (SAVES_ON_SIGTERM, "saved"),
                              (OBEYS_NOBODY, "2 of 2 workers of this node did not exit with 0")):
        with job("muster", 2, command, ["--preempt-signal=SIGUSR1", "--preempt-grace=2"]) as agents:
            for agent in agents:
                agent.wait_for("up(.|\n)*up")
            agents[0].process.send_signal(signal.SIGUSR1)
            for agent in agents:
                agent.end(PREEMPTED)
                assert expected in agent.text, agent.text
                assert "Sending process" in agent.text, agent.text


def sigterm_comes_at_once_where_wanted():
    """--preempt-term=now: not after half of 2000 s; the exit code says pre-empted all the same."""
    options = ["--preempt-signal=SIGUSR1", "--preempt-grace=2000", "--preempt-term=now"]
    for command in (SAVES_ON_SIGTERM, KNOWS_NOTHING):
        with job("muster", 2, command, options) as agents:
            for agent in agents:
                agent.wait_for("up(.|\n)*up")
            agents[0].process.send_signal(signal.SIGUSR1)
            for agent in agents:
                agent.end(PREEMPTED)
                assert "SIGTERM follows in 0 ms" in agent.text, agent.text


def a_node_that_waits_for_others_goes_at_once():
    with job("muster", 1, ["--no-python", "true"], ["--preempt-signal=SIGUSR1", "--nnodes=2"]) as (agent,):
        agent.wait_for("still waiting")
        agent.process.send_signal(signal.SIGUSR1)
        agent.end(PREEMPTED)


for case in (all_nodes_stop_after_the_same_epoch, a_node_that_is_told_by_none_of_the_agents_hears_it_from_the_workers,
             one_node_alone_and_sigterm, workers_that_do_not_ask_are_told_by_signals,
             sigterm_comes_at_once_where_wanted,
             a_node_that_waits_for_others_goes_at_once):
    case()
    print(f"ok {case.__name__}", flush=True)
sys.exit(0)
