"""Files of preloaded modules: those that they keep open, each fork opens again; those that they come from must not change.

Part of the preload server's program (preload_process.py).
"""


# Devices that keep nothing for those who have opened them.
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


class Refused(Exception):
    """Why there can be no forks of this process, or not this one."""


class OpenFile:
    """A file that a module has opened and kept. A fork opens it again: a position of its own, as in a process of its own."""

    def __init__(self, number, module):
        """Raises Refused if a fork cannot have it, OSError if it cannot be opened again."""
        import os

        self.number, self.module = number, module
        self.status, self.inherits = os.fstat(number), os.get_inheritable(number)
        self.path = os.readlink(f"/proc/self/fd/{number}")
        flags, self.is_locked = self.ask_kernel()
        # What counts at the first opening alone; and /proc has links.
        self.flags = flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL | os.O_TMPFILE & ~os.O_DIRECTORY | os.O_NOFOLLOW)
        is_written = flags & os.O_ACCMODE != os.O_RDONLY
        if is_written and (self.status.st_nlink == 0 or self.path.startswith("/memfd:")):
            raise Refused(f"keeps a file without a name ({self.path}), whose content forks would share")
        self.twin = None  # a descriptor that is a copy of this one, or the other way round: they have one position
        self.has_position = not flags & os.O_PATH
        if self.has_position:
            os.close(self.open())

    def ask_kernel(self):
        """Flags, and whether this descriptor holds a shared lock, which each fork can have for itself."""
        is_locked = False
        with open(f"/proc/self/fdinfo/{self.number}", encoding="ascii", errors="replace") as text:
            for line in text:
                name, _, value = line.partition(":")
                if name == "flags":
                    flags = int(value, 8)
                elif name == "lock":
                    is_locked = True
                    if "FLOCK" not in value or "READ" not in value:
                        raise Refused(f"locks the file {self.path}, and forks cannot have this lock")
        return flags, is_locked

    def open(self):
        import os

        return os.open(f"/proc/self/fd/{self.number}", self.flags)

    def is_copy_of(self, other):
        """Does one move when the other is moved?"""
        import os

        if not (self.has_position and other.has_position and os.path.samestat(self.status, other.status)):
            return False
        try:
            here, there = (os.lseek(file.number, 0, os.SEEK_CUR) for file in (self, other))
            os.lseek(self.number, here + 1, os.SEEK_SET)
            has_moved = os.lseek(other.number, 0, os.SEEK_CUR) != there
            os.lseek(self.number, here, os.SEEK_SET)
            return has_moved
        except OSError:  # a folder of some file system
            return False

    def unlock(self):
        """In the server: nobody shall wait for a lock that no worker has."""
        import fcntl

        if self.is_locked:
            fcntl.flock(self.number, fcntl.LOCK_UN)

    def open_again(self):
        import fcntl
        import os

        if not self.has_position:
            return
        if self.twin:  # it has been opened before
            os.dup2(self.twin.number, self.number, self.inherits)
            return
        fresh = self.open()
        os.lseek(fresh, os.lseek(self.number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, self.number, self.inherits)
        os.close(fresh)
        if self.is_locked:
            fcntl.flock(self.number, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def is_other(self):
        """At the path is another file by now, or none: an import would find that."""
        import os

        if self.status.st_nlink == 0:
            return False
        try:
            seen = os.stat(self.path)
        except OSError:
            return True
        return (seen.st_dev, seen.st_ino) != (self.status.st_dev, self.status.st_ino)


def stamps():
    """Of the files of all modules: which, and how they are now."""
    import os
    import sys

    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            try:
                seen = os.stat(path)
            except OSError:
                continue
            found[path] = (name, seen.st_mtime_ns, seen.st_size, seen.st_ino)
    return found


def changed(before, kept_files):
    """A module whose file is not what it was, or that keeps a file which has been replaced, with the path; or None."""
    import os

    for file in kept_files:
        if file.is_other():
            return file.module, file.path
    for path, (name, *was) in before.items():
        try:
            seen = os.stat(path)
        except OSError:
            return name, path
        if [seen.st_mtime_ns, seen.st_size, seen.st_ino] != was:
            return name, path
    return None
