"""The system calls that a confined trainer may not make, and the seccomp filter that refuses them.

The list goes by families: everything with which a process reaches the network, other processes, memory that processes
share, other files' attributes, or the machine.  Calls that are newer than this list are refused as if the kernel did
not have them, so the C library does without.
"""

from __future__ import annotations

import os
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as the kernel names them to a filter
PLACES = {"x86_64": 0, "aarch64": 1}  # in the pairs below; -1: that architecture has no such call
NEWEST = 462  # mseal, Linux 6.10

# fmt: off
# The numbers come from the kernel's headers; a test compares them.
REFUSED: dict[str, dict[str, tuple[int, int]]] = {
    "sockets": {
        "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
        "accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211),
        "recvmsg": (47, 212), "sendmmsg": (307, 269), "recvmmsg": (299, 243), "shutdown": (48, 210),
        "getsockname": (51, 204), "getpeername": (52, 205), "setsockopt": (54, 208), "getsockopt": (55, 209),
    },
    # With a session or a process group of its own, a trainer's child would outlive the trainer.
    # tkill names a thread, and the filter cannot see the process of a thread. glibc has not used it since 2.30.
    "other processes": {
        "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "ptrace": (101, 117),
        "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
        "process_mrelease": (448, 448), "kcmp": (312, 272), "perf_event_open": (298, 241), "migrate_pages": (256, 238),
        "get_robust_list": (274, 100), "setsid": (112, 157), "setpgid": (109, 154),
    },
    "shared memory, semaphores and queues": {
        "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
        "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
        "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
        "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    },
    # Landlock knows opening, making and removing, and before its version 3 not even truncate().
    "attributes of files, and watching them": {
        "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
        "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1),
        "futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
        "truncate": (76, 45), "mknod": (133, -1), "mknodat": (259, 33), "inotify_init": (253, -1),
        "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28),
        "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
    },
    # Most of these need rights that the server's account does not have; the others have had holes in the kernel.
    "the kernel and the machine": {
        "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
        "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282),
        "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
        "umount2": (166, 39), "mount_setattr": (442, 442), "move_mount": (429, 429), "open_tree": (428, 428),
        "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
        "statmount": (457, 457), "listmount": (458, 458), "quotactl": (179, 60), "quotactl_fd": (443, 443),
        "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "kexec_load": (246, 104),
        "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
        "delete_module": (176, 106), "create_module": (174, -1), "acct": (163, 89), "settimeofday": (164, 170),
        "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
        "setdomainname": (171, 162), "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, -1), "ioperm": (173, -1),
        "modify_ldt": (154, -1), "uselib": (134, -1), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
        "lsm_set_self_attr": (460, 460),
    },
}

# These name a process by their first argument.  It must be the trainer itself; 0 means the caller, where it is allowed.
# A process may send signals to itself (abort() does).
OF_ITSELF: dict[str, tuple[int, int, bool]] = {
    "kill": (62, 129, False), "tgkill": (234, 131, False), "prlimit64": (302, 261, True),
    "sched_setaffinity": (203, 122, True), "sched_setscheduler": (144, 119, True), "sched_setparam": (142, 118, True),
    "sched_setattr": (314, 274, True), "move_pages": (279, 239, True),
}
# These say by their first argument of what sort the second is: a process, a group of processes, or all of a user's.
OF_SORTS: dict[str, tuple[int, int, int]] = {"setpriority": (141, 140, 0), "ioprio_set": (251, 30, 1)}
CLONE, CLONE3, FCNTL, IOCTL = (56, 220), (435, 435), (72, 25), (16, 29)
# fmt: on

# CUDA cannot start without a Unix socket that it listens on, for processes that would share the GPU's memory with it.
# With a GPU these calls are allowed, and still lead to no other process: nothing can be connected, accepted, sent or
# received. (Where there is Landlock, such a socket can have no name among the files.)
SOCKETS_ON_GPU = ("socket", "bind", "listen", "setsockopt", "getsockopt", "getsockname")
UNIX, STREAM, SEQUENCED = 1, 1, 5  # a family of sockets, and types of them
TYPE = 0xF  # the bits of a type that are not flags

# New namespaces, with rights of their own in them; children of the trainer's parent.
CLONE_REFUSED = 0x7E020000 | 0x8000
# They have signals sent (SETOWN, SETSIG, SETOWN_EX, NOTIFY), or keep others from opening a file (SETLEASE).
FCNTL_REFUSED = (8, 10, 15, 1024, 1026)
IOCTL_REFUSED = (0x8900, 0x89FF)  # the first and the last of those of sockets, which can have signals sent as well

ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # the latter with an errno in its low half
EPERM, ENOSYS, ECONNREFUSED = 1, 38, 111
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # of classic BPF, on 32-bit words
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24  # where they are in what the filter looks at

Line = tuple[int, int, int, int]  # code, lines to skip if true, if false, constant
PERMIT, FORBID, MISSING, NOBODY = (
    (RETURN, 0, 0, ALLOW),
    *((RETURN, 0, 0, REFUSE | error) for error in (EPERM, ENOSYS, ECONNREFUSED)),
)


def refused(machine: str, gpu: bool = False) -> dict[str, int]:
    """The calls that are refused whatever their arguments, with their numbers on this machine."""
    pairs = {name: pair for family in REFUSED.values() for name, pair in family.items()}
    allowed = SOCKETS_ON_GPU if gpu else ()
    return {
        name: pair[PLACES[machine]]
        for name, pair in pairs.items()
        if pair[PLACES[machine]] >= 0 and name not in allowed
    }


def compiled_filter(machine: str, gpu: bool) -> bytes:
    """The filter for this process, in the kernel's form."""
    return b"".join(struct.pack("=HBBI", *line) for line in seccomp_filter(machine, os.getpid(), gpu))


def seccomp_filter(machine: str, me: int, gpu: bool = False) -> list[Line]:
    place = PLACES[machine]
    lines: list[Line] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        MISSING,  # the 32-bit calls have other numbers
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, NEWEST + 1),  # those of x86-64 with 32-bit pointers are among them
        MISSING,
    ]
    sockets = REFUSED["sockets"]
    if gpu:
        lines += for_call(sockets["connect"][place], [NOBODY])  # what is optional is then done without
        kinds = [(LOAD, 0, 0, SECOND), (AND, 0, 0, TYPE), *unless((STREAM, SEQUENCED))]
        lines += for_call(sockets["socket"][place], [(LOAD, 0, 0, FIRST), (EQUAL, 1, 0, UNIX), FORBID, *kinds])
    for number in refused(machine, gpu).values():
        lines += [(EQUAL, 0, 1, number), FORBID]
    for *numbers, zero in OF_ITSELF.values():
        allowed = (me, 0) if zero else (me,)
        lines += for_call(numbers[place], [(LOAD, 0, 0, FIRST), *unless(allowed)])
    for *numbers, process in OF_SORTS.values():
        lines += for_call(
            numbers[place],
            [(LOAD, 0, 0, FIRST), (EQUAL, 1, 0, process), FORBID, (LOAD, 0, 0, SECOND), *unless((me, 0))],
        )
    commands = [line for command in FCNTL_REFUSED for line in ((EQUAL, 0, 1, command), FORBID)]
    lines += for_call(FCNTL[place], [(LOAD, 0, 0, SECOND), *commands, PERMIT])
    first, last = IOCTL_REFUSED
    of_sockets = [(AT_LEAST, 0, 2, first), (AT_LEAST, 1, 0, last + 1), FORBID]
    lines += for_call(IOCTL[place], [(LOAD, 0, 0, SECOND), *of_sockets, PERMIT])
    lines += for_call(CLONE[place], [(LOAD, 0, 0, FIRST), (ANY_BIT, 0, 1, CLONE_REFUSED), FORBID, PERMIT])
    # Its flags are in memory, where a filter cannot look. The C library uses clone() if there is no clone3().
    lines += for_call(CLONE3[place], [MISSING])
    return [*lines, PERMIT]


def for_call(number: int, lines: list[Line]) -> list[Line]:
    """Lines for one call, which end in a decision."""
    return [(EQUAL, 0, len(lines), number), *lines]


def unless(allowed: tuple[int, ...]) -> list[Line]:
    """Refuse all values of an argument but these."""
    return [line for value in allowed for line in ((EQUAL, 0, 1, value), PERMIT)] + [FORBID]
