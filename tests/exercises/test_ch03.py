"""The checks of chapter 3: right answers of several styles pass, each slip is named."""

from __future__ import annotations

import re

import pytest

from servelib.errors import InvalidRequestError
from servelib.exercises.ch03 import (
    STEPS,
    _configs,
    check_balance,
    check_count,
    check_kv_bytes,
    check_roofline,
)
from servelib.exercises.miscount import SLIPS, diagnose, miscount
from servelib.exercises.places import PLACES
from servelib.model.config import REFERENCE
from servelib.sim.count import count
from servelib.sim.machines import machine_named
from servelib.sim.models import model_named
from servelib.sim.shape import kv_bytes_per_token

CASES = [(config, new, cached) for config in _configs() for _, new, cached in STEPS]


def plain(config, new_tokens, cached_tokens):
    """As the solution in the chapter."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    weights = config.width * (2 * queries + 2 * keys + 3 * config.ffn_size)
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    layer = new_tokens * weights + 2 * pairs * queries
    return 2 * (config.layers * layer + config.vocab_size * config.width)


def by_loops(config, new_tokens, cached_tokens):
    """Token by token, matrix by matrix."""
    head, total = config.head_size, 0
    for _layer in range(config.layers):
        for i in range(new_tokens):
            seen = cached_tokens + i + 1
            for columns in (config.heads * head, config.kv_heads * head, config.kv_heads * head):
                total += 2 * config.width * columns
            total += config.heads * (2 * head * seen + 2 * head * seen)
            total += 2 * config.heads * head * config.width
            total += 3 * 2 * config.width * config.ffn_size
    return total + 2 * config.width * config.vocab_size


def from_parameters(config, new_tokens, cached_tokens):
    """Twice the weights of the layers, from ``config.parameters``: counts the norms' weights too."""
    embeddings = config.vocab_size * config.width * (1 if config.tied_output else 2)
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    attention = 4 * pairs * config.layers * config.heads * config.head_size
    output = 2 * config.vocab_size * config.width
    return 2 * new_tokens * (config.parameters - embeddings) + attention + output


def with_the_small_things(config, new_tokens, cached_tokens):
    """Also norms, softmax, rotary positions and residual sums: declared not counted, and allowed."""
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    head = config.head_size
    a_token = 2 * 4 * config.width + 2 * config.width + 3 * (config.heads + config.kv_heads) * head
    small = new_tokens * (a_token + 3 * config.ffn_size) + 3 * pairs * config.heads
    return plain(config, new_tokens, cached_tokens) + config.layers * small


@pytest.mark.parametrize("fn", [plain, by_loops, from_parameters, with_the_small_things])
def test_right_counts_of_several_styles_pass(fn):
    report = check_count(fn).require()
    assert len(report.results) == len(STEPS)


def test_without_a_slip_it_counts_as_the_package_does():
    for config, new, cached in CASES:
        assert miscount((config, new, cached)) == pytest.approx(count(config, [(new, cached)]).operations)


@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_is_found_and_named(slip):
    (first, *_) = check_count(lambda *case: miscount(case, slip)).failures
    assert first.mistake.hint == SLIPS[slip]


@pytest.mark.parametrize(
    ("one", "other"),
    [("one a multiply-add", "no gate"), ("query heads", "no causality"), ("no attention", "output for all")],
)
def test_two_slips_at_once_are_both_named(one, other):
    (first, *_) = check_count(lambda *case: miscount(case, one, other)).failures
    assert SLIPS[one] in first.mistake.hint
    assert SLIPS[other] in first.mistake.hint


def test_slips_written_by_a_person_are_found():
    def classic(config, new, cached):  # "two operations a parameter a token"
        return 2 * config.parameters * new

    def quiet(config, new, cached):
        return plain(config, new, cached) / 2

    (first, *_) = check_count(classic).failures
    assert "Count part by part" in first.mistake.hint
    assert "attention scores" in first.mistake.hint
    (first, *_) = check_count(quiet).failures
    assert "multiply-add is two" in first.mistake.hint
    assert "0.5 times that" in first.mistake.got
    assert "operations_of_a_step(config, 1, 0)" in first.mistake.tried


