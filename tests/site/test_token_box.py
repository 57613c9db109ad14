"""Chapter 4's page: its text box tokenises as the package does, and its replay is the detokeniser's."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import nbformat
import pytest
from built import ROOT, Watched
from playwright.sync_api import Page

from servelib.notebook.replay import replay_steps
from servelib.text.bpe import PIECE, BytePairs, train
from servelib.text.tokenizer import Tokenizer

Visit = Callable[..., AbstractContextManager[Watched]]
CHAPTER = "ch04_text_in_text_out"
LETTERS = (
    " \n\t.,:;!?'\"()the reader sends tokens serverÀÉßé\u0301€世界नम\u200d👩👍🏳\ufeff"
    "\u0085\u00a0\u2028\x00\x7f\r|<>"
)
BROKEN = "\ufffd"


@pytest.fixture(scope="module")
def seen(site: Path, visit: Visit) -> Iterator[Watched]:
    path = site / "notebooks" / f"{CHAPTER}.html"
    assert path.exists(), "the book was built without chapter 4"
    with visit(path.as_uri()) as watched:
        yield watched
        assert watched.problems == []


@pytest.fixture(scope="module")
def pairs() -> BytePairs:
    """The table, learned here from the text in the chapter's cell."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{CHAPTER}.ipynb", 4)
    source = next(cell.source for cell in notebook.cells if cell.source.startswith('TEXT = """'))
    found = re.search(r"merges=(\d+)", source)
    assert found
    text = next(n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return BytePairs(train(text, int(found[1])))


def data_of(page: Page, selector: str) -> dict:
    """What the notebook's run left in the page; the script has taken the box's away by now."""
    html = Path(page.url.removeprefix("file://")).read_text()
    found = re.search(rf'class="{selector}"[^>]*><script type="application/json">(.*?)</script>', html)
    assert found
    return json.loads(found[1])


def fuzz(pairs: BytePairs) -> list[str]:
    rng = random.Random(4)
    tokens = [t.decode() for t in pairs.ids if len(t) > 1]
    letters = ["".join(rng.choices(LETTERS, k=rng.randint(0, 40))) for _ in range(400)]
    words = ["".join(rng.choices([*tokens, *LETTERS], k=rng.randint(1, 25))) for _ in range(400)]
    anything = [chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(200)]
    return ["", *letters, *words, *anything]


def test_the_table_in_the_page_is_the_one_that_the_cell_learns(seen: Watched, pairs: BytePairs) -> None:
    data = data_of(seen.page, "sl-tokens")
    assert data["pattern"] == PIECE
    assert [bytes.fromhex(token) for token in data["table"]] == [t for t in pairs.ids if len(t) > 1]
    assert len(data["table"]) > 50


def test_the_box_tokenises_as_the_package_does(seen: Watched, pairs: BytePairs) -> None:
    texts = fuzz(pairs)
    encode = "texts => JSON.stringify(texts.map(document.querySelector('.sl-tokens').servelibEncode))"
    theirs = json.loads(seen.page.evaluate(encode, texts))  # one string: many small lists travel slowly
    for text, ids in zip(texts, theirs, strict=True):
        assert tuple(ids) == pairs.encode(text), repr(text)


def test_typing_shows_the_pieces_and_says_how_many(seen: Watched, pairs: BytePairs) -> None:
    box = seen.page.get_by_label("Type a text")
    box.fill("the reader\n€")
    items = seen.page.get_by_role("list", name="Tokens").get_by_role("listitem").all_inner_texts()
    ids = [item.split()[-1] for item in items]
    assert ids == [str(token_id) for token_id in pairs.encode("the reader\n€")]
    assert [item.split()[0] for item in items][-4:] == ["↵", "E2", "82", "AC"]
    said = seen.page.locator(".sl-tokens output")
    assert said.inner_text().startswith(f"{len(items)} tokens for 12 characters, 14 bytes")
    box.press("End")
    box.press("Backspace")
    assert said.inner_text().startswith(f"{len(items) - 3} tokens for 11 characters, 11 bytes")
    box.fill("<img src=x onerror=alert(1)>")
    assert seen.page.locator(".sl-pieces img").count() == 0
    box.fill("")
    assert said.inner_text() == "0 tokens for 0 characters, 0 bytes"


def test_the_replay_goes_through_the_stream_by_keyboard(seen: Watched) -> None:
    page = seen.page
    steps = data_of(page, "sl-replay")["steps"]
    correct_text = "".join(step["correct"] for step in steps)
    tokenizer = Tokenizer()
    own = replay_steps(tokenizer, tokenizer.encode(correct_text))
    assert [(s.naive, s.correct, s.held) for s in own] == [
        (s["naive"], s["correct"], s["held"]) for s in steps
    ]

    knob = page.get_by_label("tokens received")
    naive, correct = page.locator(".sl-replay-texts p").all()
    knob.press("Home")
    shown = []
    for step in own:
        value = knob.get_attribute("aria-valuetext") or ""
        shown.append((value, naive.text_content() or "", correct.text_content() or ""))
        assert (step.held or "nothing") + " held back" in value
        knob.press("ArrowRight")
    assert [text for _, text, _ in shown] == [*itertools.accumulate(step.naive for step in own)]
    assert [text for _, _, text in shown] == [*itertools.accumulate(step.correct for step in own)]
    assert shown[-1][2] == correct_text
    assert all(BROKEN not in text for _, _, text in shown)
    assert shown[-1][1].count(BROKEN) == page.locator(".sl-replay mark").count() > 25
    assert len({value for value, _, _ in shown}) == len(shown)


def test_without_scripts_the_example_and_the_table_are_there(browser, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "notebooks" / f"{CHAPTER}.html").as_uri())
    assert page.locator(".sl-tokens li").count() > 10
    assert page.locator(".sl-replay tbody tr").count() > 30
    context.close()
