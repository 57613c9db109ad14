from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.harness.arrivals import AtOnce, Constant, Gamma, Poisson, Replay
from servelib.harness.laws import arrivals_from
from servelib.harness.trace import Trace, TraceRequest, Workload, make_trace
from servelib.harness.trace_files import FixedTrace, read_times, read_trace, trace_text
from servelib.harness.varying import Piecewise, Ramp

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,12,0
2023-11-16 18:15:51.3910170,20,2
"""
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "2024-05-10 00:00:00+00:00,5,6\n2024-05-10 00:00:00.25+00:00,7,8\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
    "5,ChatGPT,472,18,490,Conversation log\r\n45.0,GPT-4,30,230,260,API log\r\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids}) + "\n"
    for t, n, ids in [(3000, 600, [0, 1]), (3500, 1030, [0, 1, 2]), (9000, 512, [3])]
)


@pytest.fixture
def write(tmp_path):
    def make(text: str, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return make


requests = st.builds(
    TraceRequest,
    st.text(max_size=5),
    st.floats(0, 1e9),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=4).map(tuple),
    st.integers(1, 10**9),
)


@given(
    st.lists(requests, min_size=1, max_size=5),
    st.text(max_size=9),
    st.sampled_from([None, 2.5, float("inf")]),
)
@settings(max_examples=60)
def test_a_written_trace_reads_back_exactly(tmp_path_factory, made, label, rate):
    made.sort(key=lambda r: r.scheduled)
    trace = Trace(tuple(made), label, "a", "b", -3, rate)
    path = tmp_path_factory.mktemp("t") / "own"
    path.write_text(trace_text(trace), encoding="utf-8")
    again = read_trace(path)
    assert again == trace
    assert again.hash == trace.hash


def test_a_trace_hashes_alike_in_another_process_that_reads_its_file(write):
    trace = make_trace(Gamma(3.0, 0.5), 20)
    path = write(trace_text(trace))
    code = f"from servelib.harness.trace_files import *; print(read_trace(Path({str(path)!r})).hash)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == trace.hash


def test_a_changed_line_does_not_pass_for_the_trace(write):
    text = trace_text(make_trace(Poisson(3.0), 2))
    path = write(text.replace('"output_tokens": ', '"output_tokens": 1'))
    with pytest.raises(InvalidRequestError, match=r"hash: got .* as its first line says"):
        read_trace(path)


def test_azure(write):
    trace = read_trace(write(AZURE, "azure.csv"))
    assert [r.scheduled for r in trace.requests] == pytest.approx([0.0, 4.314579, 4.710427], abs=2e-6)
    assert [(len(r.prompt_ids), r.output_tokens) for r in trace.requests] == [(374, 44), (396, 109), (20, 2)]
    assert trace.arrivals == "azure trace azure.csv (1 failed left out)"
    assert trace.rate == pytest.approx(3 / 4.710427)
    newer = read_trace(write(AZURE_2024))
    assert [r.scheduled for r in newer.requests] == [0.0, 0.25]
    assert len(read_trace(write(AZURE), limit=1).requests) == 1


def test_burstgpt(write):
    trace = read_trace(write(BURSTGPT, "b.csv"))
    assert [(r.scheduled, len(r.prompt_ids), r.output_tokens) for r in trace.requests] == [
        (0.0, 472, 18),
        (40.0, 30, 230),
    ]
    other_order = "Log Type,Timestamp,Request tokens,Response tokens,Total tokens,Model\nx,1,2,3,5,y\n"
    assert len(read_trace(write(other_order)).requests[0].prompt_ids) == 2


def test_mooncake_blocks_of_one_hash_are_the_same_tokens(write):
    a, b, c = read_trace(write(MOONCAKE), time_unit="ms").requests
    assert [r.scheduled for r in (a, b, c)] == [0.0, 0.5, 6.0]
    assert [len(r.prompt_ids) for r in (a, b, c)] == [600, 1030, 512]
    assert a.prompt_ids == b.prompt_ids[:600]
    assert c.prompt_ids[:8] != a.prompt_ids[:8]
    assert read_trace(write(MOONCAKE), time_unit="s").requests[2].scheduled == 6000.0
    other_seed = read_trace(write(MOONCAKE), time_unit="ms", seed=8).requests[0]
    assert other_seed.prompt_ids != a.prompt_ids


def test_a_file_of_times_is_a_law(write):
    path = write("0\n0.5\n\n2e0\n", "times.txt")
    assert read_trace(path) == Replay((0.0, 0.5, 2.0), "replay of times.txt")
    with pytest.raises(InvalidRequestError, match="at most 3, the times to replay"):
        make_trace(read_times(path), 4)


OWN = trace_text(make_trace(Poisson(3.0), 2)).splitlines()
NEGATIVE = OWN[1].replace('"prompt_ids": [', '"prompt_ids": [-')
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "line", "value", "expected"),
    [
        ("", "", "''", "the first line of a trace"),
        ("hello\n", ":1", "'hello'", "the first line of a trace"),
        ("[1]\n", ":1", "'[1]'", "the first line of a trace"),
        ('{"a": 1}\n', ":1", "a", "the first line of a trace"),
        ("0\n1\nsoon\n", ":3: time", "'soon'", "a finite number >= 0"),
        ("0\n\nnan\n", ":3: time", "'nan'", "a finite number >= 0"),
        ("3\n2\n", ":2: time", "2.0", ">= 3.0, the line before"),
        ("-1\n", ":1: time", "'-1'", "a finite number >= 0"),
        (AZURE_HEADER, "", "no requests", "at least one"),
        (AZURE_HEADER + "yesterday,1,1\n", ":2: TIMESTAMP", "'yesterday'", "a date and time"),
        (AZURE_HEADER + "2023-11-16 18:15:46,x,1\n", ":2: ContextTokens", "'x'", "an integer >= 1"),
        (AZURE_HEADER + "2023-11-16 18:15:46,1,-1\n", ":2: GeneratedTokens", "'-1'", "an integer >= 0"),
        (AZURE_HEADER + "2023-11-16 18:15:46,1\n", ":2", "'2023-11-16 18:15:46,1'", "3 values"),
        (
            AZURE_HEADER + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n",
            ":3: time",
            "17001",
            "the line before",
        ),
        (BURSTGPT + "\n46,ChatGPT,0,5,5,x\n", ":5: Request tokens", "'0'", "an integer >= 1"),
        (MOONCAKE + "{oops\n", ":4", "'{oops'", "a JSON object with timestamp"),
        (MOONCAKE + "[]\n", ":4", "'[]'", "a JSON object with timestamp"),
        (MOONCAKE.replace("[3]", "[3, 4]"), ":3: hash_ids", "[3, 4]", "a list of 1, one for each 512"),
        (MOONCAKE.replace("600", "true"), ":1: input_length", "True", "an integer >= 1"),
        (MOONCAKE.replace("600", '"' + "9" * 5000 + '"'), ":1: input_length", "'999", "an integer >= 1"),
        ("\n".join([OWN[0], "{}"]), ":2", "{}", "request_id"),
        ("\n".join([OWN[0], NEGATIVE]), ":2: prompt_ids", "-", ">= 0"),
        (OWN[0].replace(": 3.0", ': "x"') + "\n" + OWN[1], ":1", "servelib_trace", "seed and rate"),
        ("\n".join([OWN[0], OWN[2], OWN[1]]), ":3: scheduled", "0.", "the line before"),
        (OWN[0], "", "no requests", "at least one"),
        ("\n".join(OWN[:2]), ": hash", "'", "as its first line says"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named_with_its_number_value_and_what_was_expected(
    write, text, line, value, expected
):
    path = write(text, "bad")
    with pytest.raises(InvalidRequestError) as caught:
        read_trace(path, time_unit="ms" if "hash_ids" in text else None)
    message = str(caught.value)
    assert message.startswith(f"{path}{line}: got ")
    assert value in message
    assert expected in message
    assert "\n" not in message


def test_mooncake_needs_its_unit_and_a_file_must_be_there(write, tmp_path):
    with pytest.raises(InvalidRequestError, match="no time unit"):
        read_trace(write(MOONCAKE))
    with pytest.raises(InvalidRequestError, match="readable text file"):
        read_trace(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(InvalidRequestError, match="readable text file"):
        read_trace(tmp_path / "binary")


def test_laws_by_name(write):
    assert arrivals_from("poisson", 2.0) == Poisson(2.0)
    assert arrivals_from("constant", 2.0) == Constant(2.0)
    assert arrivals_from("gamma:0.5", 2.0) == Gamma(2.0, 0.5)
    assert arrivals_from("ramp:2-8", 1.0) == Ramp(2.0, 8.0)
    assert arrivals_from("piecewise:4x60,16x10", 1.0) == Piecewise(((4.0, 60.0), (16.0, 10.0)))
    assert arrivals_from("gamma:2", float("inf")) == AtOnce()
    assert arrivals_from(str(write("1\n2\n")), 1.0).times(2, None) == [1.0, 2.0]
    trace = make_trace(Poisson(2.0), 3)
    assert arrivals_from(str(write(trace_text(trace))), 1.0).times(3, None) == [
        r.scheduled for r in trace.requests
    ]


@pytest.mark.parametrize(
    "text",
    ["", "gamma", "gamma:", "gamma:x", "gamma:0", "gamma:nan", "gamma:-1", "ramp:3", "ramp:a-b", "ramp:3-0",
     "ramp:inf-2", "piecewise:", "piecewise:4", "piecewise:4x0", "piecewise:4x2,0x5", "poison", "/no/such"],
)  # fmt: skip
def test_a_bad_law_is_refused(text):
    with pytest.raises(InvalidRequestError):
        arrivals_from(text, 1.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_bad_rate_is_refused(rate):
    for name in ("poisson", "constant", "gamma:1"):
        with pytest.raises(InvalidRequestError):
            arrivals_from(name, rate)


def test_an_infinite_rate_brings_the_same_prompts_at_time_zero():
    workload = Workload(requests=5, arrivals=lambda rate: arrivals_from("poisson", rate))
    once, four = workload.trace(float("inf")), workload.trace(4.0)
    assert [r.scheduled for r in once.requests] == [0.0] * 5
    assert [r.prompt_ids for r in once.requests] == [r.prompt_ids for r in four.requests]
    assert once.arrivals == "all at once"


def test_a_fixed_trace_is_the_same_in_every_run():
    trace = make_trace(Poisson(2.0), 3)
    fixed = FixedTrace(trace, Workload().warmup)
    assert fixed.trace(1.0, 5) is trace
    assert fixed.rate == 2.0


@pytest.mark.parametrize("rate", ["NaN", "-1", "0", "1e300", '"x"'])
def test_a_rate_that_no_trace_can_have_is_refused(write, rate):
    """It would only show in the file of results, which cannot hold it."""
    text = trace_text(make_trace(Poisson(4.0), 2)).replace('"rate": 4.0', f'"rate": {rate}', 1)
    with pytest.raises(InvalidRequestError, match=":1"):
        read_trace(write(text))


def test_a_request_that_failed_where_it_was_recorded_may_have_no_prompt(write):
    trace = read_trace(write("Timestamp,Request tokens,Response tokens\n1,0,0\n2,3,4\n"))
    assert [len(r.prompt_ids) for r in trace.requests] == [3]
