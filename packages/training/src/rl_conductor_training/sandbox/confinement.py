"""Confines its own process and then runs one Python program; `sandbox` starts it as a script.

It imports the standard library only, and drops in this order what a program does not need: resources (rlimits),
capabilities, the file system (Landlock) and system calls (seccomp). None of this needs root, a container or a helper
program, and the program can't undo it. Where the kernel has no Landlock or seccomp, an audit hook blocks the events
that Python reports, which stops accidents only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import runpy
import struct
import sys
from collections.abc import Callable, Iterable
from errno import ENOSYS, EPERM
from pathlib import Path

# ---------------------------------------------------------------------------------------- resources


def limit_resources(*, seconds: int, memory: int, file_bytes: int) -> None:
    """Limits processor seconds, bytes of address space, bytes of each file and open files, irrevocably.

    A program that uses up its processor seconds gets SIGXCPU, which tells this timeout from other kills, and SIGKILL a
    second later if it ignores that.
    """
    _limit(resource.RLIMIT_CPU, seconds, grace=1)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)
    limit_memory(memory)


def limit_memory(memory: int) -> None:
    """Limits the bytes of address space, irrevocably."""
    _limit(resource.RLIMIT_AS, memory)


def _limit(kind: int, soft: int, *, grace: int = 0) -> None:
    hard, inherited = soft + grace, resource.getrlimit(kind)[1]
    if inherited != resource.RLIM_INFINITY:
        soft, hard = min(soft, inherited), min(hard, inherited)
    resource.setrlimit(kind, (soft, hard))


# ----------------------------------------------------------------------------------------- Landlock

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_ABI = 3
"""The first version that can forbid truncating files (Linux 6.2)."""
ALL_RIGHTS = (1 << 15) - 1
FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14  # execute, write, read, truncate
READ_RIGHTS = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder

SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom")


def confine_files(scratch: str) -> None:
    """Restricts this process to writing in `scratch` and reading the interpreter and the system's libraries."""
    attributes = struct.pack("Q", ALL_RIGHTS)
    ruleset = _syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    for path in {sys.prefix, sys.base_prefix, *SYSTEM_PATHS}:
        _allow(ruleset, path, READ_RIGHTS)
    for path in (scratch, "/dev/null"):
        _allow(ruleset, path, ALL_RIGHTS)
    _syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if Path(path).exists():
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = rights if Path(path).is_dir() else rights & FILE_RIGHTS
        _syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, path_fd), 0)
        os.close(path_fd)


# ------------------------------------------------------------------------------------------ seccomp

