"""What imports do to the preload server: who is to blame for it, and what forks cannot have or must not share.

Part of the server's program (preload_process.py).
"""


# Modules that go through all variables when they are imported, for those whose names begin so. PyTorch imports them where they are installed.
LOOKS_FOR = {"tqdm.utils": "TQDM_", "fsspec.config": "FSSPEC", "networkx.utils.backends": "NETWORKX_"}


class Imports:
    """What modules do to this process while they are imported. Each thing is blamed on the name of --preload that is being imported,
    and on the module under way."""

    def __init__(self, world, tell):
        """`world`: variables that only a worker has. `tell` is called with the module under way."""
        import ctypes  # noqa: F401  whoever looks in the middle of its import would find half of it
        import os

        self.world, self.tell = world, tell
        self.item, self.under_way = None, ["the interpreter"]  # modules, each imported by the one before it
        self.threads, self.excess = thread_ids(), 0
        self.files, self.file_count = open_files(), file_count()
        self.folder = self.first_folder = folder_now()
        self.kept_files = []
        self.blamed_threads = {}  # thread: blame, which is (item, module)
        self.blamed_files = {}  # descriptor: (blame, what)
        self.blamed_folders = []  # (blame, folder) for each change of the working folder
        self.blamed_temporary = {}  # path that tempfile has made: blame
        self.blamed_memory = {}  # address: (blame, path)
        self.blamed_children = {}  # process: blame
        self.blamed_timers = {}  # timer: blame
        self.blamed_once = {}  # why: blame
        self.memory, self.timers, self.children = shared_memory(), timers(), children()
        self.cpus, self.had_locked = os.sched_getaffinity(0), locked_memory()
        self.variables = {}  # name: blame of the module that has read it
        self.before = {}  # the variables when the imports begin
        self.changes = {}  # name: what an import has given it, or None
        self.after = {"tempfile": self.watch_tempfile}  # module: what is to be done when it has been run
        self.undo = []
        self.generators = Generators()
        self.generators.watch(self.after, self.undo)

    # ---- while they are imported ----

    def blame(self):
        return self.item, self.under_way[-1]

    def watched(self, usual):
        """A loader's method that creates or runs a module."""

        def method(loader, what):
            name = getattr(what, "name", None) or what.__name__  # of a specification, or of a module
            self.look()
            self.under_way.append(name)
            self.tell(name)
            try:
                result = usual(loader, what)
                if result is None and name in self.after:
                    self.after.pop(name)(what)
                return result
            finally:
                self.look()
                self.under_way.pop()

        return method

    def look(self, is_item_done=False):
        threads, count, folder = thread_ids(), file_count(), folder_now()
        if threads != self.threads:
            excess = len(threads) - 1 - pool_threads()
            if excess > self.excess:
                self.blamed_threads.update(dict.fromkeys(threads - self.threads, self.blame()))
            self.threads, self.excess = threads, excess
        if count != self.file_count or is_item_done:  # one may have taken the place of another
            files = open_files()
            for number, what in files.items():
                if self.files.get(number) != what:
                    self.blamed_files[number] = (self.blame(), what)
            self.files, self.file_count = files, count
        if folder != self.folder:
            self.blamed_folders.append((self.blame(), folder))
            self.folder = folder

    def note(self, is_so, why):
        if is_so:
            self.blamed_once.setdefault(why, self.blame())

    def look_closely(self):
        """After each item: what takes longer to see."""
        import os

        self.look(is_item_done=True)
        memory, running, pids = shared_memory(), timers(), children()
        for address in memory.keys() - self.memory.keys():
            self.blamed_memory[address] = (self.blame(), memory[address])
        self.blamed_timers.update(dict.fromkeys(set(running) - set(self.timers), self.blame()))
        self.blamed_children.update(dict.fromkeys(set(pids) - set(self.children), self.blame()))
        self.memory, self.timers, self.children = memory, running, pids
        self.note(cuda_is_initialized(), "initialises CUDA, which forks cannot use")
        self.note(locked_memory() and not self.had_locked, "locks memory, which forks do not keep locked")
        self.note(os.sched_getaffinity(0) != self.cpus, "changes on which processors it runs, which each worker is told")

    def read(self, key):
        import sys

        name = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        module = frame.f_globals.get("__name__") or "?"
        if name.startswith(LOOKS_FOR.get(module, "")):
            self.variables.setdefault(name, (self.item, module))

    def watch_tempfile(self, tempfile):
        """It tells sys.audit what it makes. An audit hook could not be taken away again, so it gets another sys."""
        usual = getattr(tempfile, "_sys", None)
        if usual is None:
            return
        imports = self

        class Sys:
            def __getattr__(self, name):
                return getattr(usual, name)

            def audit(self, event, *what):
                if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
                    imports.blamed_temporary[what[0]] = imports.blame()
                usual.audit(event, *what)

        tempfile._sys = Sys()
        self.undo.append(lambda: setattr(tempfile, "_sys", usual))

    def watch(self):
        """Loaders and variables; what is undone at the end."""
        import importlib.machinery
        import os
        import sys

        def patch(place, name, method):
            usual, is_own = getattr(place, name), name in vars(place)
            setattr(place, name, method(usual))
            self.undo.append((lambda: setattr(place, name, usual)) if is_own else (lambda: delattr(place, name)))

        def recording(usual):
            def method(environment, key):
                self.read(key)
                return usual(environment, key)

            return method

        machinery = importlib.machinery
        for loader in (machinery.SourceFileLoader, machinery.SourcelessFileLoader, machinery.ExtensionFileLoader):
            patch(loader, "exec_module", self.watched)
        patch(machinery.ExtensionFileLoader, "create_module", self.watched)
        patch(type(os.environ), "__getitem__", recording)
        for name in [name for name in self.after if name in sys.modules]:
            self.after.pop(name)(sys.modules[name])

    def run(self, names):
        """Imports; returns what could be imported."""
        import importlib
        import os
        import sys

        done = []
        self.before = dict(os.environb)
        self.watch()
        try:
            for self.item in names:
                name = self.item.rstrip("?")
                self.under_way = [name]
                self.tell(name)
                try:
                    importlib.import_module(name)
                    done.append(name)
                except BaseException as problem:  # the worker may do without, or say it better; SystemExit, too
                    if not (self.item.endswith("?") and isinstance(problem, ModuleNotFoundError)):
                        said = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
                        print(f"muster: --preload: {name} cannot be imported: {said}", file=sys.stderr)
                self.look_closely()
        finally:
            while self.undo:
                self.undo.pop()()
        after = dict(os.environb)
        self.changes = {name: after.get(name) for name in self.before.keys() | after.keys() if self.before.get(name) != after.get(name)}
        return done

    # ---- afterwards ----

    def unsafe(self):
        """(blame, why) for each thing that forks cannot have, or must not share."""
        found = self.unsafe_threads() + self.unsafe_files()
        running, pids, memory = timers(), children(), shared_memory()
        found += [(blame, f"starts a process ({pid}), which forks would share") for pid, blame in self.blamed_children.items() if pid in pids]
        found += [(blame, "starts a timer, which forks do not have") for timer, blame in self.blamed_timers.items() if timer in running]
        found += [(blame, f"keeps memory or a lock that forks would share ({path or 'without a name'})")
                  for address, (blame, path) in self.blamed_memory.items() if memory.get(address) == path]  # fmt: skip
        found += [(blame, f"keeps {path} for itself, which the first fork that ends would remove") for path, blame in self.temporary()]
        found += [(blame, f"reads {name}, whose value only the worker has") for name, blame in self.variables.items() if name in self.world]
        found += [(blame, why) for why, blame in self.blamed_once.items()]
        if self.folder != self.first_folder:
            blame, folder = self.blamed_folders[-1]
            found.append((blame, f"changes the working folder to {folder}, where the script would be looked for"))
        return found

    def unsafe_threads(self):
        threads = thread_ids()
        if len(threads) <= 1 + pool_threads():
            return []
        names = thread_names()
        why = f"starts a thread{' (' + ', '.join(names) + ')' if names else ''}, and a process with threads cannot be forked safely"
        blamed = [blame for thread, blame in self.blamed_threads.items() if thread in threads]
        return [(blame, why) for blame in dict.fromkeys(blamed or [(None, "?")])]

    def temporary(self):
        """What tempfile has made, and is still there."""
        import os

        return [(path, blame) for path, blame in self.blamed_temporary.items() if os.path.lexists(path)]

    def remove_temporary(self):
        """When this process has no forks, which would do it."""
        import os
        import shutil

        for path, _ in self.temporary():
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)

    def unsafe_files(self):
        """The others are opened again in each fork."""
        found, still = [], open_files()
        for number, (blame, what) in self.blamed_files.items():
            if still.get(number) != what:
                continue
            try:
                why = self.unsafe_file(number, what, blame[1])
            except Refused as problem:
                why = str(problem)
            except OSError as problem:
                why = f"keeps {what} open, which forks cannot open again ({problem.strerror})"
            if why:
                found.append((blame, why))
        return found

    def unsafe_file(self, number, what, module):
        import os
        import stat

        mode = os.fstat(number).st_mode
        if number <= 2:
            return f"leads the standard stream {number} to {what}"
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            file = OpenFile(number, module)
            file.twin = next((other for other in self.kept_files if file.is_copy_of(other)), None)
            self.kept_files.append(file)
            return None
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            return None if what in PLAIN_DEVICES else f"opens the device {what}, which forks cannot use"
        return f"opens a connection ({what}), which forks would share"
