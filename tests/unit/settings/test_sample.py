"""The sample configuration is in step with the settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
from twisted.trial.unittest import TestCase

from project_service.settings.model import INNER_SECTIONS, SECTIONS, Settings, Smtp, StageDatabase
from project_service.settings.reading import Source

SAMPLE = Path(__file__).parents[3] / "etc" / "project-service.toml"


class Sample(TestCase):
    """etc/project-service.toml has every key, commented out, with its default."""

    def documented(self) -> dict[str, Any]:
        """The sample with its keys uncommented."""
        lines = SAMPLE.read_text("utf-8").splitlines()
        live = [re.sub(r"^#(\[|[a-z0-9_]+ =)", r"\1", line) for line in lines]
        return tomllib.loads("\n".join(live))

    def test_it_is_valid_as_it_stands(self) -> None:
        Source(SAMPLE, data_dir=Path("/data")).read({})

    def test_it_has_every_key_with_its_default_and_no_other(self) -> None:
        tree = self.documented()
        for name, section in SECTIONS.items():
            self.compare(name, section, tree[name])
        self.compare("stages", StageDatabase, tree["stages"]["dev"]["databases"]["main"])
        self.assertEqual(set(tree), {field.name for field in attrs.fields(Settings)} - {"origins"})

    def test_settings_that_a_reload_takes_over_are_marked(self) -> None:
        marked = set()
        for section, text in re.findall(
            r"^#?\[([\w.]+)\]\n(.*?)(?=^#?\[|\Z)", SAMPLE.read_text("utf-8"), re.M | re.S
        ):
            # A comment, and the keys that it is about.
            for comment, keys in re.findall(r"((?:^# .*\n)+)((?:^#[a-z0-9_]+ = .*\n)+)", text, re.M):
                if "SIGHUP" in comment:
                    marked |= {f"{section}.{key}" for key in re.findall(r"^#([a-z0-9_]+) =", keys, re.M)}
        old = Settings()
        reloads = {
            f"{name}.{one.name}"
            for name, section in SECTIONS.items()
            for one in attrs.fields(section)
            if "kind" in one.metadata and _taken_over(old, name, one.name)
        }
        for name, inner in INNER_SECTIONS.items():
            # Taken over as a whole.
            outer, _, within = name.removesuffix(".NAME").partition(".")
            self.assertTrue(_taken_over(old, outer, within), name)
            self.assertTrue(all(one.metadata["reloads"] for one in attrs.fields(inner)), name)
            reloads |= {f"{name.replace('NAME', 'google')}.{one.name}" for one in attrs.fields(inner)}
        self.assertEqual(marked, reloads)

    def test_confirm_email_waits_for_the_restart_that_brings_the_mail_server(self) -> None:
        """Otherwise nobody could sign up until the restart."""
        old = Settings()
        new = attrs.evolve(
            old,
            smtp=attrs.evolve(old.smtp, host="mail.test", sender="a@mail.test"),
            auth=attrs.evolve(old.auth, confirm_email=True, password_min_bytes=9),
        )
        current = old.changed_without_restart(new)
        self.assertEqual((current.auth.confirm_email, current.auth.password_min_bytes), (False, 9))
        waiting = old.waiting_for_restart(new)
        self.assertEqual(waiting, ["auth.confirm_email", "smtp.host", "smtp.sender"])

    def test_confirm_email_needs_no_restart_where_mails_go_to_a_folder(self) -> None:
        old = Settings(smtp=Smtp(mail_dir="/m"))
        new = attrs.evolve(
            old,
            smtp=Smtp(host="mail.test", sender="a@mail.test", mail_dir="/m"),
            auth=attrs.evolve(old.auth, confirm_email=True),
        )
        current = old.changed_without_restart(new)
        self.assertEqual((current.auth.confirm_email, current.smtp.host), (True, None))

    def compare(self, name: str, cls: type, documented: dict[str, Any]) -> None:
        fields = {field.name: field for field in attrs.fields(cls)}
        self.assertEqual(set(documented), set(fields), name)
        for key, value in documented.items():
            if "section" in fields[key].metadata:
                self.compare(f"{name}.{key}", fields[key].metadata["section"], value)
                continue
            if "tables" in fields[key].metadata:
                for named, of_name in value.items():
                    self.compare(f"{name}.{key}.{named}", fields[key].metadata["tables"], of_name)
                continue
            default = fields[key].default
            if default is None:
                continue  # the sample shows an example of what may be set
            if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class at run time
                default = default.factory()
            read = fields[key].metadata["kind"](value)
            self.assertEqual(read, default, f"{name}.{key}")


def _taken_over(old: Settings, section: str, name: str) -> bool:
    """Whether a changed value of a setting is in use after a reload."""
    other = object()
    new = attrs.evolve(old, **{section: attrs.evolve(getattr(old, section), **{name: other})})
    return getattr(getattr(old.changed_without_restart(new), section), name) is other
