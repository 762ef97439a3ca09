"""python -m muster ARGUMENTS: the program `muster` takes the place of this process."""

import os
import sys

from . import MusterError, program

try:
    path = program()
except MusterError as why:
    sys.exit(f"muster: {why}")
os.execv(path, ["muster", *sys.argv[1:]])
