"""Start one program in isolation, watch it and end everything that it started; a script of its own.

Place in the data flow: :mod:`drmas_pl.sandbox.launch` starts this file with a bare interpreter, one process per program. It enters
namespaces, becomes the first process of the new process namespace, forks, and the child gives up every right before it becomes the
program. What is left behind watches clock, memory and leash, kills all that lives and writes one line about the end.

It runs before anything is isolated and starts anew for every program, so it imports little and nothing of the library.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time

CLONE_NEWNS = 0x20000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACES = {
    "user": CLONE_NEWUSER,
    "mount": CLONE_NEWNS,
    "process": CLONE_NEWPID,
    "network": CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
}
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LANDLOCK_CREATE = 444
LANDLOCK_ADD = 445
LANDLOCK_RESTRICT = 446
# Rights over files that each version of Landlock knows: all bits below this one.
LANDLOCK_FILE_BITS = (13, 14, 15, 15, 16)
LANDLOCK_READ = 1 | 4 | 8
LANDLOCK_WRITE_FILE = 2 | 4
DEVICES = ("null", "zero", "urandom")
NOBODY = 65534
TICK = 0.02
# Files in memory are counted in pages of this size.
PAGE = resource.getpagesize()
WORK = "/tmp"
PROGRAM = "program.py"

libc = ctypes.CDLL(None, use_errno=True)


class Order:
    """What to run and how; made of arguments ``name=value``, lists joined by colons.

    Attributes:
        features: Means of isolation to use: keys of ``NAMESPACES``; ``identity``, another user; ``meter``, a sum of memory; ``filter``;
            ``landlock``; ``first``, if this is the first process of namespaces that are there already.
        interpreter: Path of the Python that runs the program.
        readable: Folders that the program may read, besides its own.
        folder: An empty folder: the place of the new root, or where there is none the program's own folder.
        filter: Instructions of the system call filter, in hexadecimal.
        user: User and group to become, with ``identity``.
        timeout: Seconds that the program may take.
        memory: Bytes of address space of each process, and of resident memory of all together.
        disk: Bytes of all files together, where the folder is one in memory.
        file_size: Bytes of each file.
        processes: Largest number of processes and threads.
        open_files: Largest number of open files of each process.
        program: File descriptor to read the program from.
        leash: File descriptor that becomes readable when the program must end.
        report: File descriptor for the line about the end.
    """

    def __init__(self, arguments: list[str]) -> None:
        given = dict(argument.split("=", 1) for argument in arguments)
        self.features = frozenset(given["features"].split(":"))
        self.interpreter = given["interpreter"]
        self.readable = given["readable"].split(":")
        self.folder = given["folder"]
        self.filter = bytes.fromhex(given["filter"])
        self.user = int(given["user"])
        self.timeout = float(given["timeout"])
        self.memory = int(given["memory"])
        self.disk = int(given["disk"])
        self.file_size = int(given["file_size"])
        self.processes = int(given["processes"])
        self.open_files = int(given["open_files"])
        self.program = int(given["program"])
        self.leash = int(given["leash"])
        self.report = int(given["report"])


def call(what: str, result: int) -> int:
    """Raise for a failed call of the C library."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system; see mount(2)."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    call(f"mount {target}", libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]))


