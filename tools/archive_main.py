"""How an archive of Volplane starts: it unpacks itself on its first start, and runs from there.

Python cannot import extension modules from a zip file. The archive therefore contains a compressed tar file,
and unpacks it into a virtual environment in the user's cache directory. Later starts only execute the Python
of this environment, which also finds the byte code that earlier starts have compiled.

`tools/archives.py` writes this file into the archive as `__main__.py`, with the three values below. Older
versions of Python 3 must be able to read it, to print why they cannot run Volplane.
"""

import os
import sys

BUILD = ""  # version and digest of the contents
PYTHONS = ""  # such as "3.11 3.12"
PLATFORM = ""  # such as "linux x86_64"

CONTENTS = "contents.tar.xz"
PREFIX = ".unpack-"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def main() -> None:
    problem = find_problem()
    if problem:
        sys.exit(f"volplane: {problem}")
    place = environment_path()
    program = os.path.join(place, "bin", "volplane")
    if not os.path.exists(program):
        try:
            unpack(place)
        except (OSError, ImportError) as error:
            hint = "set XDG_CACHE_HOME to choose another directory"
            sys.exit(f"volplane: cannot unpack into {place}: {error}; {hint}")
    python = os.path.join(place, "bin", "python")
    os.execv(python, [python, program, *sys.argv[1:]])


def find_problem() -> str:
    """Why this Python cannot run the archive; "" if it can."""
    wanted = PYTHONS.split()
    if PYTHON not in wanted:
        return (
            f"this is Python {PYTHON}, and the archive is for {', '.join(wanted)}: run it with one of them,"
            f" such as python{wanted[-1]} {archive_path()}"
        )
    here = f"{sys.platform} {os.uname().machine}"
    if here != PLATFORM:
        return f"this machine is {here}, and the archive is for {PLATFORM}"
    return ""


def archive_path() -> str:
    return os.path.dirname(os.path.abspath(__file__))


def environment_path() -> str:
    """One environment for each build and interpreter."""
    from zlib import crc32

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    interpreter = crc32(os.fsencode(os.path.realpath(sys.executable)))
    return os.path.join(cache, "volplane", "archives", f"{BUILD}-python{PYTHON}-{interpreter:08x}")


def unpack(place: str) -> None:
    """Unpack beside the place, then rename: an interrupted start leaves nothing that looks complete."""
    import fcntl
    import shutil
    import tempfile

    parent = os.path.dirname(place)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    with open(os.path.join(parent, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in os.listdir(parent):  # of a start that was interrupted
            if left.startswith(PREFIX):
                shutil.rmtree(os.path.join(parent, left), ignore_errors=True)
        if os.path.exists(os.path.join(place, "bin", "volplane")):  # another start was first
            return
        if sys.stderr.isatty():
            sys.stderr.write(f"volplane: unpacking into {place}, once\n")
        fresh = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        try:
            create_environment(fresh, place)
            shutil.rmtree(place, ignore_errors=True)
            os.rename(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def create_environment(fresh: str, place: str) -> None:
    """A virtual environment in `fresh` that works after it was renamed to `place`."""
    import lzma  # noqa: F401  # tarfile needs it, but would fail only after other work
    import tarfile
    import venv
    import zipfile

    venv.EnvBuilder(symlinks=True, with_pip=False).create(fresh)
    packages = os.path.join(fresh, "lib", f"python{PYTHON}", "site-packages")
    mine = f".cpython-{PYTHON.replace('.', '')}-"
    with zipfile.ZipFile(archive_path()) as archive, archive.open(CONTENTS) as file:  # noqa: SIM117  # old syntax
        with tarfile.open(fileobj=file, mode="r|xz") as contents:
            for member in contents:
                if ".cpython-" in member.name and mine not in member.name:
                    continue  # an extension module for another version
                if hasattr(tarfile, "data_filter"):
                    contents.extract(member, packages, filter="data")
                else:
                    contents.extract(member, packages)
    program = os.path.join(fresh, "bin", "volplane")
    with open(program, "w") as file:
        file.write(f"#!{os.path.join(place, 'bin', 'python')}\nfrom volplane.cli import main\n\nmain()\n")
    os.chmod(program, 0o755)


if __name__ == "__main__":
    main()
