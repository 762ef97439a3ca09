#!/usr/bin/env python3
# Jobs to which everything happens that may happen: a few short ones. make soak-chaos plays many.
# computes: yes
"""MUSTER_TEST_SEED is the number of the first job."""
import os
import re
import tempfile

import chaos
import chaos_plan
import kills
import trainers

JOBS, STRIDE = 3, 18  # other backends, ends and victims
PART = 0.25  # of the steps that a long series makes
# Once, when the other rank is there, and before it has met it.
DIES = """: >>$1/$RANK
if [ $RANK = $0 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
  until [ -e $1/$((1 - RANK)) ]; do sleep 0.05; done
  exit 9
fi
shift
exec "$@"
"""


def some_jobs_of_the_series():
    seed = int(os.environ.get("MUSTER_TEST_SEED", "0"))
    print(f"   MUSTER_TEST_SEED={seed}")
    with tempfile.TemporaryDirectory() as folder:
        _, lost = chaos.series((chaos_plan.Plan(seed + i * STRIDE, PART) for i in range(JOBS)), folder)
        texts = [open(os.path.join(folder, name), encoding="utf-8").read() for name in os.listdir(folder)]
    assert not any(lost.values()), "\n".join(texts)


def nobody_waits_for_a_rank_that_dies_before_it_has_met_the_others():
    """The survivors have no group that could shrink. They fail, and all begin again together."""
    for hosts, per_host, rank in ((2, 1, 0), (2, 1, 1), (1, 2, 1)):
        with tempfile.TemporaryDirectory() as folder:
            text = die_early(kills.Layout(hosts=hosts, per_host=per_host), rank, folder)
            trainers.snapshot(f"{folder}/snapshot")
        assert "not all ranks have come, and one never will: " in text, text


def who_waits_hears_of_the_first_loss():
    """Without restarts. Those that fail because of it are lost as well, a moment later."""
    with tempfile.TemporaryDirectory() as folder, begin_early_death(kills.Layout(hosts=3, per_host=1), 1, folder, 0) as team:
        while team.left > 0:
            _, _, line = team.next()
            team.text += line or ""
    lost = set(re.findall(r"^gpt: .* one never will: rank (\d)", team.text, re.MULTILINE))
    assert lost == {"1"}, team.text


def die_early(layout, rank, folder):
    with begin_early_death(layout, rank, folder, 1) as team:
        for _ in team:
            pass
        assert not any(team.codes()), team.text
    return team.text


def begin_early_death(layout, rank, folder, restarts):
    command = ["sh", "-c", DIES, str(rank), folder, trainers.program("gpt"), *kills.GPT, "--steps=5", f"--snapshot={folder}/snapshot"]
    options = ("--survivors=continue", "--restart-backoff=0", f"--max-restarts={restarts}", "--rdzv-conf=last_call_timeout=1")
    return kills.Team(layout, options, command)


trainers.main([nobody_waits_for_a_rank_that_dies_before_it_has_met_the_others, who_waits_hears_of_the_first_loss, some_jobs_of_the_series])