def enter_namespaces(order: Order) -> None:
    """Leave the namespaces of the trainer; with one for users, become a nobody who has every right in it."""
    flags = sum(flag for name, flag in NAMESPACES.items() if name in order.features)
    user = os.getuid()
    group = os.getgid()
    if flags:
        call("unshare", libc.unshare(flags))
    if "user" in order.features:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def build_root(order: Order) -> int:
    """Move into a root of its own that holds the interpreter and an empty folder; return a descriptor of /proc, or -1.

    /proc itself is taken away again: only what holds the descriptor can look into it.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = order.folder
    hard = MS_NOSUID | MS_NODEV
    mount("none", root, "tmpfs", hard, "mode=755,size=1m")
    for path in order.readable:
        bind(path, root + path)
    os.mkdir(f"{root}/dev")
    for name in DEVICES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        mount(f"/dev/{name}", f"{root}/dev/{name}", None, MS_BIND)
    os.makedirs(root + WORK, exist_ok=True)
    mount("none", root + WORK, "tmpfs", hard, f"mode=700,size={order.disk},nr_inodes=4096")
    meter = -1
    if "meter" in order.features:
        os.mkdir(f"{root}/proc")
        mount("none", f"{root}/proc", "proc", hard)
        meter = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY)
        call("umount", libc.umount2(f"{root}/proc".encode(), MNT_DETACH))
    os.chdir(root)
    call("pivot_root", libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."))
    call("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | hard)
    return meter


def bind(path: str, target: str) -> None:
    """Show a folder at another place, read-only; a symbolic link stays one."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    os.makedirs(target, exist_ok=True)
    mount(path, target, None, MS_BIND | MS_REC)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def place_program(order: Order, work: str) -> None:
    """Write the program into its folder and give both away."""
    with open(order.program, "rb") as source, open(f"{work}/{PROGRAM}", "xb") as target:
        target.write(source.read())
    if "identity" in order.features:
        os.chown(work, order.user, order.user)


def limit(order: Order, running: int) -> None:
    """Set hard limits for this process and all that descend from it.

    Args:
        order: What to run.
        running: Processes that count as the program's although they are not, since they have the same user.
    """
    seconds = int(order.timeout) + 1
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_FSIZE, order.file_size, order.file_size),
        (resource.RLIMIT_NOFILE, order.open_files, order.open_files),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, order.processes + running, order.processes + running),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_AS, order.memory, order.memory),
    ):
        _, highest = resource.getrlimit(kind)
        if highest != resource.RLIM_INFINITY:
            soft = min(soft, highest)
            hard = min(hard, highest)
        resource.setrlimit(kind, (soft, hard))


def count_tasks(user: int) -> int:
    """Count processes and threads of a user."""
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return found


