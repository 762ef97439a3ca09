"""PyTorch's own TCPStore server, alone, in the foreground: prints its port, serves until its stdin ends.

torch_store.py [classic]: with the older server that use_libuv=False chooses, in place of the default one.
"""

import sys

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv="classic" not in sys.argv[1:])
print(store.port, flush=True)
sys.stdin.read()
