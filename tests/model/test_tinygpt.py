from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import silu

from servelib.engine.naive import NaiveEngine
from servelib.model.config import REFERENCE, ModelConfig
from servelib.model.tinygpt import TinyGPT
from servelib.model.weights import llama_views
from servelib.request import Request, SamplingParams

SMALL = ModelConfig(label="small", vocab_size=50, width=24, layers=2, heads=6, kv_heads=2, head_size=4,
                    ffn_size=20, context=64, seed=3)  # fmt: skip
SHAPES = [
    REFERENCE,
    SMALL,
    replace(SMALL, tied_output=True),
    replace(SMALL, heads=4, kv_heads=4, head_size=10),  # heads x size is not the width
    replace(SMALL, heads=5, kv_heads=1, layers=1, vocab_size=3),
]


@pytest.fixture(scope="module")
def model() -> TinyGPT:
    return TinyGPT(REFERENCE)


def prompts(n: int, lengths: list[int]) -> list[list[int]]:
    # No near-tie: over 1,600 tokens the two likeliest never differ by less than 50 times the float noise.
    rng = random.Random(16)
    return [[rng.randrange(32, 127) for _ in range(length)] for length in lengths[:n]]


def run(model: TinyGPT, requests: list[Request], *, use_cache: bool) -> dict[str, list[int]]:
    engine = NaiveEngine(model, use_cache=use_cache)
    out: dict[str, list[int]] = {}
    for request in requests:
        engine.add_request(request)
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            out.setdefault(output.request_id, []).extend(output.token_ids)
    return out


def count(model: TinyGPT) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_the_reference_has_5838080_parameters(model: TinyGPT):
    assert count(model) == 5_838_080


@pytest.mark.parametrize("config", SHAPES)
def test_the_config_counts_the_models_parameters(config: ModelConfig):
    assert count(TinyGPT(config)) == config.parameters


