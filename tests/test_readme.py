"""The README says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sruexport.layers import FAMILIES, Family

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_its_row(family: Family) -> None:
    options = ", ".join(option.name for option in family.options) or "-"
    row = f"| `{family.name}` | {family.title} | {', '.join(family.recurrences)} | {options} |"
    assert row in README, f"put this row into the README's table of families:\n{row}"


def test_the_two_commands_exist() -> None:
    for script in ("scripts/demo", "scripts/test"):
        assert script in README
        assert (Path(__file__).parent.parent / script).stat().st_mode & 0o111
