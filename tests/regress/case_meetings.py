"""All ranks meet again after a failure: a sample of the corners of meetings.py's matrix, which `make soak-meet` runs whole."""

import etcd
import jobs
import meetings


def meet_again(backend, nodes, harms, worker="libmuster", agents=("muster",)):
    with jobs.Scratch() as scratch:
        job = meetings.Job(scratch, backend, nodes, worker, agents)
        met = job.begin()
        for harm in harms:
            met, took_s = job.harm(harm, met)
            print(f"{backend}, {nodes} nodes, {worker}, {'+'.join(agents)}: {harm}, {took_s * 1000:.0f} ms", flush=True)
        job.finish(met)
        scratch.expect_nobody()


def case_ranks_meet_again():
    """Ranks of libmuster meet again after a failure on any node, however often each node has restarted."""
    jobs.isolate()
    meet_again("c10d", 3, ("other", "first", "meeting", "twice", "agent", "guardian"))
    meet_again("static", 2, ("other", "meeting", "agent", "first", "guardian"))
    meet_again("static", 3, ("meeting",))
    meet_again("muster", 2, ("other", "agent", "guardian"))


def case_ranks_meet_again_etcd():
    """The same where an etcd connects the nodes; with the older etcd backend rank 0 serves the store."""
    jobs.isolate()
    etcd.binary()
    meet_again("etcd-v2", 2, ("other", "first"))
    meet_again("etcd", 2, ("other", "first"))
    meet_again("etcd-v3", 3, ("meeting",))


def case_ranks_meet_again_gloo():
    """PyTorch's workers meet again after a failure on the other node, and under static in the place of a killed agent."""
    jobs.need_torch()
    jobs.isolate()
    meet_again("c10d", 2, ("other",), "gloo")
    meet_again("static", 2, ("other", "meeting", "agent"), "gloo")


def case_ranks_meet_again_mixed():
    """Ranks of libmuster meet again where torchrun's agent serves the store, which keeps the keys of the dead."""
    jobs.need_torch()
    jobs.isolate()
    meet_again("c10d", 2, ("other", "first"), agents=("torchrun", "muster"))
