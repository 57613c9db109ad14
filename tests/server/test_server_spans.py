"""Every stage of a request's life is a span, in order, inside the request's own interval."""

import itertools
import time

import pytest
from serving import CHAT, COMPLETION, eventually, ids, serving

from servelib.spans import Stage

ONCE = [Stage.RECEIVE, Stage.TEMPLATE, Stage.TOKENIZE, Stage.QUEUE, Stage.PREFILL]


@pytest.mark.parametrize("stream", [True, False])
def test_all_nine_stages_of_a_chat(stream):
    log = None

    def script(state):
        """Gives no token before the one before it was written: else one write may carry several."""
        done = len(state.output_ids)
        assert not stream or eventually(
            lambda: sum(s.stage is Stage.STREAM for s in log.spans()) == done  # one a write
        )
        return ids("abc")[done]

    with serving(script) as served:
        log = served.log
        before = time.perf_counter()
        if stream:
            chunks = list(served.client.chat.completions.create(**CHAT, stream=True))
            request_id = chunks[0].id
        else:
            request_id = served.client.chat.completions.create(**CHAT).id
        # The last span is recorded just after the client has its last byte.
    spans = served.log.spans(request_id)
    after = time.perf_counter()
    count = {stage: sum(span.stage is stage for span in spans) for stage in Stage}
    assert count == {
        **dict.fromkeys(ONCE, 1),
        Stage.DECODE: 3,
        Stage.SAMPLE: 4,
        Stage.DETOKENIZE: 4,
        Stage.STREAM: 4 if stream else 1,  # a, b, c, and the end
    }
    assert [span.stage for span in spans if span.stage in ONCE] == ONCE
    first = [span for span in spans if span.stage in ONCE]
    for earlier, later in itertools.pairwise(first):
        assert earlier.end <= later.start
    for stage in Stage:
        visits = [span for span in spans if span.stage is stage]
        assert all(a.end <= b.start for a, b in itertools.pairwise(visits))
    assert all(before <= span.start <= span.end <= after for span in spans)
    starts = {stage: min(s.start for s in spans if s.stage is stage) for stage in Stage}
    order = [*ONCE, Stage.SAMPLE, Stage.DETOKENIZE, Stage.STREAM]
    assert [starts[stage] for stage in order] == sorted(starts[stage] for stage in order)
    # A token is sampled before it is text, and text before it is sent.
    samples, texts = ([s for s in spans if s.stage is stage] for stage in (Stage.SAMPLE, Stage.DETOKENIZE))
    assert all(sample.end <= text.start for sample, text in zip(samples, texts, strict=True))
    if stream:
        sent = [s for s in spans if s.stage is Stage.STREAM]
        assert all(text.end <= piece.start for text, piece in zip(texts, sent, strict=True))


def test_a_completion_has_no_template_and_ids_need_no_tokenizer():
    with serving(ids("a")) as served:
        text = served.client.completions.create(**COMPLETION).id
        tokens = served.client.completions.create(model="scripted", prompt=[1, 2]).id
    of_text = {span.stage for span in served.log.spans(text)}
    assert of_text == set(Stage) - {Stage.TEMPLATE}
    assert {span.stage for span in served.log.spans(tokens)} == of_text - {Stage.TOKENIZE}
