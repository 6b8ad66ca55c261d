"""Which system calls a process for pictures may make, by the BPF program that decides it."""

from __future__ import annotations

import errno

from twisted.trial.unittest import SynchronousTestCase

from project_service.storage.pictures import process as image_process
from project_service.storage.pictures.process import _ALLOW, _ERRNO, _KILL, _MACHINES, _REFUSED, filter_of

PID = 4711
X86_64, ARM64 = _MACHINES.values()
REFUSED = _ERRNO | errno.EPERM
# What reading and decoding a picture takes: read, write, mmap, munmap, brk, futex, exit_group.
NEEDED = {X86_64: (0, 1, 9, 11, 12, 202, 231), ARM64: (63, 64, 222, 215, 214, 98, 94)}


def decided(machine: tuple[int, int], number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the program for ``machine`` returns, as the kernel runs it."""
    program = filter_of(*machine, PID)
    given = {0: number, 4: machine[0] if architecture is None else architecture, 16: argument}
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        assert max(if_true, if_false) < 256
        if code == image_process._RETURN:
            return value
        if code == image_process._LOAD:
            loaded, at = given[value], at + 1
            continue
        holds = {
            image_process._IF_EQUAL: loaded == value,
            image_process._IF_AT_LEAST: loaded >= value,
            image_process._IF_BIT: bool(loaded & value),
        }[code]
        at += 1 + (if_true if holds else if_false)


class Filter(SynchronousTestCase):
    def test_what_is_listed_is_refused_and_what_pictures_need_is_not(self) -> None:
        for machine in (X86_64, ARM64):
            for name, numbers in _REFUSED.items():
                number = numbers[machine[1]]
                if number is not None:
                    self.assertEqual(decided(machine, number), REFUSED, name)
            for number in NEEDED[machine]:
                self.assertEqual(decided(machine, number), _ALLOW, number)

    def test_threads_are_made_and_processes_are_not(self) -> None:
        for machine in (X86_64, ARM64):
            clone, clone3 = image_process._CLONE[machine[1]], image_process._CLONE3[machine[1]]
            # What glibc asks for a thread, and for a process.
            self.assertEqual(decided(machine, clone, 0x3D0F00), _ALLOW)
            self.assertEqual(decided(machine, clone, 0x1200011), REFUSED)
            self.assertEqual(decided(machine, clone3), _ERRNO | errno.ENOSYS)

    def test_signals_and_limits_are_for_itself_alone(self) -> None:
        for machine in (X86_64, ARM64):
            tgkill, prlimit = image_process._TGKILL[machine[1]], image_process._PRLIMIT[machine[1]]
            for number, own in ((tgkill, PID), (prlimit, 0)):
                self.assertEqual(decided(machine, number, own), _ALLOW)
                for other in (1, PID + 1, PID - 1):
                    self.assertEqual(decided(machine, number, other), REFUSED)

    def test_numbers_of_another_kind_end_the_process(self) -> None:
        """On x86-64 those of 32 bits and of x32 name the same calls by other numbers."""
        self.assertEqual(decided(X86_64, 5, architecture=0x40000003), _KILL)
        self.assertEqual(decided(X86_64, 0x40000000 | 2), _KILL)
        self.assertEqual(decided(ARM64, 5, architecture=0x40000028), _KILL)
