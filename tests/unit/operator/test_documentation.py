"""What docs/operator.md claims is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_test_that_the_documentation_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "operator.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in sources} == set()
