"""The text of examples/gpt as numbers, and text from a model: the same tokens, batches and choices as in C (text.c, random.h, sample.c).

Each random number is a function of what it is for. So it does not depend on the process that draws it, and a training that is resumed
draws the same ones.
"""

import sys

import torch

WEIGHTS, BATCH, DROPOUT, SAMPLE = range(1, 5)  # what a number is for; mixed with the seed first
TRAIN, TEST = range(2)  # parts of a text
BITS = (1 << 64) - 1


def mix(key, *words):
    """64 bits that follow from all arguments (the finalizer of SplitMix64)."""
    for word in words:
        x = (key + (word + 1) * 0x9E3779B97F4A7C15) & BITS
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS
        key = x ^ (x >> 31)
    return key


class Text:
    """Each distinct byte is a token: its place in the alphabet. The first nine tenths are for training, the rest tests."""

    def __init__(self, path, length):
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            sys.exit(f"gpt_train: cannot open {path}: {error.strerror}")
        self.alphabet = sorted(set(content))
        token_of = {byte: token for token, byte in enumerate(self.alphabet)}
        self.tokens = torch.tensor([token_of[byte] for byte in content])
        self.length = length
        train_count = len(content) - len(content) // 10
        self.parts = {TRAIN: (0, train_count), TEST: (train_count, len(content))}
        if len(content) - train_count <= length:
            sys.exit(f"gpt_train: {path} is too short: a tenth of it is no sequence of {length} tokens and the one that follows")

    def batch(self, part, seed, step, first, count):
        """Sequences number `first` and those after it of the step, and what follows each token: (count, length) both."""
        begin, end = self.parts[part]
        key = mix(seed, BATCH, part, step)
        places = [begin + mix(key, first + i) % (end - begin - self.length) for i in range(count)]
        return tuple(torch.stack([self.tokens[at + later:at + later + self.length] for at in places]) for later in range(2))


def choose(logits, temperature, drawn):
    """A token, with probability proportional to e^(logit / temperature); `drawn` is in (0, 1)."""
    if temperature == 0:
        return int(logits.argmax())
    sums = ((logits - logits.max()).double() / temperature).exp().cumsum(0)
    return min(int((sums < drawn * sums[-1]).sum()), len(logits) - 1)


@torch.no_grad()
def sample(model, context, alphabet, prompt, count, temperature, seed):
    """Yields the prompt and `count` tokens that follow it, each as a byte."""
    token_of = {byte: token for token, byte in enumerate(alphabet)}
    strange = [byte for byte in prompt if byte not in token_of]
    if strange:
        sys.exit(f"gpt_train: the text that was trained on has no character number {strange[0]}, as in the prompt")
    yield from prompt
    tokens = [token_of[byte] for byte in prompt] or [0]  # a line feed, in most texts
    for i in range(count):
        logits = model(torch.tensor([tokens[-context:]]))[0, -1]
        drawn = ((mix(seed, SAMPLE, i) >> 11) + 0.5) * 2.0**-53
        tokens.append(choose(logits, temperature, drawn))
        yield alphabet[tokens[-1]]
