#!/usr/bin/env python3
# Every atomic word of comm and train has its place in docs/memory-model.md: who adds one says there why it is right.
"""Usage: test_words.py"""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# "static _Atomic uint32_t a, b[3];", "const atomic_bool *flag;", "static const struct table *_Atomic table;"
DECLARATION = re.compile(r"^[ \t]*(?:[\w ()*]*?[ *])?(?:_Atomic|atomic_bool)\b([^;(){}]*);", re.MULTILINE)
TYPES = {"int", "unsigned", "bool", "uint8_t", "uint32_t", "uint64_t", "uintptr_t", "int32_t", "int64_t", "const"}


def words_of(text):
    """The names that a file declares as atomic."""
    words = set()
    for match in DECLARATION.finditer(COMMENT.sub(" ", text)):
        for part in re.sub(r"\[[^\]]*\]|=[^,;]*", "", match.group(1)).split(","):
            names = [name for name in re.findall(r"\w+", part) if name not in TYPES]
            words.update(names[-1:])
    return words


def main():
    """Names what is missing."""
    with open(os.path.join(ROOT, "docs/memory-model.md"), encoding="utf-8") as page:
        told = {word for quote in re.findall(r"`([^`]*)`", page.read()) for word in re.findall(r"\w+", quote)}
    files = [path for module in ("comm", "train") for path in
             glob.glob(os.path.join(ROOT, "src", module, "**", "*.[ch]"), recursive=True)
             if not re.search(r"_test(_support)?\.[ch]$", path)]
    found, missing = set(), []
    for path in sorted(files):
        with open(path, encoding="utf-8") as file:
            words = words_of(file.read())
        found |= words
        missing += [f"{os.path.relpath(path, ROOT)}: {word}" for word in sorted(words - told)]
    assert {"stamp", "sleepers", "active", "gives_up", "generation"} <= found, found
    for line in missing:
        print(f"{line} is atomic, and docs/memory-model.md does not say why it is right")
    print(f"{len(found)} words, {len(missing)} missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
