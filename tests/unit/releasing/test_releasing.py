"""The parts of a release that need neither git nor pip."""

from __future__ import annotations

import io
import tarfile
from unittest import TestCase

from releasing.__main__ import checked_version, version_after
from releasing.bill import licences, table
from releasing.building import Unfit, normalised


def archive(*names: str, mtime: int = 0, uid: int = 0, mode: int = 0o644) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.mode = len(name), mtime, uid, mode
            member.uname = f"user{uid}"
            files.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def component(name: str, *choices: object) -> dict[str, object]:
    return {"name": name, "version": "1", "licenses": list(choices)}


class Versions(TestCase):
    def test_one_comes_after_the_present_one_and_has_three_numbers(self) -> None:
        self.assertEqual(str(checked_version("0.2.0", "0.2.0.dev0")), "0.2.0")
        for wrong in ("0.2.0", "0.1.9", "0.3", "0.3.0rc1", "0.3.0.dev1", "v0.3.0", "00.3.0", "next", ""):
            with self.assertRaises(Unfit, msg=wrong):
                checked_version(wrong, "0.2.0")

    def test_the_branch_goes_on_to_the_next_minor_one(self) -> None:
        self.assertEqual(version_after(checked_version("1.2.3", "1.2.2")), "1.3.0.dev0")


class SourceDistributions(TestCase):
    def test_what_differs_between_machines_is_not_in_them(self) -> None:
        here = normalised(archive("a", "b", mtime=1, uid=7), 1000)
        there = normalised(archive("b", "a", mtime=2, uid=8, mode=0o600), 1000)
        self.assertEqual(here, there)

    def test_contents_names_and_whether_a_file_runs_stay(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(normalised(archive("x/run", mode=0o700), 1000))) as files:
            (member,) = files.getmembers()
            opened = files.extractfile(member)
            assert opened is not None
            self.assertEqual((member.name, member.mode, member.mtime), ("x/run", 0o755, 1000))
            self.assertEqual(opened.read(), b"x/run")

    def test_other_contents_are_other_bytes(self) -> None:
        self.assertNotEqual(normalised(archive("a"), 1000), normalised(archive("b"), 1000))
        self.assertNotEqual(normalised(archive("a"), 1000), normalised(archive("a"), 1001))


class Licences(TestCase):
    def test_an_expression_says_most_then_an_id_then_a_name(self) -> None:
        named, by_id = {"license": {"name": "MIT License\n\nPermission"}}, {"license": {"id": "MIT"}}
        bill = {
            "components": [
                component("b", named, by_id, {"expression": "MIT OR Apache-2.0"}),
                component("A", named, by_id),
                component("c", named),
            ]
        }
        found = licences(bill, {})
        self.assertEqual(
            list(found.items()), [("A 1", "MIT"), ("b 1", "MIT OR Apache-2.0"), ("c 1", "MIT License")]
        )
        self.assertEqual(table(found).splitlines()[0], "A 1  MIT")

    def test_none_stops_the_release_unless_somebody_has_looked(self) -> None:
        bill = {"components": [component("odd"), component("fine", {"expression": "MIT"})]}
        with self.assertRaisesRegex(Unfit, "odd 1:"):
            licences(bill, {})
        self.assertEqual(licences(bill, {"odd": "BSD-3-Clause"})["odd 1"], "BSD-3-Clause")
