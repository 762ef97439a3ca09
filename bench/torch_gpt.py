"""Trains the GPT of examples/pytorch/gpt.py on a text, in one process, and prints the seconds of each step.

    torch_gpt.py TEXT STEPS BATCH CONTEXT LAYERS HEADS WIDTH [fused]

What counts as a step is what examples/gpt counts: drawing the batch, forward, backward, clipping, AdamW. fused: attention
and optimizer as PyTorch's fused ones; else step by step. The last line: peak memory in MiB.
"""

import os
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "pytorch"))
import torch  # noqa: E402

import gpt  # noqa: E402


def main():
    steps, batch, context, layers, heads, width = map(int, sys.argv[2:8])
    fused = sys.argv[8:] == ["fused"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(sys.argv[1], "rb") as file:
        content = file.read()
    alphabet = sorted(set(content))
    text = torch.tensor([alphabet.index(byte) for byte in content])
    model = gpt.Gpt(len(alphabet), context, layers, heads, width, fused=fused)
    optimizer = torch.optim.AdamW(model.parameter_groups(0.1), lr=5e-4, betas=(0.9, 0.95), fused=fused)
    for _ in range(steps):
        began = time.monotonic()
        places = torch.randint(len(text) - context, (batch,))
        tokens = torch.stack([text[place:place + context] for place in places])
        targets = torch.stack([text[place + 1:place + context + 1] for place in places])
        loss = model.loss(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        print(f"step {time.monotonic() - began:.6f} {value:.4f}", flush=True)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)


if __name__ == "__main__":
    main()
