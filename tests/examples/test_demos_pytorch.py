#!/usr/bin/env python3
# The demos with PyTorch: a killed worker, and a node that joins and leaves. What they show without PyTorch is tested, too; then this is a skip.
# computes: yes
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import demo_support  # noqa: E402

BACKEND = demo_support.backend_folder()
if BACKEND:  # the workers find it where their template looks
    os.environ["PYTHONPATH"] = BACKEND
import trainers  # noqa: E402


def short(name, images):
    """With fewer images, and workers that are forks of one process which has imported PyTorch."""
    if demo_support.missing_packages():
        return trainers.demo(name)
    import forks
    environment = {variable: forks.ENVIRONMENT[variable] for variable in ("PYTHON_EXEC", "MUSTER_TEST_TEMPLATE")}
    with tempfile.TemporaryDirectory() as folder:
        return trainers.demo(name, trainers.small_data(folder, images, tests=300), "--batch=32", environment=environment)


def a_worker_is_killed():
    text = short("demo-pytorch", 1000)
    assert f"added up by {'Muster' if BACKEND else 'gloo'}" in text, text


def a_node_joins_and_leaves():
    short("demo-elastic", 640)


def the_whole_demo_of_a_kill():
    trainers.demo("demo-pytorch", is_short=False)


def the_whole_demo_of_nodes():
    trainers.demo("demo-elastic", is_short=False)


trainers.main([a_worker_is_killed, the_whole_demo_of_a_kill, a_node_joins_and_leaves, the_whole_demo_of_nodes])
