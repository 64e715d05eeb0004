"""Tests of system calls that reach other programs, made by a program in the sandbox."""

from __future__ import annotations

import ctypes
import platform
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rl_conductor_training.sandbox.sandbox import is_confined, run_python

pytestmark = pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")

SECRET = b"of another program"
IPC_PRIVATE, IPC_CREAT, IPC_RMID = 0, 0o1000, 0
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p

PRELUDE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, function, *arguments):
    ctypes.set_errno(0)
    result = function(*arguments)
    print(name, ctypes.get_errno() if result in (-1, 2**64 - 1) else "allowed")
libc.shmat.restype = ctypes.c_void_p
"""


class MessageBuffer(ctypes.Structure):
    """The C type `struct msgbuf`."""

    _fields_ = (("kind", ctypes.c_long), ("text", ctypes.c_char * 64))


@pytest.fixture
def memory() -> Iterator[int]:
    """A segment of shared memory that every process may use, with the secret in it."""
    segment = LIBC.shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0o666)
    assert segment >= 0
    address = LIBC.shmat(segment, None, 0)
    ctypes.memmove(address, SECRET, len(SECRET))
    yield segment
    assert ctypes.string_at(address, len(SECRET)) == SECRET
    LIBC.shmdt(ctypes.c_void_p(address))
    assert LIBC.shmctl(segment, IPC_RMID, None) == 0


@pytest.fixture
def queue() -> Iterator[int]:
    """A message queue that every process may use, with the secret in it and nothing else."""
    number = LIBC.msgget(IPC_PRIVATE, IPC_CREAT | 0o666)
    assert number >= 0
    message = MessageBuffer(1, SECRET)
    assert LIBC.msgsnd(number, ctypes.byref(message), len(SECRET), 0) == 0
    yield number
    for expected in (len(SECRET), -1):
        assert LIBC.msgrcv(number, ctypes.byref(message), 64, 0, 0o4000) == expected
    assert LIBC.msgctl(number, IPC_RMID, None) == 0


@pytest.fixture
def semaphore() -> Iterator[int]:
    """A semaphore that every process may use, at zero."""
    number = LIBC.semget(IPC_PRIVATE, 1, IPC_CREAT | 0o666)
    assert number >= 0
    yield number
    assert LIBC.semctl(number, 0, 12) == 0  # GETVAL
    assert LIBC.semctl(number, 0, IPC_RMID) == 0


async def errors_of(program: str) -> dict[str, str]:
    """Returns the error number of each attempted call, or `allowed`."""
    result = await run_python(PRELUDE + program)
    assert (result.status, result.error) == ("ok", "")
    return dict(line.split() for line in result.output.splitlines())


def assert_all_blocked(errors: dict[str, str], *names: str) -> None:
    assert errors == dict.fromkeys(names, "1")  # EPERM, from the filter; EACCES would come from the object


async def test_shared_memory_of_another_program_can_be_neither_read_nor_removed(memory: int) -> None:
    errors = await errors_of(f"""
attempt("shmget", libc.shmget, 0, 4096, 0o1600)
attempt("shmat", libc.shmat, {memory}, None, 0)
attempt("shmctl", libc.shmctl, {memory}, 0, None)
attempt("shmdt", libc.shmdt, None)
""")
    assert_all_blocked(errors, "shmget", "shmat", "shmctl", "shmdt")


async def test_messages_of_another_program_can_be_neither_taken_nor_added(queue: int) -> None:
    errors = await errors_of(f"""
class MessageBuffer(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_long), ("text", ctypes.c_char * 64)]
message = MessageBuffer(1, b"forged")
attempt("msgget", libc.msgget, 0, 0o1600)
attempt("msgsnd", libc.msgsnd, {queue}, ctypes.byref(message), 6, 0o4000)
attempt("msgrcv", libc.msgrcv, {queue}, ctypes.byref(message), 64, 0, 0o4000)
attempt("msgctl", libc.msgctl, {queue}, 0, None)
""")
    assert_all_blocked(errors, "msgget", "msgsnd", "msgrcv", "msgctl")


async def test_semaphores_of_another_program_can_be_neither_raised_nor_removed(semaphore: int) -> None:
    errors = await errors_of(f"""
