"""What a release consists of: a bill of materials (CycloneDX, https://cyclonedx.org) and the licences in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from releasing.building import Unfit, run

# Licences that packages have but do not name in their metadata, as their files say.
STATED: Mapping[str, str] = {}


def bill_of(python: Path, cyclonedx: Path, made_at: int) -> dict[str, Any]:
    """The bill of materials of an environment, valid by the schema of CycloneDX 1.6."""
    argv = [str(cyclonedx), "environment", "--output-reproducible", "--gather-license-texts", str(python)]
    bill: dict[str, Any] = json.loads(run(argv, python.parent, SOURCE_DATE_EPOCH=str(made_at)))
    return bill


def licences(bill: Mapping[str, Any], stated: Mapping[str, str] = STATED) -> dict[str, str]:
    """The licence of each component, by ``name version``. Raises ``Unfit`` for those that name none."""
    found: dict[str, str] = {}
    for component in bill["components"]:
        name = component["name"]
        found[f"{name} {component['version']}"] = _licence(component) or stated.get(name, "")
    unknown = [name for name, licence in found.items() if not licence]
    if unknown:
        raise Unfit(
            f"no licence is known of {', '.join(unknown)}: look into their files and add them to STATED"
        )
    return dict(sorted(found.items(), key=lambda pair: pair[0].lower()))


def _licence(component: Mapping[str, Any]) -> str:
    """As the component's authors declare it. An SPDX expression says most, then SPDX's ids, then names."""
    choices = component.get("licenses", ())
    for kind in ("expression", "id", "name"):
        texts = [choice.get(kind) or choice.get("license", {}).get(kind) for choice in choices]
        # A name may be the text of a whole licence, whose first line says which.
        told = [text.strip().splitlines()[0] for text in texts if text and text.strip()]
        if told:
            return ", ".join(dict.fromkeys(told))
    return ""


def table(licences: Mapping[str, str]) -> str:
    """Two columns of text."""
    width = max(map(len, licences))
    return "".join(f"{name:{width}}  {licence}\n" for name, licence in licences.items())
