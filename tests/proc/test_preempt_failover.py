#!/usr/bin/env python3
# Pre-emption with several endpoints: the node that serves is the one that is taken away, or dies while the job stops.
# waits: yes
import signal
import sys
import tempfile

from preempted import PREEMPTED, WITHOUT_END, job, jobs, stopped_after, toy

USR1 = ["--preempt-signal=SIGUSR1", "--preempt-grace=100"]
TOLD = "the job stops before its end"
WAITS = ["--no-python", "sh", "-c", "echo up; exec sleep 1000"]
ENDS_SLOWLY = ["--no-python", "sh", "-c", """
    trap '' TERM
    echo up
    until [ -e "$1" ]; do sleep 0.05; done
    exit 1""", "worker"]
SAVES_SLOWLY = ["--no-python", "sh", "-c", """
    trap '' TERM
    echo up
    until [ -e "$MUSTER_STOP_PATH" ]; do sleep 0.05; done
    echo saving
    until [ -e "$1" ]; do sleep 0.05; done""", "worker"]


def wait_all(agents, pattern):
    for agent in agents:
        agent.wait_for(pattern)


def end_all(agents, code=PREEMPTED):
    for agent in agents:
        agent.end(code)


def the_serving_node_is_taken_away():
    """All stop after one epoch, and go on from there when started again."""
    with tempfile.TemporaryDirectory() as snapshots:
        with job("muster", 3, toy(WITHOUT_END, snapshots), USR1, 1, endpoint_count=3) as agents:
            wait_all(agents, r"\] epoch 3:")
            agents[0].process.send_signal(signal.SIGUSR1)
            end_all(agents)
            for agent in agents:
                assert TOLD in agent.text and "charged" not in agent.text, agent.text
            epoch = stopped_after(agents, 1)
        with job("muster", 3, toy(str(epoch + 2), snapshots), USR1, 1, endpoint_count=3) as agents:
            end_all(agents, 0)
            assert f"going on from the snapshot of epoch {epoch} " in "".join(agent.text for agent in agents)


def it_dies_when_all_have_heard():
    """Those who save go on, and wait for each other at the next endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        saved = f"{folder}/saved"
        with job("muster", 3, [*SAVES_SLOWLY, saved], USR1, 1, endpoint_count=3) as agents:
            wait_all(agents, "up")
            agents[0].process.send_signal(signal.SIGUSR1)
            wait_all(agents, "saving")
            agents[0].process.kill()
            agents[1].process.send_signal(signal.SIGUSR1)  # its own notice, meanwhile
            with open(saved, "wb"):
                pass
            end_all(agents[1:])
            for agent in agents[1:]:
                assert "did not exit with 0" not in agent.text and "Sending process" not in agent.text, agent.text


def it_dies_before_it_has_told_anybody(command, victim):
    """It is stopped, gets another node's notice, and dies: that node tells the next coordinator."""
    with tempfile.TemporaryDirectory() as snapshots:
        command = command or toy(WITHOUT_END, snapshots)
        with job("muster", 3, command, ["--preempt-signal=SIGUSR1", "--preempt-grace=4"], 1, endpoint_count=3) as agents:
            wait_all(agents, r"\] epoch 3:" if command is not WAITS else "up")
            jobs.stop(agents[0].process.pid)
            agents[victim].process.send_signal(signal.SIGUSR1)
            agents[victim].wait_for("asking this node's workers to stop")
            agents[0].process.kill()
            end_all(agents[1:])
            other = agents[3 - victim]
            assert "says that the job stops" in other.text, other.text


def its_notice_comes_while_the_others_look_for_the_next():
    """The world has ended with its host, and the second one is taken away before there is another."""
    with tempfile.TemporaryDirectory() as folder:
        ending = f"{folder}/ending"
        with job("muster", 3, [*ENDS_SLOWLY, ending], [*USR1, "--shutdown-timeout=100"], 1, endpoint_count=3) as agents:
            wait_all(agents, "up")
            agents[0].process.kill()
            wait_all(agents[1:], "forming the world again")
            agents[1].process.send_signal(signal.SIGUSR1)
            agents[1].wait_for("this node will be taken away")
            with open(ending, "wb"):
                pass
            end_all(agents[1:])


def a_spare_is_let_go():
    """It was nobody's spare any more when it came to the next endpoint: the job has stopped without it, and has not succeeded."""
    spare = ["--spares=1", "--nnodes=3"]
    with job("muster", 4, WAITS, ["--preempt-signal=SIGUSR1", "--preempt-grace=2", *spare], 1, endpoint_count=3) as agents:
        wait_all(agents, "up|waiting as a spare")
        waiting = [agent for agent in agents[1:] if "waiting as a spare" in agent.text]
        assert len(waiting) == 1, [agent.text for agent in agents]
        others = [agent for agent in agents[1:] if agent is not waiting[0]]
        jobs.stop(agents[0].process.pid)
        others[0].process.send_signal(signal.SIGUSR1)
        others[0].wait_for("asking this node's workers to stop")
        agents[0].process.kill()
        end_all(others)
        waiting[0].end(1)


CASES = (the_serving_node_is_taken_away, it_dies_when_all_have_heard,
         lambda: it_dies_before_it_has_told_anybody(None, 1), lambda: it_dies_before_it_has_told_anybody(None, 2),
         lambda: it_dies_before_it_has_told_anybody(WAITS, 1), lambda: it_dies_before_it_has_told_anybody(WAITS, 2),
         its_notice_comes_while_the_others_look_for_the_next, a_spare_is_let_go)
for number, case in enumerate(CASES):
    print(f"case {number} {case.__name__}", flush=True)
    case()
sys.exit(0)
