"""What the benchmarks' scripts have in common: what they say while they work, and their tables in the pages of docs/."""

import sys
import time


def progress(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def marks(name):
    """Of a page, around the table of that name."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def table_of(path, name):
    begin, end = marks(name)
    with open(path, encoding="utf-8") as page:
        return page.read().partition(begin)[2].partition(end)[0]


def update(path, name, text):
    """Replaces what stands between the two marks of a page."""
    begin, end = marks(name)
    with open(path, encoding="utf-8") as page:
        before, _, rest = page.read().partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        sys.exit(f"{path} has no place for the table: {begin} and, behind it, {end}")
    with open(path, "w", encoding="utf-8") as page:
        page.write(f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}")
