#!/usr/bin/env python3
# Logits, loss and every gradient of examples/gpt against the same model in PyTorch.
# needs: torch numpy safetensors
# computes: yes
import tempfile

import trainers
import gpt_results

import torch


def compare(seed, vocabulary, context, layers, heads, width, batch, tied=False, options=()):
    model = gpt_results.make_model(seed, vocabulary, context, layers, heads, width, tied)
    tokens, targets = torch.randint(vocabulary, (2, batch, context))
    with tempfile.TemporaryDirectory() as folder:
        found = gpt_results.in_c(folder, dict(model.named_parameters(), tokens=tokens, targets=targets),
                                 f"--vocab-size={vocabulary}", f"--block-size={context}", f"--n-layer={layers}",
                                 f"--n-head={heads}", f"--n-embd={width}", f"--batch={batch}",
                                 *(["--tied"] if tied else []), *options)
    gpt_results.compare(found, gpt_results.in_pytorch(model, tokens, targets))


def small():
    compare(1, vocabulary=11, context=8, layers=2, heads=2, width=16, batch=3)


def more_rows_than_attention_takes_at_once():
    compare(2, vocabulary=84, context=150, layers=2, heads=3, width=48, batch=2)


def odd_sizes():
    compare(3, vocabulary=7, context=65, layers=1, heads=1, width=5, batch=1)


def tied_head():
    compare(4, vocabulary=23, context=16, layers=2, heads=2, width=32, batch=2, tied=True)


def checkpointed():
    compare(5, vocabulary=23, context=70, layers=3, heads=2, width=32, batch=2, options=["--checkpoint"])


trainers.main([small, more_rows_than_attention_takes_at_once, odd_sizes, tied_head, checkpointed])
