"""Access control lists: how they are read and changed so that the unprivileged user may pass directories, and no
other."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from unittest import SkipTest

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.embedded.postgres import (
    GROUP_OBJ,
    MASK,
    NO_ID,
    OTHER,
    USER,
    USER_OBJ,
    Entry,
    from_mode,
    insist_on_reading,
    let_pass,
    may_pass,
    pack_acl,
    unpack_acl,
    with_pass,
)
from project_service.embedded.supervised import Account, ChildFailed
from tests.temporary import temporary_directory

SOMEBODY = Account("somebody", 4001, 4002)
modes = st.integers(0, 0o777)


class Lists(TestCase):
    def test_a_mode_as_an_access_control_list(self) -> None:
        self.assertEqual(
            from_mode(0o40750),
            (Entry(USER_OBJ, NO_ID, 7), Entry(GROUP_OBJ, NO_ID, 5), Entry(OTHER, NO_ID, 0)),
        )

    @given(modes)
    def test_a_packed_list_is_unpacked(self, mode: int) -> None:
        entries = with_pass(from_mode(mode), 4001)
        self.assertEqual(unpack_acl(pack_acl(entries)), entries)

    def test_malformed_lists_are_refused(self) -> None:
        for rubbish in (b"", b"\x02\0\0\0abc", b"\x09\0\0\0"):
            self.assertRaises(ValueError, unpack_acl, rubbish)

    @given(modes, st.sampled_from([0, 4001]), st.sampled_from([0, 4002]))
    def test_who_may_pass_by_mode(self, mode: int, owner: int, group: int) -> None:
        entries = from_mode(mode)
        bit = 0o100 if owner == SOMEBODY.uid else 0o010 if group == SOMEBODY.gid else 0o001
        self.assertEqual(may_pass(entries, owner, group, SOMEBODY), bool(mode & bit))

    @given(modes)
    def test_the_given_user_may_pass_and_others_gain_nothing(self, mode: int) -> None:
        before, after = from_mode(mode), with_pass(from_mode(mode), SOMEBODY.uid)
        self.assertTrue(may_pass(after, 0, 0, SOMEBODY))
        for other in (Account("other", 5001, 5002), Account("of the group", 5001, 0)):
            self.assertEqual(may_pass(after, 0, 0, other), may_pass(before, 0, 0, other))
        mine = next(entry for entry in after if entry.tag == USER)
        self.assertEqual(mine.permissions, 1)

    def test_permissions_the_user_had_are_kept(self) -> None:
        entries = with_pass(from_mode(0o700), 4001)
        reading = tuple(Entry(one.tag, one.identifier, 4) if one.tag == USER else one for one in entries)
        again = with_pass(reading, 4001)
        self.assertEqual([one.permissions for one in again if one.tag == USER], [5])
        self.assertEqual(len([one for one in again if one.tag == MASK]), 1)


class ForReal(TestCase):
    """Tests with the kernel. They need root and a file system with access control lists."""

    def test_a_private_directory_is_opened_for_one_user_only(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root can become another user")
        closed = temporary_directory(self)
        inside = closed / "inside"
        inside.mkdir(mode=0o711)
        (inside / "file").write_text("readable")
        (inside / "file").chmod(0o644)
        closed.chmod(0o700)
        self.assertFalse(self._reads(4001, inside / "file"))
        self.assertEqual(let_pass(inside, SOMEBODY), [closed])
        self.assertEqual(let_pass(inside, SOMEBODY), [])
        self.assertTrue(self._reads(4001, inside / "file"))
        self.assertFalse(self._lists(4001, closed))
        self.assertFalse(self._reads(4005, inside / "file"))
        self.assertEqual(stat.S_IMODE(closed.stat().st_mode) & 0o007, 0)

    def test_files_closed_by_a_umask_are_refused_with_advice_that_works(self) -> None:
        package = temporary_directory(self) / "it's"
        share = package / "share"
        share.mkdir(parents=True)
        for mode, fine in ((0o755, True), (0o751, False), (0o700, False)):
            share.chmod(mode)
            if fine:
                insist_on_reading(share, package, SOMEBODY)
                continue
            refused = str(self.assertRaises(ChildFailed, insist_on_reading, share, package, SOMEBODY))
            self.assertIn(f"the user somebody, who may not read its files in {share}", refused)
            [advice] = re.findall("`(.+)`", refused)
            subprocess.run(advice, shell=True, check=True)  # as the operator would
            insist_on_reading(share, package, SOMEBODY)

    def _reads(self, uid: int, path: Path) -> bool:
        return self._as(uid, "cat", path)

    def _lists(self, uid: int, path: Path) -> bool:
        return self._as(uid, "ls", path)

    def _as(self, uid: int, program: str, path: Path) -> bool:
        done = subprocess.run(
            [program, str(path)], user=uid, group=uid, extra_groups=[], capture_output=True, check=False
        )
        return done.returncode == 0