def by_the_book(model: TinyGPT, ids: list[int]) -> torch.Tensor:
    """Llama's forward pass as its paper and checkpoints have it, in float64, from the named weights."""
    c = model.config
    w = {name: view.double() for name, view in llama_views(model).items()}
    t, heads = len(ids), c.heads

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * gain

    frequency = c.rope_theta ** -(torch.arange(0, c.head_size, 2).double() / c.head_size)
    angle = torch.arange(t).double()[:, None] * frequency  # [T, D/2]

    def turn(x: torch.Tensor) -> torch.Tensor:  # [H, T, D]
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(c.layers):
        p = f"model.layers.{i}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (
            (h @ w[p + f"self_attn.{n}_proj.weight"].T).view(t, -1, c.head_size).transpose(0, 1)
            for n in "qkv"
        )
        q, k = turn(q), turn(k)
        k, v = (y.repeat_interleave(heads // c.kv_heads, 0) for y in (k, v))
        scores = q @ k.transpose(1, 2) / c.head_size**0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(0, 1).reshape(t, -1)
        x = x + y @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = silu(h @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ head.T


@pytest.mark.parametrize("config", SHAPES)
def test_it_is_llama(config: ModelConfig):
    model = TinyGPT(config)
    for weight in model.parameters():  # gains of 1 would hide a missing one
        if weight.dim() == 1:
            weight.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(5))
    ids = [random.Random(2).randrange(config.vocab_size) for _ in range(40)]
    logits, cache = model(torch.tensor([ids]))
    assert cache is None
    assert logits.shape == (1, 40, config.vocab_size)
    assert (logits[0].double() - by_the_book(model, ids)).abs().max() < 5e-4


def test_every_weight_has_a_checkpoint_name_and_loading_is_writing():
    for config in SHAPES:
        model = TinyGPT(config)
        views = llama_views(model)
        assert sum(view.numel() for view in views.values()) == config.parameters
        other = TinyGPT(replace(config, seed=99))
        ids = torch.arange(9)[None] % config.vocab_size
        other(ids)  # has run before it loads
        for name, view in llama_views(other).items():
            view.copy_(views[name])
        assert torch.equal(other(ids)[0], model(ids)[0])
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_rounding_stays_small_on_its_way_to_the_logits():
    """An error in every weight reaches logits of size 1 about three times as large, in float64 on any CPU.

    The nearer the logits of two ways to compute one text, the rarer a near-tie that they break apart.
    """
    model = TinyGPT(replace(REFERENCE, dtype="float64"))
    ids = torch.tensor(prompts(1, [200]))
    exact, error, generator = model(ids)[0], 1e-9, torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data *= 1 + error * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    assert (model(ids)[0] - exact).abs().mean() < 5 * error


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = TinyGPT(SMALL)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    two, three = TinyGPT(SMALL), TinyGPT(replace(SMALL, seed=4))
    assert torch.equal(one.output, two.output)
    assert not torch.equal(one.output, three.output)


def test_it_is_built_for_inference(model: TinyGPT):
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    assert model(torch.tensor([[1, 2]]))[0].is_inference()


def test_rows_of_a_batch_do_not_mix(model: TinyGPT):
    rows = torch.tensor(prompts(3, [20, 20, 20]))
    together = model(rows)[0]
    for row, logits in zip(rows, together, strict=True):
        assert torch.allclose(model(row[None])[0][0], logits, atol=1e-4)


def test_next_logits_is_the_last_row_of_forward(model: TinyGPT):
    (ids,) = prompts(1, [33])
    assert torch.allclose(model.next_logits(ids), model(torch.tensor([ids]))[0][0, -1], atol=1e-4)


@pytest.mark.parametrize("chunks", [[30], [1] * 30, [7, 1, 12, 10], [29, 1], [1, 29]])
def test_a_prompt_may_come_in_pieces(model: TinyGPT, chunks: list[int]):
    (ids,) = prompts(1, [30])
    whole, cache, logits, start = model(torch.tensor([ids]))[0][0], model.new_cache(), [], 0
    for size in chunks:
        part, same = model(torch.tensor([ids[start : start + size]]), cache)
        assert same is cache
        logits.append(part[0])
        start += size
    assert cache.length == 30
    assert torch.allclose(torch.cat(logits), whole, atol=2e-4)


FIFTY = prompts(50, [1 + round(i * 299 / 49) for i in range(50)])


def test_greedy_tokens_with_and_without_a_cache_are_identical_for_50_prompts(model: TinyGPT):
    assert (len(FIFTY), len(FIFTY[0]), len(FIFTY[-1])) == (50, 1, 300)
    requests = [Request(f"r{i}", tuple(ids), SamplingParams(max_tokens=4)) for i, ids in enumerate(FIFTY)]
    assert run(model, requests, use_cache=True) == run(model, requests, use_cache=False)


def test_long_greedy_outputs_are_what_one_pass_over_the_whole_text_gives_and_vary(model: TinyGPT):
    # One pass without a cache gives the choice after every position at once: 32 tokens a prompt.
    requests = [
        Request(f"r{i}", tuple(ids), SamplingParams(max_tokens=32, ignore_eos=True))
        for i, ids in enumerate(FIFTY)
    ]
    outputs = run(model, requests, use_cache=True)
    for request in requests:
        out = outputs[request.request_id]
        logits = model(torch.tensor([[*request.prompt_ids, *out[:-1]]]))[0][0, len(request.prompt_ids) - 1 :]
        assert logits.argmax(-1).tolist() == out
    assert len({tuple(out) for out in outputs.values()}) == 50
    assert min(len(set(out)) for out in outputs.values()) >= 8, "greedy output fell into a loop"


def test_seeded_samples_are_the_same_with_and_without_a_cache(model: TinyGPT):
    params = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9, repetition_penalty=1.2)
    requests = [
        Request(f"r{i}", tuple(ids), params) for i, ids in enumerate(prompts(6, [1, 5, 9, 17, 30, 60]))
    ]
    assert run(model, requests, use_cache=True) == run(model, requests, use_cache=False)


def test_the_context_is_the_limit():
    model = TinyGPT(SMALL)
    ids = [1] * SMALL.context
    cache = model.new_cache()
    assert torch.allclose(model.next_logits(ids), model.next_logits(ids, cache), atol=1e-4)
    for over in (lambda: model.next_logits([*ids, 1]), lambda: model.next_logits([1], cache)):
        with pytest.raises(ValueError, match="64"):
            over()
    assert cache.length == SMALL.context


def test_other_number_formats_are_built_whole():
    model = TinyGPT(replace(SMALL, dtype="bfloat16"))
    cache = model.new_cache()
    assert model.next_logits([1, 2, 3], cache).dtype is torch.bfloat16
    assert model.next_logits([4], cache).isfinite().all()