MACHINES = ("x86_64", "aarch64")
"""Supported architectures, in the order of the columns below."""
AUDIT_ARCHITECTURES = (0xC000003E, 0xC00000B7)
"""Their `AUDIT_ARCH_*` constants."""
BLOCKED_CALLS = {
    # the network and other programs' sockets
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # new processes and namespaces
    "fork": (57, None),
    "vfork": (58, None),
    "unshare": (272, 97),
    "setns": (308, 268),
    # other processes, by signal, memory, handle or priority
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    # System V IPC and POSIX message queues: machine-wide objects, which are accessed by number without opening them
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    # memory that counts towards no limit
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # observing other programs: their file accesses, which Landlock does not hide, and the kernel log
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "syslog": (103, 116),
    # keyrings, and kernel interfaces with a history of vulnerabilities
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}
IGNORED_CALLS = {
    # modes, owners, attributes and times of files, which Landlock does not protect; programs expect success
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
CLONE, CLONE3, TGKILL, PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
CLONE_THREAD = 0x10000
FCNTL, BLOCKED_FCNTL = (72, 25), (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
IOCTL, BLOCKED_IOCTL = (16, 29), (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP
"""A file's owner receives signals, so setting it can signal any process; a lease makes others wait for the file."""
SOCKETPAIR, AF_UNIX, SOCK_STREAM, SOCKET_TYPE = (53, 199), 1, 1, 0xF
"""`asyncio` needs socket pairs. Datagram sockets are blocked: they can send to any named socket of the machine."""
X32 = 0x40000000
"""First number of the x32 calls, which duplicate those of x86-64."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in `struct seccomp_data`
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000


def filter_system_calls() -> None:
    """Blocks new processes, sockets and access to other processes, irrevocably; threads are allowed."""
    lines = list(_filter_instructions(MACHINES.index(platform.machine())))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    _prctl(22, 2, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program)))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _filter_instructions(machine: int) -> Iterable[tuple[int, int, int, int]]:
    """Yields BPF instructions: opcode, jump offset if true, jump offset if false, and operand."""
    yield from [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]), (RETURN, 0, 0, KILL)]
    yield from [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, ERRNO | EPERM)]
    for action, calls in ((ERRNO | EPERM, BLOCKED_CALLS), (ERRNO, IGNORED_CALLS)):
        for numbers in calls.values():
            number = numbers[machine]
            if number is not None:
                yield from [(EQUAL, 0, 1, number), (RETURN, 0, 0, action)]
    yield from [(EQUAL, 0, 1, CLONE3[machine]), (RETURN, 0, 0, ERRNO | ENOSYS)]  # the C library falls back to `clone`
    yield from _allow_if(CLONE[machine], (ANY_BIT, 0, 1, CLONE_THREAD))
    yield from _allow_if(TGKILL[machine], (EQUAL, 0, 1, os.getpid()))
    yield from _allow_if(PRLIMIT[machine], (EQUAL, 0, 1, 0))
    yield from _block_arguments(FCNTL[machine], BLOCKED_FCNTL)
    yield from _block_arguments(IOCTL[machine], BLOCKED_IOCTL)
    yield from _allow_stream_pairs(SOCKETPAIR[machine])
    yield (RETURN, 0, 0, ALLOW)


def _allow_stream_pairs(call: int) -> Iterable[tuple[int, int, int, int]]:
    """Allows `call` for pairs of local stream sockets only, which reach nothing but each other."""
    yield from [(EQUAL, 0, 7, call), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 0, 4, AF_UNIX)]
    yield from [(LOAD, 0, 0, SECOND_ARGUMENT), (MASK, 0, 0, SOCKET_TYPE), (EQUAL, 0, 1, SOCK_STREAM)]
    yield from [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)]


def _block_arguments(call: int, blocked: tuple[int, ...]) -> Iterable[tuple[int, int, int, int]]:
    """Blocks `call` if its second argument is one of `blocked`."""
    yield from [(EQUAL, 0, 2 * len(blocked) + 2, call), (LOAD, 0, 0, SECOND_ARGUMENT)]
    for argument in blocked:
        yield from [(EQUAL, 0, 1, argument), (RETURN, 0, 0, ERRNO | EPERM)]
    yield (RETURN, 0, 0, ALLOW)


def _allow_if(call: int, test: tuple[int, int, int, int]) -> Iterable[tuple[int, int, int, int]]:
    """Allows `call` only if its first argument passes `test`."""
    yield from [(EQUAL, 0, 4, call), (LOAD, 0, 0, FIRST_ARGUMENT), test]
    yield from [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)]


def drop_privileges() -> None:
    """Drops all capabilities and the possibility of gaining new ones."""
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    header, no_capabilities = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if _libc().capset(header, no_capabilities):
        raise OSError(ctypes.get_errno(), "capset")


def _prctl(option: int, argument: int, pointer: bytes | None = None) -> None:
    if _libc().prctl(option, ctypes.c_ulong(argument), pointer, None, None):
        raise OSError(ctypes.get_errno(), "prctl")


def _syscall(number: int, *arguments: bytes | int) -> int:
    result: int = _libc().syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# ---------------------------------------------------------------------------------------- fallback

BLOCKED_EVENTS: tuple[str, ...] = (
    "socket.",
    "os.fork",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.system",
    "os.kill",
    "subprocess.",
)
BLOCKED_EVENTS += ("ctypes.", "os.chmod", "os.chown", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.")


def install_audit_hook(scratch: str) -> None:
    """Blocks sockets, processes and files outside `scratch`, as far as Python reports them; hostile code evades it."""

    def is_inside(path: object) -> bool:
        return isinstance(path, int) or Path(os.fsdecode(str(path))).resolve().is_relative_to(scratch)

    def check(event: str, arguments: tuple[object, ...]) -> None:
        writes_outside = event == "open" and arguments[1] not in (None, "r", "rb") and not is_inside(arguments[0])
        is_own_file = event.startswith(("os.", "shutil.")) and arguments and is_inside(arguments[0])
        if writes_outside or (event.startswith(BLOCKED_EVENTS) and not is_own_file):
            raise PermissionError(EPERM, f"the sandbox does not allow {event}")

    sys.addaudithook(check)


# ------------------------------------------------------------------------------------------ running


def find_missing_feature() -> str | None:
    """Explains why this machine's kernel can't confine programs; `None` if it can. Has no side effects."""
    if not sys.platform.startswith("linux") or platform.machine() not in MACHINES:
        return f"{platform.system()} on {platform.machine()} is not Linux on {' or '.join(MACHINES)}"
    landlock = int(_libc().syscall(LANDLOCK_CREATE, None, 0, 1))
    if landlock < LANDLOCK_ABI:
        problem = f"has Landlock ABI {landlock}" if landlock > 0 else "has no Landlock, or it is switched off"
        return f"the kernel {platform.release()} {problem}; ABI {LANDLOCK_ABI} (Linux 6.2) is needed"
    # With a null pointer as filter, a kernel that has filters returns EFAULT.
    if not (_libc().prctl(22, ctypes.c_ulong(2), None, None, None) and ctypes.get_errno() == 14):
        return f"the kernel {platform.release()} has no seccomp filters"
    return None


def can_kernel_confine() -> bool:
    return find_missing_feature() is None


def confine(scratch: str) -> None:
    """Applies the strongest confinement that this machine offers."""
    steps: list[Callable[[], None]] = [lambda: install_audit_hook(scratch)]
    if can_kernel_confine():
        steps = [drop_privileges, lambda: confine_files(scratch), filter_system_calls]
    for step in steps:
        step()


def main() -> None:
    """Runs `answer.py` in a folder; the arguments are the folder, seconds, memory and file size."""
    scratch, seconds, memory, file_bytes = sys.argv[1:]
    os.chdir(scratch)
    limit_resources(seconds=int(seconds), memory=int(memory), file_bytes=int(file_bytes))
    confine(scratch)
    sys.argv = ["answer.py"]
    runpy.run_path("answer.py", run_name="__main__")


if __name__ == "__main__":
    main()