raising = (ctypes.c_short * 3)(0, 1, 0o4000)
attempt("semget", libc.semget, 0, 1, 0o1600)
attempt("semop", libc.semop, {semaphore}, raising, 1)
attempt("semtimedop", libc.semtimedop, {semaphore}, raising, 1, None)
attempt("semctl", libc.semctl, {semaphore}, 0, 0)
""")
    assert_all_blocked(errors, "semget", "semop", "semtimedop", "semctl")


NUMBERS = {
    "x86_64": "kcmp=312, get_robust_list=274, pidfd_getfd=438, pidfd_open=434, pidfd_send_signal=424,"
    " process_madvise=440, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, perf_event_open=298,"
    " mq_open=240, mq_unlink=241, mq_timedsend=242, mq_timedreceive=243, mq_notify=244, mq_getsetattr=245",
    "aarch64": "kcmp=272, get_robust_list=100, pidfd_getfd=438, pidfd_open=434, pidfd_send_signal=424,"
    " process_madvise=440, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, perf_event_open=241,"
    " mq_open=180, mq_unlink=181, mq_timedsend=182, mq_timedreceive=183, mq_notify=184, mq_getsetattr=185",
}
"""Calls for which the C library has no function, or one that changes the error."""


async def test_memory_handles_and_message_queues_of_another_process_are_out_of_reach() -> None:
    names = "process_vm_readv", "process_vm_writev", "ptrace", *NUMBERS["x86_64"].replace(",", "").split()
    errors = await errors_of(f"""
parent = os.getppid()
vector = (ctypes.c_uint64 * 2)(0, 8)
attempt("process_vm_readv", libc.process_vm_readv, parent, vector, 1, vector, 1, 0)
attempt("process_vm_writev", libc.process_vm_writev, parent, vector, 1, vector, 1, 0)
attempt("ptrace", libc.ptrace, 16, parent, None, None)
for name, number in dict({NUMBERS[platform.machine()]}).items():
    attempt(name, libc.syscall, number, parent, parent, 0, 0, 0, 0)
""")
    assert_all_blocked(errors, *(name.partition("=")[0] for name in names))


async def test_other_programs_can_not_be_observed() -> None:
    errors = await errors_of("""
attempt("inotify_init", libc.inotify_init)
attempt("inotify_init1", libc.inotify_init1, 0)
attempt("fanotify_init", libc.fanotify_init, 0, 0)
attempt("klogctl", libc.klogctl, 3, bytes(64), 64)
""")
    assert_all_blocked(errors, "inotify_init", "inotify_init1", "fanotify_init", "klogctl")


async def test_file_leases_are_blocked() -> None:
    errors = await errors_of("""
file = os.open(os.__file__, os.O_RDONLY)
attempt("lease", libc.fcntl, file, 1024, 1)
attempt("notify", libc.fcntl, file, 1026, 1)
""")
    assert_all_blocked(errors, "lease", "notify")


@pytest.fixture
def receivers() -> Iterator[dict[str, socket.socket]]:
    """Sockets that accept datagrams from every process: one with a path, one with an abstract name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:
        Path(folder).chmod(0o777)
        sockets = {}
        for address in (f"{folder}/log", f"\0{folder}/log"):
            sockets[address] = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            sockets[address].bind(address)
            sockets[address].setblocking(False)
        yield sockets


@pytest.mark.parametrize("kind", ["SOCK_DGRAM", "SOCK_DGRAM | socket.SOCK_NONBLOCK", "SOCK_SEQPACKET", "SOCK_STREAM"])
async def test_a_pair_of_sockets_sends_nothing_to_another_program(
    kind: str, receivers: dict[str, socket.socket]
) -> None:
    for address, receiver in receivers.items():
        sending = f"socket.socketpair(socket.AF_UNIX, socket.{kind})[0].sendto(b'leak', {address!r})"
        assert (await run_python(f"import socket\n{sending}")).status == "failed"
        with pytest.raises(BlockingIOError):
            receiver.recv(64)


async def test_the_sockets_of_a_pair_get_no_name_and_no_other_peer() -> None:
    errors = await errors_of("""
import socket
pair = socket.socketpair()
address = b"\\x01\\x00\\x00name"
attempt("bind", libc.bind, pair[0].fileno(), address, len(address))
attempt("connect", libc.connect, pair[0].fileno(), address, len(address))
""")
    assert_all_blocked(errors, "bind", "connect")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has several numbers per call")
async def test_alternative_call_numbers_are_blocked_too() -> None:
    x32 = await errors_of("""
for name, number in {"socket": 41, "shmget": 29, "ptrace": 521}.items():
    attempt(name, libc.syscall, 0x40000000 + number, 2, 1, 0)
""")
    assert_all_blocked(x32, "socket", "shmget", "ptrace")
    # mov eax, 117 (`ipc` of 32-bit programs); int 0x80; ret
    result = await run_python("""
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b8 75 00 00 00 cd 80 c3"))
print("before", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print("after")
""")
    assert (result.status, result.output) == ("failed", "before\n")
