"""What is done in each job of chaos.py: its number says all about it."""

import random

import kills

BACKENDS = ("c10d", "static", "muster", "muster3")  # the last one: three endpoints
VICTIMS = ("rank", "guardian", "agent", "pause", "arrival", "mixed")
# muster lets survivors go on in jobs of one node alone.
CELLS = [(backend, goes_on, victim) for victim in VICTIMS for backend in BACKENDS for goes_on in (False, True)
         if not (goes_on and backend == "muster3")]
GPT = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--batch=8", "--virtual-ranks=8", "--evaluate-every=0", "--report-every=1",
       "--save-every=0", "--sample=0", "--dropout=0.1")
MNIST = ("--virtual-ranks=6", "--batch=12", "--epochs=1000", "--optimizer=adamw", "--no-batch-norm")
STEPS = {"gpt": 250, "mnist": 100}
DEEDS_MAX = 6
AMPLE = 100  # restarts


class Plan:
    """Of the job with this number."""

    def __init__(self, number, part=1):
        """part: of the steps that a job of a long series has."""
        self.number, self.chance = number, random.Random(number)
        self.backend, self.survivors, self.victim = CELLS[number % len(CELLS)]
        chance = self.chance
        self.shrinks = self.survivors and self.victim in ("rank", "guardian", "pause") and chance.random() < 0.4
        hosts = 3 if self.backend == "muster3" else chance.choice((2, 2, 3))
        nodes = str(hosts) if self.backend == "static" else "2:3" if hosts == 3 else chance.choice(("1:3", "2:3", "2"))
        if self.survivors and self.backend == "muster":  # which has this for one node alone
            hosts, nodes = 1, "1"
        per_host = 2 if hosts == 1 else chance.choice((1, 1, 2))
        self.layout = kills.Layout(self.victim, hosts, per_host, self.backend.rstrip("3"), nodes, 3 if self.backend == "muster3" else 1)
        self.least = int(nodes.partition(":")[0])
        self.most = int(nodes.rpartition(":")[2])
        self.restarts = 0 if self.shrinks else 1 if self.victim in ("rank", "guardian") and chance.random() < 0.15 else AMPLE
        self.deeds = chance.randint(1, max(1, int(DEEDS_MAX * part)))
        self.may_lose = chance.random() < 0.15  # the store's host, or more nodes than the job can lack
        if self.shrinks or chance.random() < 0.25:
            self.program, self.base, self.more = "mnist", MNIST, ("--shrink",) if self.shrinks else ()
        else:
            sharding = chance.choice(("ddp", "hybrid", "fsdp"))
            self.program, self.base, self.more = "gpt", GPT, (f"--sharding={sharding}", *(("--copies=5",) if sharding == "fsdp" else ()))
        self.base += (f"--steps={int(STEPS[self.program] * part)}",)

    def options(self):
        join = ",join_timeout=60,last_call_timeout=1" if self.backend != "static" else ",timeout=60"
        return ("--restart-backoff=0", f"--max-restarts={self.restarts}", f"--rdzv-conf=read_timeout=60{join}",
                *(("--survivors=continue",) if self.survivors else ()))

    def __str__(self):
        layout = self.layout
        return (f"{self.backend} --nnodes={layout.nodes}, {layout.hosts} x {layout.per_host}, {' '.join((self.program, *self.more))}"
                f"{', --survivors=continue' if self.survivors else ''}, --max-restarts={self.restarts}, {self.victim}")