def drop_rights(order: Order) -> None:
    """Become nobody, for good; capabilities that are left end with exec."""
    capability = 0
    while "user" in order.features or os.geteuid() == 0:
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == -1:
            break
        capability += 1
    if "identity" in order.features:
        os.setgroups([])
        os.setresgid(order.user, order.user, order.user)
        os.setresuid(order.user, order.user, order.user)
    call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def restrict_files(order: Order, work: str) -> None:
    """Have the kernel refuse every file outside the readable folders and the program's own, with Landlock."""
    version = call("landlock", libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    everything = (1 << LANDLOCK_FILE_BITS[min(version, len(LANDLOCK_FILE_BITS)) - 1]) - 1
    # Rights over files, then over TCP from version 4, then over signals and abstract sockets from version 6.
    handled = (ctypes.c_uint64 * 3)(everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = call("landlock", libc.syscall(LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(size), 0))
    allowed = [(path, LANDLOCK_READ) for path in order.readable]
    allowed += [(f"/dev/{name}", LANDLOCK_WRITE_FILE) for name in DEVICES]
    for path, rights in (*allowed, (work, everything)):
        place = os.open(path, os.O_PATH)
        rule = (rights & everything).to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        call("landlock", libc.syscall(LANDLOCK_ADD, rules, 1, rule, 0))
        os.close(place)
    call("landlock", libc.syscall(LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def filter_calls(instructions: bytes) -> None:
    """Have the kernel refuse system calls that no honest program needs."""
    code = ctypes.create_string_buffer(instructions, len(instructions))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    program = Filter(len(instructions) // 8, ctypes.addressof(code))
    call("seccomp", libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0))


def become_program(order: Order, work: str) -> None:
    """Give up every right and run the program; never returns."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(work)
        shares_user = not order.features & {"identity", "user", "first"}
        running = count_tasks(os.getuid()) if shares_user else 0
        drop_rights(order)
        limit(order, running)
        if "landlock" in order.features:
            restrict_files(order, work)
        if "filter" in order.features:
            filter_calls(order.filter)
        keep = order.report
        os.closerange(3, keep)
        os.closerange(keep + 1, 1024)
        os.set_inheritable(keep, False)
        # A fixed hash seed, so that a program that prints a set earns the same each time.
        arguments = [order.interpreter, "-s", "-S", "-B", "-X", "utf8", PROGRAM]
        os.execve(order.interpreter, arguments, {"PYTHONHASHSEED": "0"})
    except BaseException as error:
        os.write(order.report, f"fault {error}\n".encode())
    finally:
        os._exit(127)


class StageMonitor:
    """Watches a program until it ends or must end.

    Args:
        order: What to run.
        program: Process id of the program.
        meter: Descriptor of a /proc that shows the program's processes alone, or -1.
    """

    def __init__(self, order: Order, program: int, meter: int) -> None:
        self.order = order
        self.program = program
        self.meter = meter
        self.deadline = time.monotonic() + order.timeout

    def wait(self) -> str:
        """Return how it ended: ``exit <code>``, ``signal <number>``, ``timeout``, ``memory`` or ``stopped``."""
        while True:
            signal.sigtimedwait({signal.SIGCHLD}, TICK)
            ended = self.reap()
            if ended is not None:
                return ended
            if time.monotonic() >= self.deadline:
                return "timeout"
            if select.select([self.order.leash], (), (), 0)[0]:
                return "stopped"
            if self.meter >= 0 and self.resident() > self.order.memory:
                return "memory"

    def reap(self) -> str | None:
        """Collect what has ended; return how the program did, if it has."""
        ended = None
        while True:
            try:
                found, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if found == 0:
                return ended
            if found == self.program and os.WIFSIGNALED(status):
                ended = f"signal {os.WTERMSIG(status)}"
            elif found == self.program:
                ended = f"exit {os.WEXITSTATUS(status)}"

    def resident(self) -> int:
        """Add up the bytes that all processes but this one hold in memory by themselves."""
        total = 0
        for name in os.listdir(self.meter):
            if not name.isdigit() or name == "1":
                continue
            try:
                file = os.open(f"{name}/statm", os.O_RDONLY, dir_fd=self.meter)
            except OSError:
                continue
            try:
                _, held, shared, *_ = os.read(file, 256).split()
                total += int(held) - int(shared)
            except (OSError, ValueError):
                pass
            finally:
                os.close(file)
        return total * PAGE

    def kill(self) -> None:
        """End the program and all that descends from it, however far it went."""
        if os.getpid() == 1:
            self.kill_everybody()
            return
        if "identity" in self.order.features:
            self.kill_user()
        while True:
            found = children(os.getpid())
            for child in found:
                os.kill(child, signal.SIGKILL)
            if not found:
                return
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def kill_everybody(self) -> None:
        """End everything in the namespace but its first process, which is this one."""
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            # nobody is left
            return

    def kill_user(self) -> None:
        """End everything that runs as the program's user, which nobody else has."""
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(self.order.user, self.order.user, self.order.user)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def children(parent: int) -> list[int]:
    """List the processes whose parent is ``parent``; orphans of the program come to this process."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(name))
    return found


def supervise(order: Order) -> str:
    """Run the program to its end and return how it ended, with the seconds that it took."""
    meter = build_root(order) if "mount" in order.features else -1
    first = "first" in order.features
    if first and "meter" in order.features:
        meter = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    work = WORK if first or "mount" in order.features else order.folder
    place_program(order, work)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    started = time.monotonic()
    program = os.fork()
    if program == 0:
        become_program(order, work)
    watch = StageMonitor(order, program, meter)
    ended = watch.wait()
    seconds = time.monotonic() - started
    watch.kill()
    return f"{ended} {seconds:.6f}"


def main(arguments: list[str]) -> None:
    """Carry out an order."""
    order = Order(arguments)
    # The first process of a namespace gets from inside only signals that it handles; Python handles this one by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        enter_namespaces(order)
        if "process" in order.features:
            first = os.fork()
            if first:
                os.waitpid(first, 0)
                os._exit(0)
        line = supervise(order)
    except Exception as error:
        line = f"fault {error}"
    os.write(order.report, line.replace("\n", " ").encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
