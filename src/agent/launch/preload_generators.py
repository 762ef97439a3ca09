"""Random numbers in forks of the preload server: who has drawn a seed draws another one in each fork, and who was given a seed keeps it.

Part of the server's program (preload_process.py).
"""


class Generators:
    """Random generators that modules make or seed when they are imported: Python's, numpy's and PyTorch's."""

    def __init__(self):
        self.python = {}  # number: weak reference, of those that have drawn their seed
        self.random_is_given = False  # random.seed() or random.setstate() was called with something
        self.random_state = None
        self.drawn = set()  # what numpy's have drawn
        self.numpy_is_seen = False
        self.numpy = []  # those that have drawn, when all is imported
        self.torch_seed = None  # of the default generator, when PyTorch has just been imported

    def watch(self, after, undo):
        """`after`: by module, what is done with it when it has been run."""
        after["random"] = lambda module: self.watch_random(module, undo)
        after["numpy.random.bit_generator"] = lambda module: self.watch_numpy(module, undo)
        after["torch"] = self.look_at_torch

    # ---- while modules are imported ----

    def watch_random(self, random, undo):
        import weakref

        seed, set_state, seed_all, set_all = random.Random.seed, random.Random.setstate, random.seed, random.setstate

        def seed_one(generator, a=None, *more, **named):
            seed(generator, a, *more, **named)
            self.python.pop(id(generator), None)
            if a is None:
                self.python[id(generator)] = weakref.ref(generator)

        def set_one(generator, state):
            set_state(generator, state)
            self.python.pop(id(generator), None)

        def seed_module(a=None, *more, **named):
            seed_all(a, *more, **named)
            self.random_is_given = a is not None

        def set_module(state):
            set_all(state)
            self.random_is_given = True

        random.Random.seed, random.Random.setstate, random.seed, random.setstate = seed_one, set_one, seed_module, set_module

        def stop():
            random.Random.seed, random.Random.setstate, random.seed, random.setstate = seed, set_state, seed_all, set_all

        undo.append(stop)

    def watch_numpy(self, module, undo):
        """All of numpy's seeds that nobody gives come from one function of its."""
        usual = getattr(module, "randbits", None)
        if usual is None:
            return

        def randbits(count):
            number = usual(count)
            self.drawn.add(number)
            return number

        module.randbits = randbits
        self.numpy_is_seen = True
        undo.append(lambda: setattr(module, "randbits", usual))

    def look_at_torch(self, torch):
        self.torch_seed = torch.default_generator.initial_seed()

    # ---- when all is imported ----

    def find(self):
        """Before gc.freeze(), which hides them."""
        import gc
        import sys

        random = sys.modules.get("random")
        if random is not None and self.random_is_given:
            self.random_state = random.getstate()
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and self.numpy_is_seen:
            kinds = (numpy.BitGenerator, numpy.SeedSequence, numpy.RandomState)
            self.numpy = [found for found in gc.get_objects() if issubclass(type(found), kinds) and self.has_drawn(found)]

    def has_drawn(self, found):
        """Of numpy's: has nobody given it a seed?"""
        source = getattr(found, "_bit_generator", found)
        sequence = getattr(source, "seed_seq", None) or getattr(source, "_seed_seq", source)
        entropy = getattr(sequence, "entropy", None)
        if not isinstance(entropy, int) or entropy not in self.drawn:
            return False
        key = source.state["state"]["key"] if type(source).__name__ == "Philox" else None  # Philox(key=...) draws, but does not use it
        return key is None or list(key) == list(sequence.generate_state(2, "uint64"))

    # ---- in a fork ----

    def draw_anew(self):
        import sys

        random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
        if self.random_state is not None:
            random.setstate(self.random_state)  # Python has seeded it anew
        for generator in [generator() for generator in self.python.values()]:
            if generator is not None:
                generator.seed()
        for generator in self.numpy:
            getattr(generator, "seed", generator.__init__)()  # RandomState's forgets what it has in store
        if numpy is not None and not self.numpy_is_seen:
            numpy.seed()
        torch = getattr(sys.modules.get("torch"), "default_generator", None)
        if torch is not None and self.torch_seed in (None, torch.initial_seed()):
            torch.seed()
        self.numpy.clear()
