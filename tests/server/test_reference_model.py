"""The reference model behind HTTP: the text of the stream is the text of the engine's own tokens."""

import openai

from servelib.clock import VirtualClock
from servelib.engine.naive import NaiveEngine
from servelib.model.config import REFERENCE
from servelib.model.tinygpt import TinyGPT
from servelib.request import Request, SamplingParams
from servelib.server.run import BackgroundServer
from servelib.text.tokenizer import load_tokenizer


def test_the_reference_model_says_the_same_over_http_as_in_process():
    model, tokenizer = TinyGPT(REFERENCE), load_tokenizer()
    engine = NaiveEngine(model, use_cache=True, clock=VirtualClock())
    engine.add_request(
        Request("direct", tokenizer.encode("Hello"), SamplingParams(max_tokens=24, ignore_eos=True))
    )
    direct = []
    while engine.has_work:
        direct += [token_id for output in engine.step() for token_id in output.token_ids]

    options = {"prompt": "Hello", "max_tokens": 24, "temperature": 0, "extra_body": {"ignore_eos": True}}
    with (
        BackgroundServer(NaiveEngine(model)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        assert server.model_id == "tinygpt"
        whole = client.completions.create(model="tinygpt", **options)
        chunks = list(client.completions.create(model="tinygpt", stream=True, **options))
        sampled = client.completions.create(model="tinygpt", prompt="a", seed=3, logprobs=2, max_tokens=4)
    assert whole.choices[0].text == tokenizer.decode(direct)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.usage.completion_tokens == len(direct) == 24
    assert all(logprob < 0 for logprob in sampled.choices[0].logprobs.token_logprobs)
    assert all(len(top) in (2, 3) for top in sampled.choices[0].logprobs.top_logprobs)
