"""The version, as include/muster/version.h of the checkout states it. In a package this file has the number itself (setup.py writes it)."""

import os
import re


def _read() -> str:
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(top, "include", "muster", "version.h"), encoding="utf-8") as header:
        found = re.search(r'MUSTER_VERSION_TEXT "([^"]+)"', header.read())
    assert found is not None
    return found.group(1)


__version__ = _read()