@pytest.mark.parametrize("given", [None, "11e6", True, [1]])
def test_what_is_no_number_is_asked_for(given):
    (first, *_) = check_count(lambda *case: given).failures
    assert "return" in first.mistake.hint
    assert first.mistake.got == repr(given)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 0, -1])
def test_a_number_that_cannot_be_is_refused(given):
    assert len(check_count(lambda *case: given).failures) == len(STEPS)


def test_an_empty_skeleton_and_an_error_of_the_reader_are_explained():
    def empty(config, new_tokens, cached_tokens):
        raise NotImplementedError

    def broken(config, new_tokens, cached_tokens):
        return config.hidden_size

    assert "Nothing is written there yet" in check_count(empty).failures[0].mistake.hint
    report = check_count(broken)
    assert "hidden_size" in report.failures[0].mistake.got
    assert "in broken" in report.failures[0].mistake.got
    assert "FAIL" in str(report)


def test_a_count_that_fails_only_on_some_models_has_no_diagnosis():
    def picky(config, new_tokens, cached_tokens):
        if config.tied_output:
            raise ValueError("tied")
        return 2 * plain(config, new_tokens, cached_tokens)

    assert diagnose(picky, CASES) == ""
    assert "Count part by part" in check_count(picky).failures[0].mistake.hint


RIGHT = {"A": ("memory", 1.03), "B": ("compute", 479), "C": ("memory", 158)}


def test_the_right_places_pass_with_and_without_activations():
    check_roofline(RIGHT).require()
    config = model_named("llama3-8b")
    exact = {
        letter: (RIGHT[letter][0], count(config, [(p.new, p.cached)] * p.batch).intensity)
        for letter, p in PLACES.items()
    }
    check_roofline(exact).require()
    check_roofline(
        {letter: [f" {bound.upper()}", value] for letter, (bound, value) in RIGHT.items()}
    ).require()


def test_the_bound_is_that_of_the_machines_balance():
    config, balance = model_named("llama3-8b"), machine_named("h100").balance("bfloat16")
    for letter, p in PLACES.items():
        step = count(config, [(p.new, p.cached)] * p.batch)
        plain_intensity = step.operations / (step.bytes - step.bytes_by_kind()["activations"])
        bounds = {"compute" if x > balance else "memory" for x in (step.intensity, plain_intensity)}
        assert bounds == {RIGHT[letter][0]}


def test_another_machine_moves_the_corner():
    (failure,) = check_roofline(RIGHT, machine="m4-max").failures
    assert failure.name.startswith("C: ")
    assert "above the machine's balance of" in failure.mistake.hint
    assert check_roofline({**RIGHT, "C": ("compute", 158)}, machine="m4-max")


@pytest.mark.parametrize(
    ("letter", "answer", "hint"),
    [
        ("C", ("compute", 158), "below the machine's balance of 295"),
        ("B", ("memory", 479), "above the machine's balance of 295"),
        ("B", ("compute", 479 / 2), "multiply-add is two"),
        ("B", ("compute", 0.94), "once a step, not once for each of the 512 tokens"),
        ("C", ("compute", 520), "Keys and values are missing"),
        ("C", ("memory", 1.0), "once a step, not once for each of the 512 tokens"),
        ("C", ("memory", 2 * 158), "operations for each number"),
        ("C", ("memory", 1 / 158), "Turn it over"),
        ("A", ("memory", 2.06), "operations for each number"),
        ("A", ("memory", 77), "Divide the operations"),
    ],
)
def test_each_slip_on_the_roofline_has_its_hint(letter, answer, hint):
    (failure,) = check_roofline({**RIGHT, letter: answer}).failures
    assert failure.name.startswith(f"{letter}: ")
    assert hint in failure.mistake.hint
    assert len(re.findall(r"\d", failure.mistake.expected)) >= 3  # it explains with numbers


