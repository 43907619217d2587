"""Programs that try to get out of a sandbox, and what has to come of each; shared by the tests of all backends and users."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from drmas_pl.sandbox import Sandbox, SandboxResult

Holds = Callable[[SandboxResult], bool]


@dataclass(frozen=True)
class Attack:
    """A program and whether the sandbox held.

    In the program ``{secret}`` and ``{folder}`` stand for a private file and folder of the parent, ``{parent}`` for its process id, and
    ``{mark}`` for seconds of sleep by which left-over processes can be found.
    """

    program: str
    holds: Holds
    timeout: float = 60.0


def printed(text: str) -> Holds:
    """The program ran to its end and wrote exactly this."""
    return lambda result: (result.status, result.stdout.strip()) == ("ok", text)


def ended(*statuses: str) -> Holds:
    """The program ended in one of these ways."""
    return lambda result: result.status in statuses


REFUSED = """
def refused(action):
    try:
        action()
    except OSError:
        return True
    return False
"""

ATTACKS: dict[str, Attack] = {
    "fork bomb": Attack(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        ended("timeout", "memory"),
        timeout=1.0,
    ),
    "thread bomb": Attack(
        "import threading, time\ncount = 0\ntry:\n    while count < 1000:\n"
        "        threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); count += 1\n"
        "except RuntimeError:\n    pass\nprint(count < 100, flush=True)\nimport os; os._exit(0)\n",
        printed("True"),
    ),
    "10 GB at once": Attack("x = bytearray(10 * 2**30)", ended("memory")),
    "10 GB bit by bit": Attack("x = []\nwhile True:\n    x.append(bytearray(2**24))", ended("memory")),
    "10 GB of output": Attack(
        "import os\nblock = b'x' * 2**20\nfor _ in range(10240):\n    os.write(1, block)",
        lambda result: result.status == "output_limit" and len(result.stdout) == 2**20,
    ),
    "10 GB of errors": Attack(
        "import os\nblock = b'x' * 2**20\nfor _ in range(10240):\n    os.write(2, block)",
        lambda result: result.status == "output_limit" and len(result.stderr) == 2**20,
    ),
    "environment": Attack("import os\nprint(sorted(os.environ))", printed("['LC_CTYPE', 'PYTHONHASHSEED']")),
    "environment of the parent": Attack(
        REFUSED + "import os\n"
        "print(all(refused(lambda: open(f'/proc/{who}/environ').read()) for who in (1, os.getppid(), {parent})))",
        printed("True"),
    ),
    "socket": Attack(
        REFUSED + "import socket\n"
        "print([refused(lambda: socket.socket(family, kind)) for family in (2, 10, 1, 16, 40) for kind in (1, 2)])",
        printed(str([True] * 10)),
    ),
    "name look-up": Attack(
        REFUSED + "import socket\nprint(refused(lambda: socket.getaddrinfo('localhost.localdomain', 80)))",
        printed("True"),
    ),
    "writing outside": Attack(
        REFUSED + "import os\n"
        "places = ('{folder}/x', '/x', '/usr/x', '/etc/x', '/root/x', '/dev/shm/x', os.__file__, os.path.dirname(os.__file__) + '/x')\n"
        "print([place for place in places if not refused(lambda: open(place, 'w'))])",
        printed("[]"),
    ),
    "reading outside": Attack(
        REFUSED + "print([place for place in ('{secret}', '/etc/passwd', '/etc/shadow', '/proc/self/mem')"
        " if not refused(lambda: open(place, 'rb').read(1))])",
        printed("[]"),
    ),
    "listing outside": Attack(
        REFUSED + "import os\nprint([place for place in ('{folder}', '/home', '/var', '/etc')"
        " if not refused(lambda: os.listdir(place) or open('/nothing'))])",
        printed("[]"),
    ),
    "symbolic link": Attack(
        REFUSED + "import os\nos.symlink('{secret}', 'link')\nos.symlink('{folder}', 'folder')\n"
        "print(refused(lambda: open('link').read()), refused(lambda: open('folder/x', 'w')))",
        printed("True True"),
    ),
    "climbing out": Attack(
        REFUSED + "import os\nhere = os.open('.', os.O_RDONLY)\n"
        "print(refused(lambda: os.open('../' * 20 + '{secret}', os.O_RDONLY, dir_fd=here)), refused(lambda: os.chroot('/tmp')))",
        printed("True True"),
    ),
    "ignoring SIGTERM": Attack(
        "import signal, time\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    time.sleep(1)\n",
        ended("timeout"),
        timeout=0.3,
    ),
    "running past the limit": Attack("while True:\n    pass", ended("timeout"), timeout=0.3),
    "sleeping past the limit": Attack("import time\ntime.sleep(60)", ended("timeout"), timeout=0.3),
    "daemon": Attack(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.closerange(0, 9)\n"
        "        time.sleep({mark})\n    os._exit(0)\nprint('gone')\n",
        printed("gone"),
    ),
    "daemon that holds the outputs": Attack(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep({mark})\n    os._exit(0)\n"
        "print('gone')\n",
        printed("gone"),
    ),
    "killing the parent": Attack(
        "import os\nfor who in (os.getppid(), 1, {parent}):\n    for number in (9, 15, 2, 19):\n        try:\n"
        "            os.kill(who, number)\n"
        "        except (OSError, ValueError):\n            pass\nprint('alive')",
        printed("alive"),
    ),
    "killing everybody": Attack(
        "import os\ntry:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\nprint('alive')",
        ended("ok", "killed"),
    ),
    "huge file": Attack(
        "import errno\ntry:\n    with open('huge', 'wb') as file:\n        for _ in range(100):\n            file.write(bytes(2**20))\n"
        "except OSError as error:\n    print(error.errno in (errno.EFBIG, errno.ENOSPC))",
        printed("True"),
    ),
    "closing descriptors": Attack(
        "import os\nfor number in range(3, 1024):\n    try:\n        os.fstat(number); print('open', number)\n"
        "    except OSError:\n        pass\n"
        "print('none', flush=True)\nos.closerange(0, 1024)",
        lambda result: result.stdout == "none\n",
    ),
    "duplicating descriptors": Attack(
        "import os\ntry:\n    while True:\n        os.dup(1)\nexcept OSError:\n    pass\n"
        "for number in range(3, 20):\n    os.write(number, b'exit 0 0.1\\n')\n",
        printed("\n".join(["exit 0 0.1"] * 17)),
    ),
    "deep recursion": Attack(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()",
        ended("error", "memory", "timeout"),
        timeout=2.0,
    ),
    "deep nesting": Attack("eval('(' * 10**5)", ended("error", "memory")),
    "binary output": Attack(
        "import os\nos.write(1, bytes(range(256)))\nos.write(2, b'\\xff\\xfe')",
        lambda result: result.status == "ok" and "\ufffd" in result.stdout and len(result.stderr) == 2,
    ),
    "ptrace": Attack(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print([libc.ptrace(request, who, 0, 0) for request, who in ((16, os.getppid()), (16, 1), (16, {parent}), (0, 0))])",
        printed("[-1, -1, -1, -1]"),
    ),
    "new namespaces": Attack(
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        printed("-1 -1 -1"),
    ),
    "becoming root": Attack(
        REFUSED
        + "import os\nprint(refused(lambda: os.setuid(0)), refused(lambda: os.setgroups([0])), 0 in (os.getuid(), os.geteuid()))",
        printed("True True False"),
    ),
    "raising limits": Attack(
        "import resource\nraised = []\nfor name in ('CPU', 'AS', 'FSIZE', 'NPROC', 'NOFILE', 'CORE'):\n"
        "    kind = getattr(resource, 'RLIMIT_' + name)\n    try:\n        resource.setrlimit(kind, (-1, -1)); raised.append(name)\n"
        "    except (OSError, ValueError):\n        pass\nprint(raised)",
        printed("[]"),
    ),
    "limits of the parent": Attack(
        "import resource\ntry:\n    resource.prlimit({parent}, resource.RLIMIT_CPU, (1, 1))\n    print('set')\n"
        "except OSError:\n    print('refused')",
        printed("refused"),
    ),
    "files in memory": Attack(
        REFUSED + "import os\nprint(refused(lambda: os.memfd_create('x')))", printed("True")
    ),
    "forged report": Attack(
        "import os\nfor number in range(3, 64):\n    try:\n        os.write(number, b'exit 0 0.0\\n')\n    except OSError:\n        pass\n"
        "raise SystemExit(3)",
        lambda result: (result.status, result.exit_code) == ("error", 3),
    ),
    "many files": Attack(
        "count = 0\ntry:\n    for count in range(20000):\n        open(f'f{count}', 'w').close()\n"
        "except OSError:\n    pass\nprint(count < 19999)",
        printed("True"),
    ),
}
# What only a root of its own prevents.
NEEDS_ROOT = frozenset({"many files"})
# Nobody else sleeps for so many seconds.
MARK = "86437.25"


def left_over() -> list[str]:
    """List processes that a daemon of an attack left behind; programs of other tests end by themselves meanwhile."""
    found = _programs()
    deadline = time.monotonic() + 20
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= _programs()
    return sorted(found)


def _programs() -> set[str]:
    found = set()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if any(word.rpartition(b"/")[2] == b"program.py" for word in words):
                found.add(str(place))
    return found


def find_holes(sandbox: Sandbox, folder: Path, names: Iterable[str]) -> list[str]:
    """Run attacks and describe those that got through.

    Args:
        sandbox: What is attacked.
        folder: An empty folder that the parent can write.
        names: Which attacks to run.
    """
    secret = folder / "secret"
    secret.write_text("the secret of the parent")
    places = {"secret": secret, "folder": folder, "parent": os.getpid(), "mark": MARK}
    holes = []
    for name in names:
        attack = ATTACKS[name]
        program = attack.program
        for key, value in places.items():
            program = program.replace(f"{{{key}}}", str(value))
        result = sandbox.run(program, timeout=attack.timeout)
        if not attack.holds(result):
            holes.append(
                f"{name}: {result.status} {result.exit_code} {result.stdout[-300:]!r} {result.stderr[-300:]!r}"
            )
    if sorted(folder.iterdir()) != [secret] or secret.read_text() != "the secret of the parent":
        holes.append(f"files outside: {sorted(folder.iterdir())}")
    return holes
