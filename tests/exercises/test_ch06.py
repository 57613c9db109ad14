"""The checks of chapter 6: right admission loops pass, and each usual mistake is explained."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from servelib.exercises.ch06 import check_admission, check_waste, static_waste

CHAPTER = Path(__file__).parents[2] / "notebooks" / "ch06_batching.ipynb"


def solution(waiting, running, free, limits):
    """The folded solution of the chapter, word for word but for its name."""
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs:
        if waiting[0].prompt_tokens > left:
            break
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def counts_first(waiting, running, free, limits):
    """Works out how many, then moves them; takes the highest slot: as right."""
    left, n = limits.max_num_batched_tokens - len(running), 0
    room = min(len(free), limits.max_num_seqs - len(running), len(waiting))
    while n < room and (left := left - waiting[n].prompt_tokens) >= 0:
        n += 1
    admitted = [waiting.popleft() for _ in range(n)]
    for request in admitted:
        running[request.request_id] = free.pop()
    return admitted


def returns_early(waiting, running, free, limits):
    tokens = len(running)
    for request in list(waiting):
        tokens += request.prompt_tokens
        if not free or len(running) == limits.max_num_seqs or tokens > limits.max_num_batched_tokens:
            return
        waiting.remove(request)
        running[request.request_id] = free[0]
        del free[0]


@pytest.mark.parametrize("admit", [solution, counts_first, returns_early])
def test_right_loops_of_several_styles_pass(admit):
    assert len(check_admission(admit).require().results) == 12


def nothing(waiting, running, free, limits):
    pass


def untouched(waiting, running, free, limits):
    raise NotImplementedError


def newest_first(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs and waiting[-1].prompt_tokens <= left:
        request = waiting.pop()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def one_a_step(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    if waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        running[waiting.popleft().request_id] = free.pop(0)


def static(waiting, running, free, limits):
    if not running:
        solution(waiting, running, free, limits)


def skips_the_large(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    for request in list(waiting):
        if free and len(running) < limits.max_num_seqs and request.prompt_tokens <= left:
            waiting.remove(request)
            left -= request.prompt_tokens
            running[request.request_id] = free.pop(0)


def back_of_the_queue(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    for _ in range(len(waiting)):
        request = waiting.popleft()
        if free and len(running) < limits.max_num_seqs and request.prompt_tokens <= left:
            left -= request.prompt_tokens
            running[request.request_id] = free.pop(0)
        else:
            waiting.append(request)


def no_budget(waiting, running, free, limits):
    while waiting and free and len(running) < limits.max_num_seqs:
        running[waiting.popleft().request_id] = free.pop(0)


def budget_never_shrinks(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        running[waiting.popleft().request_id] = free.pop(0)


def forgets_the_running(waiting, running, free, limits):
    left = limits.max_num_batched_tokens
    while waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def counts_the_new_twice(waiting, running, free, limits):
    prompts = 0
    while waiting and free and len(running) < limits.max_num_seqs:
        if prompts + len(running) + waiting[0].prompt_tokens > limits.max_num_batched_tokens:
            break
        request = waiting.popleft()
        prompts += request.prompt_tokens
        running[request.request_id] = free.pop(0)


def too_strict(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens < left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def one_too_many(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) <= limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def looks_once(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    if len(running) < limits.max_num_seqs:
        while waiting and free and waiting[0].prompt_tokens <= left:
            request = waiting.popleft()
            left -= request.prompt_tokens
            running[request.request_id] = free.pop(0)


def forgets_the_slots(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def shares_a_slot(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = free[0]


def guesses_the_slot(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs and waiting[0].prompt_tokens <= left:
        request = waiting.popleft()
        left -= request.prompt_tokens
        slot = len(running)
        if slot in free:
            free.remove(slot)
        running[request.request_id] = slot


def loses_the_head(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs:
        request = waiting.popleft()
        if request.prompt_tokens > left:
            break
        left -= request.prompt_tokens
        running[request.request_id] = free.pop(0)


def loses_a_slot(waiting, running, free, limits):
    left = limits.max_num_batched_tokens - len(running)
    while waiting and free and len(running) < limits.max_num_seqs:
        slot = free.pop(0)
        if waiting[0].prompt_tokens > left:
            break
        request = waiting.popleft()
        left -= request.prompt_tokens
        running[request.request_id] = slot


def stays_in_the_queue(waiting, running, free, limits):
    for request in waiting:
        if free:
            running[request.request_id] = free.pop(0)


def keys_are_requests(waiting, running, free, limits):
    while waiting and free:
        running[waiting.popleft()] = free.pop(0)


def starts_afresh(waiting, running, free, limits):
    running.clear()
    free[:] = range(8)
    solution(waiting, running, free, limits)


def no_look_at_the_queue(waiting, running, free, limits):
    while waiting[0].prompt_tokens <= limits.max_num_batched_tokens:
        running[waiting.popleft().request_id] = free.pop(0)


def yields(waiting, running, free, limits):
    yield waiting.popleft()


def endless(waiting, running, free, limits):
    while waiting:
        pass


WRONG = {
    nothing: ("one request waits", "take a slot from free"),
    untouched: ("with nobody waiting", "Nothing is written there yet"),
    newest_first: ("all who fit", "while there is room"),
    one_a_step: ("all who fit", "while there is room"),
    static: ("requests join", "static batching"),
    skips_the_large: ("behind a request", "let a later, smaller request pass"),
    back_of_the_queue: ("behind a request", "let a later, smaller request pass"),
    no_budget: ("the prompts of a step", "off what is left"),
    budget_never_shrinks: ("the prompts of a step", "off what is left"),
    forgets_the_running: ("a token of the step", "a token of this step for itself"),
    counts_the_new_twice: ("a token of the step", "once, before the loop"),
    too_strict: ("a prompt that just fits", "Off by one"),
    one_too_many: ("no more than", "each time round"),
    looks_once: ("no more than", "each that you let in"),
    forgets_the_slots: ("no more than", "raised this"),
    shares_a_slot: ("one request waits", "The next to come would get it too"),
    guesses_the_slot: ("each has a slot", "overwrite each other"),
    loses_the_head: ("the prompts of a step", "lose it"),
    loses_a_slot: ("the prompts of a step", "only for whom you let in"),
    stays_in_the_queue: ("one request waits", "waiting.popleft()"),
    keys_are_requests: ("one request waits", "running[request.request_id]"),
    starts_afresh: ("with nobody waiting", "stays where it is"),
    no_look_at_the_queue: ("with nobody waiting", "Your code raised this"),
    yields: ("with nobody waiting", "generator"),
}


@pytest.mark.parametrize("admit", WRONG, ids=lambda admit: admit.__name__)
def test_each_mistake_is_caught_and_explained(admit):
    name, hint = WRONG[admit]
    report = check_admission(admit)
    (first, *_) = report.failures
    assert first.name.startswith(name), report
    assert hint in first.mistake.hint, report
    assert first.mistake.tried


def test_a_loop_that_lets_nobody_in_passes_only_where_nobody_may_come_in():
    report = check_admission(nothing)
    assert [result.name for result in report.results if result.mistake is None] == [
        "with nobody waiting, nobody gets in"
    ]


def test_a_loop_without_an_end_is_stopped():
    report = check_admission(endless, limit=0.1)
    assert "did not end" in report.failures[0].mistake.got


def test_the_waste_is_counted_by_the_engine_over_every_batch():
    # By hand: 15 of 16 batches run 49 decode steps, one runs 9; half of the answers use 9, half 49.
    assert static_waste((10, 50), 4) == pytest.approx(1 - 29 / ((15 * 49 + 9) / 16))
    assert static_waste((10, 50), 1) == 0.0
    assert static_waste((7,), 5) == 0.0


@pytest.mark.parametrize("answer", [0.376, 0.3763440860215054, 0.378])
def test_the_right_waste_passes(answer):
    assert check_waste(answer)


def test_the_waste_of_another_batch():
    assert check_waste(1 - 59 / (100 - 80 / 4 - 1), short=20, long=100, size=2)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (37.6, "per cent"),
        (0.624, "share that was used"),
        (0.368, "one decode less"),
        (0.408, "One batch in 16"),
        (0.4, "forget that the prefill"),
        (0.603, "wasted over used"),
        (0.5, "Used: the mean answer"),
        (None, "Put your number"),
    ],
)
def test_each_slip_of_the_waste_has_its_hint(answer, hint):
    (failure,) = check_waste(answer).failures
    assert hint in failure.mistake.hint


def test_the_solution_in_the_chapter_passes():
    cells = nbformat.read(CHAPTER, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "def admit" in block]
    found: dict[str, object] = {}
    exec(code, found)
    check_admission(found["admit"]).require()
