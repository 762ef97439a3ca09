#!/usr/bin/env python3
"""Prints learning_rate_values.h: the learning rates of PyTorch's schedulers in the first steps.

Usage: learning_rate_values.py | clang-format >learning_rate_values.h (with PyTorch 2.13).
"""
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR, StepLR

STEPS = 30
# Name in learning_rate_test.c, learning rate, steps of warm-up, its start, the scheduler behind it.
CASES = [
    ("constant", 0.1, 0, 1.0, lambda o: ConstantLR(o, factor=1.0, total_iters=1)),
    ("constant_warm", 0.1, 7, 1 / 3, lambda o: ConstantLR(o, factor=1.0, total_iters=1)),
    ("step", 0.1, 0, 1.0, lambda o: StepLR(o, step_size=7, gamma=0.3)),
    ("step_warm", 0.02, 4, 0.1, lambda o: StepLR(o, step_size=5, gamma=0.5)),
    ("cosine", 0.1, 0, 1.0, lambda o: CosineAnnealingLR(o, T_max=STEPS, eta_min=1e-4)),
    ("cosine_warm", 3e-4, 6, 0.01, lambda o: CosineAnnealingLR(o, T_max=STEPS - 6, eta_min=3e-5)),
]


def main():
    print("/* Recorded from PyTorch", torch.__version__.split("+")[0], "by learning_rate_values.py. */")
    print("#ifndef TRAIN_LEARNING_RATE_VALUES_H")
    print("#define TRAIN_LEARNING_RATE_VALUES_H")
    print("/* A case, and the rate of each step. */")
    print(f"struct recorded_rates {{ const char *name; double rates[{STEPS}]; }};")
    print("static const struct recorded_rates recorded_rates[] = {")
    for name, rate, warmup, start, make in CASES:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        if warmup:
            warm = LinearLR(optimizer, start_factor=start, total_iters=warmup)
            schedule = SequentialLR(optimizer, [warm, make(optimizer)], milestones=[warmup])
        else:
            schedule = make(optimizer)
        rates = []
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        print(f'    {{"{name}", {{{", ".join(repr(float(rate)) for rate in rates)}}}}},')
    print("};")
    print("#endif")


main()
