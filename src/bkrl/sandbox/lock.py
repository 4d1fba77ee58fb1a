"""Kernel-side layers of the sandbox: limits, namespaces, Landlock and seccomp, each optional and each reported.

The worker calls `lock` once, after its imports and before it has seen a byte of the untrusted program.  Every layer is
tried on its own; what the platform lacks is left out and said in the returned report, never assumed.  Standard library
only (the worker loads this file by path).  System call numbers: the kernel's tables for x86-64 and arm64.
"""

import ctypes
import os
import platform
import resource
import struct
import sys

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SIGKILL = 9
_CLONE_NEWUSER, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x10000000, 0x04000000, 0x08000000, 0x40000000
_NOBODY = 65534

# classic BPF: operation codes and seccomp return values
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_PROT_EXEC = 4

_X86_64 = {
    "audit": 0xC000003E,
    "allow": {
        "munmap": 11, "brk": 12, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25,
        "madvise": 28, "exit": 60, "gettimeofday": 96, "futex": 202, "clock_gettime": 228, "exit_group": 231,
        "getrandom": 318,
    },
    "executable": {"mmap": 9, "mprotect": 10},
    "read": 0,
    "write": 1,
    # refused with EPERM instead of a kill: a lazy import or a curious library call then fails as an ordinary error
    "refuse": {
        "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "ioctl": 16, "access": 21, "getpid": 39,
        "socket": 41, "uname": 63, "fcntl": 72, "getdents": 78, "getcwd": 79, "readlink": 89, "sysinfo": 99,
        "sched_getaffinity": 204, "getdents64": 217, "openat": 257, "newfstatat": 262, "readlinkat": 267,
        "prlimit64": 302, "statx": 332, "faccessat2": 439,
    },
}  # fmt: skip
_AARCH64 = {
    "audit": 0xC00000B7,
    "allow": {
        "munmap": 215, "brk": 214, "rt_sigprocmask": 135, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216,
        "madvise": 233, "exit": 93, "gettimeofday": 169, "futex": 98, "clock_gettime": 113, "exit_group": 94,
        "getrandom": 278,
    },
    "executable": {"mmap": 222, "mprotect": 226},
    "read": 63,
    "write": 64,
    "refuse": {
        "getcwd": 17, "fcntl": 25, "ioctl": 29, "faccessat": 48, "openat": 56, "close": 57, "getdents64": 61,
        "lseek": 62, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "sched_getaffinity": 123, "uname": 160,
        "getpid": 172, "sysinfo": 179, "socket": 198, "prlimit64": 261, "statx": 291, "faccessat2": 439,
    },
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def lock(request_fd: int, reply_fd: int, memory_bytes: int, cpu_seconds: int, skip: frozenset[str]) -> dict[str, str]:
    """Apply every layer the platform has, except those named in `skip` (tests take layers away one by one).

    Returns layer name → "on" or the reason why it is off.  Names: limits, identity, namespaces, landlock, seccomp.
    """
    linux = sys.platform.startswith("linux")
    libc = ctypes.CDLL(None, use_errno=True)
    layers: dict[str, str] = {}

    def attempt(name: str, apply: object, only_linux: bool) -> None:
        if name in skip:
            layers[name] = "switched off"
        elif only_linux and not linux:
            layers[name] = f"not available on {sys.platform}"
        else:
            try:
                apply()  # type: ignore[operator]
                layers[name] = "on"
            except (OSError, ValueError, KeyError, AttributeError) as error:
                layers[name] = f"unavailable ({type(error).__name__}: {str(error)[:80]})"

    used = _address_space() if linux else 0
    attempt("namespaces", lambda: _unshare(libc), True)
    attempt("identity", _drop_identity, True)
    if linux:
        _prctl(libc, _PR_SET_DUMPABLE, 0)
        _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
        _prctl(libc, _PR_SET_PDEATHSIG, _SIGKILL)  # after the change of user, which clears it
    attempt("landlock", lambda: _landlock(libc), True)
    attempt("limits", lambda: _limits(used, memory_bytes, cpu_seconds), False)  # its NOFILE would stop Landlock
    attempt("seccomp", lambda: _seccomp(libc, request_fd, reply_fd), True)
    return layers


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _unshare(libc: ctypes.CDLL) -> None:
    flags = _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
    # without CAP_SYS_ADMIN (any user but root, and root in most containers) only inside a user namespace of its own
    if libc.unshare(flags) != 0 and libc.unshare(flags | _CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _drop_identity() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limits(used: int, memory_bytes: int, cpu_seconds: int) -> None:
    def cap(kind: int, value: int) -> None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_FSIZE, 0)
    cap(resource.RLIMIT_CPU, cpu_seconds)
    if sys.platform.startswith("linux"):
        cap(resource.RLIMIT_AS, used + memory_bytes)
        cap(resource.RLIMIT_MEMLOCK, 0)
    cap(resource.RLIMIT_NPROC, 0)
    cap(resource.RLIMIT_NOFILE, 0)  # what is open stays open, nothing else can be opened


def _landlock(libc: ctypes.CDLL) -> None:
    """Handle every right the running kernel knows and allow none: no path, no TCP port, no signal leaves the domain."""
    create, restrict = 444, 446  # the same numbers on every architecture
    if platform.machine() not in _TABLES:
        raise OSError(0, f"not tried on {platform.machine()}")
    abi = libc.syscall(ctypes.c_long(create), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if abi < 1:
        raise OSError(ctypes.get_errno(), "no Landlock in this kernel")
    filesystem = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    network = 3 if abi >= 4 else 0
    scope = 3 if abi >= 6 else 0
    fields = [filesystem] + ([network] if abi >= 4 else []) + ([scope] if abi >= 6 else [])
    attribute = struct.pack(f"<{len(fields)}Q", *fields)
    ruleset = libc.syscall(
        ctypes.c_long(create), ctypes.c_char_p(attribute), ctypes.c_size_t(len(attribute)), ctypes.c_uint(0)
    )
    if ruleset < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if libc.syscall(ctypes.c_long(restrict), ctypes.c_int(ruleset), ctypes.c_uint(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(ruleset)


def filter_program(machine: str, request_fd: int, reply_fd: int) -> bytes:
    """The seccomp filter as packed classic BPF: default KILL_PROCESS, a short allow list, EPERM for the curious."""
    table = _TABLES[machine]
    code: list[bytes] = []

    def emit(operation: int, value: int, yes: int = 0, no: int = 0) -> None:
        code.append(struct.pack("<HBBI", operation, yes, no, value))

    def only_fd(number: int, fd: int) -> None:
        emit(_JEQ, number, 0, 4)
        emit(_LOAD, 16)
        emit(_JEQ, fd, 0, 1)
        emit(_RET, _ALLOW)
        emit(_RET, _KILL)

    emit(_LOAD, 4)
    emit(_JEQ, table["audit"], 1, 0)  # type: ignore[arg-type]
    emit(_RET, _KILL)
    emit(_LOAD, 0)
    if machine == "x86_64":
        emit(_JGE, 0x40000000, 0, 1)  # the x32 numbers would pass under other names
        emit(_RET, _KILL)
    only_fd(table["read"], request_fd)  # type: ignore[arg-type]
    only_fd(table["write"], reply_fd)  # type: ignore[arg-type]
    for number in table["allow"].values():  # type: ignore[attr-defined]
        emit(_JEQ, number, 0, 1)
        emit(_RET, _ALLOW)
    for number in table["executable"].values():  # type: ignore[attr-defined]
        emit(_JEQ, number, 0, 4)
        emit(_LOAD, 32)  # third argument: protection
        emit(_JSET, _PROT_EXEC, 0, 1)
        emit(_RET, _KILL)
        emit(_RET, _ALLOW)
    for number in table["refuse"].values():  # type: ignore[attr-defined]
        emit(_JEQ, number, 0, 1)
        emit(_RET, _EPERM)
    emit(_RET, _KILL)
    return b"".join(code)


def _seccomp(libc: ctypes.CDLL, request_fd: int, reply_fd: int) -> None:
    program = filter_program(platform.machine(), request_fd, reply_fd)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    packed = Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(packed), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