@pytest.mark.parametrize("answer", [None, "memory", ("memory",), (None, None), ("memory", None)])
def test_nothing_yet_is_asked_for(answer):
    (failure,) = check_roofline({**RIGHT, "A": answer}).failures
    assert "Put your bound and your number" in failure.mistake.hint


@pytest.mark.parametrize("answer", [("memory", "1"), ("memory", True), ("memory", float("nan"))])
def test_what_is_no_intensity_is_refused(answer):
    (failure,) = check_roofline({**RIGHT, "A": answer}).failures
    assert "is a number" in failure.mistake.hint


@pytest.mark.parametrize("bound", ["bandwidth", 3, ""])
def test_an_unknown_bound_lists_the_two(bound):
    (failure,) = check_roofline({**RIGHT, "A": (bound, 1.03)}).failures
    assert '"memory" or "compute"' in failure.mistake.hint


@pytest.mark.parametrize("answers", [None, {}, [], "memory"])
def test_no_answers_at_all(answers):
    assert len(check_roofline(answers).failures) == 3


def test_an_unknown_machine_or_model_lists_the_known():
    with pytest.raises(InvalidRequestError, match="h100"):
        check_roofline(RIGHT, machine="h1000")
    with pytest.raises(InvalidRequestError, match="llama3-8b"):
        check_roofline(RIGHT, model="llama")
    with pytest.raises(InvalidRequestError, match="llama3-8b"):
        check_kv_bytes(1, "llama")


def test_the_cache_of_a_token():
    assert check_kv_bytes(327_680)
    assert check_kv_bytes(131_072, "llama3-8b")
    assert check_kv_bytes(kv_bytes_per_token(REFERENCE), REFERENCE)
    assert not check_kv_bytes(None)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (327_680 // 2, "a key and a value"),
        (327_680 * 8, "64 query heads have 8 key-value heads"),
        (327_680 * 4, "two of each"),
        (327_680 * 2, "not 4"),
        (4096, "one layer"),
        (2560, "128 numbers"),
        (40_960, "one head"),
        (320, "KiB"),
        (327.68, "kB"),
        (5, "Multiply"),
    ],
)
def test_each_slip_of_the_cache_has_its_hint(answer, hint):
    (failure,) = check_kv_bytes(answer).failures
    assert hint in failure.mistake.hint


def test_in_32_bits_half_and_a_quarter_are_told_apart():
    right = kv_bytes_per_token(REFERENCE)
    assert "Half of it" in check_kv_bytes(right / 2, REFERENCE).failures[0].mistake.hint
    assert "Those are numbers" in check_kv_bytes(right / 4, REFERENCE).failures[0].mistake.hint


@pytest.mark.parametrize("answer", [295, 295.3, 307, 320])
def test_the_batch_at_the_corner_with_and_without_activations(answer):
    assert check_balance(answer)
    assert check_balance(answer, model="llama3-70b")


@pytest.mark.parametrize(
    ("answer", "hint"),
    [(148, "Half"), (600, "Twice"), (64, "batch is that 295"), (None, "Put your number")],
)
def test_each_slip_of_the_batch_has_its_hint(answer, hint):
    (failure,) = check_balance(answer).failures
    assert hint in failure.mistake.hint


def test_the_batch_follows_machine_and_format():
    assert check_balance(
        2 * machine_named("h100").balance("float32"), model="tinygpt"
    )  # 4 bytes, 2 operations
    assert check_balance(machine_named("tpu-v5e").balance("bfloat16"), machine="tpu-v5e")
    with pytest.raises(InvalidRequestError, match="h100"):
        check_balance(1, machine="h1000")
    with pytest.raises(InvalidRequestError, match="float32"):
        check_balance(1, machine="cpu")
