from __future__ import annotations

import pytest

from servelib.engine.naive import NaiveEngine
from servelib.harness.trace import Workload
from servelib.model.scripted import ScriptedModel
from servelib.notebook.hanging_up import ImpatientCallers, aftermath, aftermath_figure
from servelib.notebook.render import described
from servelib.request import FinishReason, Request, SamplingParams
from servelib.sim.cost import StepCost

COST = StepCost(0.01)
SMALL = Workload(requests=8)


class NoAbort(NaiveEngine):
    def abort(self, request_id):
        pass


def on(kind):
    return lambda model, clock: kind(model, clock=clock)


def play(engine, share, n_tokens=8, requests=3, **how):
    callers = ImpatientCallers(engine, share, **how)
    for number in range(requests):
        callers.add_request(Request(f"r{number}", (1,), SamplingParams(max_tokens=n_tokens, ignore_eos=True)))
    outputs = []
    while callers.has_work:
        outputs += callers.step()
    return callers, outputs


@pytest.mark.parametrize(("kind", "wasted"), [(NaiveEngine, 0), (NoAbort, 3 * 6)])
def test_who_leaves_after_a_quarter_leaves_the_rest_to_an_engine_that_does_not_listen(kind, wasted):
    callers, outputs = play(kind(ScriptedModel([97])), share=1.0)
    assert callers.wasted == wasted
    assert callers.computed == 3 * 2 + wasted
    assert [output.finish_reason for output in outputs] == [None, FinishReason.ABORT] * 3


def test_with_nobody_leaving_it_is_the_engine_alone():
    callers, outputs = play(NaiveEngine(ScriptedModel([97])), share=0.0)
    assert (callers.wasted, callers.computed) == (0, 24)
    assert [output.finish_reason for output in outputs].count(FinishReason.LENGTH) == 3


def test_a_single_token_is_an_answer_and_not_a_hang_up():
    callers, outputs = play(NaiveEngine(ScriptedModel([97])), share=1.0, n_tokens=1)
    assert {output.finish_reason for output in outputs} == {FinishReason.LENGTH}
    assert callers.wasted == 0


def test_more_leave_at_a_larger_share_and_the_same_ones_among_them():
    def gone(share):
        _, outputs = play(NaiveEngine(ScriptedModel([97])), share, requests=40)
        return {o.request_id for o in outputs if o.finish_reason is FinishReason.ABORT}

    assert gone(0.2) < gone(0.5) < gone(0.9)
    assert 0 < len(gone(0.2)) < 16


def test_the_figure_moves_both_lines_and_says_where_they_end():
    found = {
        rate: tuple(
            [aftermath(on(kind), COST, rate, share, runs=2, workload=SMALL) for share in (0.0, 0.6)]
            for kind in (NoAbort, NaiveEngine)
        )
        for rate in (3, 6)
    }
    for deaf, heard in found.values():
        assert deaf[0] == heard[0]
        assert deaf[0].wasted == 0
        assert deaf[1].wasted > 0.2
        assert heard[1].wasted == 0
        assert heard[1].ttft < deaf[1].ttft
    fig = aftermath_figure(found, start=6, alt="what it shows")
    assert described(fig.to_dict()) == ("what it shows", "arrival rate", 1)
    assert [list(trace.y) for trace in fig.frames[1].data] == [list(trace.y) for trace in fig.data]
    assert f"{found[3][0][1].ttft:.2f} s without abort" in fig.frames[0].name
