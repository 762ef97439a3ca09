#!/usr/bin/env python3
# The sampler's lengths and places, padding and dropping included, are those of PyTorch's DistributedSampler.
# needs: torch
"""Usage: test_sampler.py; MUSTER_BINARY names the program, sampler_peer lies in tests/ beside it."""
import os
import subprocess

from torch.utils.data import DistributedSampler


def main():
    cases = [(samples, rank, ranks, drop) for samples in [*range(1, 40), 97, 1000] for ranks in [1, 2, 3, 4, 7, 8, 16, 33]
             for rank in range(ranks) for drop in (0, 1)]
    program = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "sampler_peer")
    text = "".join(" ".join(map(str, case)) + "\n" for case in cases)
    done = subprocess.run([program], input=text, stdout=subprocess.PIPE, check=True, text=True)
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(cases), (len(answers), len(cases))
    for case, answer in zip(cases, answers):
        samples, rank, ranks, drop = case
        wanted = list(DistributedSampler(range(samples), ranks, rank, shuffle=False, drop_last=bool(drop)))
        assert [int(word) for word in answer.split()] == wanted, (case, answer, wanted)
    print(f"{len(cases)} shares of a data set are the same")


main()
