"""Every chapter is stored clean, and has the parts that a chapter has, in order."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The anatomy of a chapter: each is the start of a second-level heading, and they come in this order.
SECTIONS = (
    "The problem", "Predict", "The idea", "The build", "The measurement", "Turn the knob", "The cost",
    "Exercises", "Key takeaways", "Looking ahead", "Further reading",
)  # fmt: skip


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def headings(path: Path) -> list[tuple[int, str]]:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    text = re.sub(r"^(```+|:::+).*?^\1", "", text, flags=re.S | re.M)
    return [(len(marks), title.strip()) for marks, title in re.findall(r"^(#{1,6}) (.+)$", text, re.M)]


def test_table_of_contents_and_folder_agree() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    chapters = [f for f in files if f.startswith("notebooks/")]
    assert chapters == [f"notebooks/{path.stem}" for path in NOTEBOOKS]
    assert chapters


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_without_outputs(path: Path) -> None:
    nbformat.validate(read(path))
    for number, cell in enumerate(read(path).cells):
        if cell.cell_type == "code":
            assert not cell.outputs, f"cell {number} has outputs: run nbstripout {path.name}"
            assert cell.execution_count is None, f"cell {number} is numbered: run nbstripout {path.name}"
    assert "widgets" not in read(path).metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_kernel_is_the_plain_one(path: Path) -> None:
    kernel = read(path).metadata.kernelspec
    assert kernel.name == "python3"  # any other name exists on its author's machine only
    assert kernel.language == "python"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_parts_of_a_chapter_come_in_order(path: Path) -> None:
    found = headings(path)
    assert [level for level, _ in found].count(1) == 1
    assert found[0][0] == 1
    sections = [title for level, title in found if level == 2]
    where = []
    for section in SECTIONS:
        matches = [i for i, title in enumerate(sections) if title.lower().startswith(section.lower())]
        assert matches, f"no section that begins with {section!r} among {sections}"
        where.append(matches[0])
    assert where == sorted(where), f"sections out of order: {sections}"
