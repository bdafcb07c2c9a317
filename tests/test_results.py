"""The results that the documents show: their file, and that pages and charts are of it."""

from pathlib import Path
from types import ModuleType

import pytest
from helpers import load_script

from deconv_ext.cli import reports
from deconv_ext.workloads import ALL_CASES, suite_of

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "results").glob("*.csv"))
pytestmark = pytest.mark.skipif(not FILES, reason="no results beside these tests")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module docs/generate.py."""
    return load_script(ROOT / "docs" / "generate.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_are_of_the_suites(path: Path) -> None:
    """Every layer has the shape that its suite gives it; nothing was wrong; the head names what was measured with."""
    report = reports.read_csv(path)
    shapes = {one["name"]: one for one in ALL_CASES}
    assert {"commit", "date", "gpu", "driver", "torch", "cudnn", "copy GB/s"} <= report.head.keys()
    assert not [row for row in report.rows if row.failed]
    assert len({row.setting for row in report.rows}) == len(report.rows)
    for row in report.rows:
        if row.suite != reports.TRAINING:
            assert (row.suite, row.layer) == (suite_of(row.case), shapes[row.case])


def test_pages_and_charts_are_of_the_results(generate: ModuleType) -> None:
    assert generate.stale(generate.Results(generate.newest())) == []


def test_older_charts_are_noticed(generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number in the results makes every chart and page old."""
    path = tmp_path / "changed.csv"
    head, _, rows = FILES[0].read_text().partition("suite,")
    path.write_text(head.replace("# commit: ", "# commit: other ") + "suite," + rows)
    stale = generate.stale(generate.Results(path))
    assert {"README.md", "docs/performance.md", "docs/generated/speedup.svg", "docs/generated/sweep.svg"} <= set(stale)
