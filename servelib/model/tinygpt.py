"""TinyGPT: a Llama-shaped transformer in one file. It knows nothing of how a cache is laid out.

RMSNorm, rotary positions (half-split), grouped-query attention, SwiGLU, no biases: Touvron et al.
2023 (Llama), Su et al. 2021 (rotary), Ainslie et al. 2023 (grouped queries), Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from os import PathLike
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

from servelib.engine.batch import Batch
from servelib.kv.contiguous import ContiguousKV
from servelib.kv.padded import PaddedKV
from servelib.kv.slots import SlotKV
from servelib.model import sampling
from servelib.model.attention import causal_attention
from servelib.model.config import REFERENCE, ModelConfig
from servelib.model.linear import linear
from servelib.model.rotary import rotary_tables, rotate
from servelib.request import RequestState, SampledToken


class KVCache(Protocol):
    """What the model asks of a cache, whatever its layout."""

    def positions(self, new: int) -> slice | Tensor:
        """The positions of the ``new`` tokens of this step, [T] or [B, T], to index a table with."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store ``k``, ``v`` [B, KV, T, D]; return the attention of ``q`` [B, H, T, D] over all held."""
        ...

    def advance(self, new: int) -> None:
        """Called once all layers have stored the step's ``new`` tokens."""
        ...


class Layer(nn.Module):
    """Attention, then a gated feed-forward; each reads a normalised copy of the stream and adds to it.

    Queries, keys and values come from one matrix, so that a step is few, larger products.
    """

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.heads, self.kv_heads, self.head_size = config.heads, config.kv_heads, config.head_size
        width, inner = config.width, config.heads * config.head_size
        keys = config.kv_heads * config.head_size
        self.attention_norm = _gain(config)
        self.qkv = _matrix(config, inner + 2 * keys, width)  # rows: q, then k, then v
        self.out = _matrix(config, width, inner)
        self.ffn_norm = _gain(config)
        # Two matrices: halves of one product would lie apart in memory, and what follows reads them slower.
        self.gate = _matrix(config, config.ffn_size, width)
        self.up = _matrix(config, config.ffn_size, width)
        self.down = _matrix(config, width, config.ffn_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None) -> Tensor:
        """``x``: [B, T, W] -> [B, T, W]."""
        b, t, _ = x.shape
        eps, heads, kv = self.config.norm_eps, self.heads, self.kv_heads

        qkv = linear(norm(x, self.attention_norm, eps), self.qkv)
        qk, v = torch.split(qkv.view(b, t, -1, self.head_size), [heads + kv, kv], 2)  # [B, T, H+KV | KV, D]
        q, k = torch.split(rotate(qk, cos, sin), [heads, kv], 2)  # both turn together
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H | KV | KV, T, D]
        y = causal_attention(q, k, v) if cache is None else cache.attend(self.index, q, k, v)
        x = linear(y.transpose(1, 2).reshape(b, t, -1), self.out).add_(x)

        h = norm(x, self.ffn_norm, eps)
        h = F.silu(linear(h, self.gate), inplace=True).mul_(linear(h, self.up))  # [B, T, F]
        return linear(h, self.down).add_(x)


class TinyGPT(nn.Module):
    """Embedding, layers, norm, output matrix. Weights are drawn from ``config.seed``, no download.

    ``draw`` False leaves them as the memory was, for a caller that fills them (``from_pretrained``).
    Also the engines' ``Model``, ``BatchModel`` and ``PaddedModel``: one request a step, a flat row of
    many requests' tokens, or rows of one length.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig = REFERENCE, *, draw: bool = True) -> None:
        super().__init__()
        self.config = config
        dtype = getattr(torch, config.dtype)
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.width, dtype=dtype))
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = _gain(config)
        self.output = self.embedding
        if not config.tied_output:
            self.output = _matrix(config, config.vocab_size, config.width)
        cos, sin = rotary_tables(config)  # [context, D] each
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        if draw:
            self._draw_weights()
        self.to(dtype).requires_grad_(False).eval()  # the tables; weights have their type from birth

    @classmethod
    def from_pretrained(
        cls, source: str | PathLike[str], *, dtype: str | None = None, device: torch.device | str = "cpu"
    ) -> TinyGPT:
        """A Llama checkpoint in Hugging Face's format: a folder, or a hub name where there is a network.

        ``dtype`` None keeps the checkpoint's own. Raises ``PretrainedError``, in one line.
        """
        from servelib.model.pretrained import load_model  # here: it imports this module

        return load_model(source, dtype=dtype, device=device)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write config and weights as ``from_pretrained``, and others who read Llama, take them.

        Raises ``PretrainedError`` when the folder cannot be written.
        """
        from servelib.model.pretrained import save_model

        save_model(self, folder)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache | None = None) -> tuple[Tensor, KVCache | None]:
        """``ids``: [B, T] -> logits [B, T, V] after each token, and the cache with ``ids`` added.

        Raises ``ValueError`` if the sequence passes the context.
        """
        return self._logits(self._stream(ids, cache)), cache

    def new_cache(self) -> ContiguousKV:
        """An empty cache for one request."""
        return ContiguousKV(self.config, dtype=self.embedding.dtype, device=self.embedding.device)

    @torch.inference_mode()
    def next_logits(self, ids: Sequence[int], cache: KVCache | None = None) -> Tensor:
        """Logits [V] after the last of ``ids``; the output matrix runs for that one position only."""
        return self._logits(self._stream(self._ids([list(ids)]), cache)[0, -1])

    @torch.inference_mode()
    def sample(self, logits: Tensor, state: RequestState) -> SampledToken:
        """Choose the next token of ``state``: see ``servelib.model.sampling``."""
        return sampling.sample(logits, state)

    def new_slots(self, slots: int, size: int) -> SlotKV:
        """An empty cache for ``slots`` requests of up to ``size`` tokens each."""
        return SlotKV(self.config, slots, size, dtype=self.embedding.dtype, device=self.embedding.device)

    @torch.inference_mode()
    def run(self, batch: Batch, cache: SlotKV) -> Tensor:
        """Run all rows of ``batch`` as one row of tokens [1, N]; logits [M, V] where one is sampled.

        What stands where is the cache's to know; everything else treats the N tokens alike.
        """
        ids = [token_id for row in batch.rows for token_id in row.ids]
        x = self._stream(self._ids([ids]), cache.view(batch))[0]  # [N, W]
        ends = accumulate(len(row.ids) for row in batch.rows)
        sampled = [
            i for end, row in zip(ends, batch.rows, strict=True) for i in range(end - row.samples, end)
        ]
        return self._logits(x if len(sampled) == len(ids) else x[self._ids(sampled)])

    def new_padded(self, pads: Sequence[int]) -> PaddedKV:
        """An empty cache for ``len(pads)`` rows; row b begins with ``pads[b]`` tokens that do not count."""
        return PaddedKV(self.config, pads, dtype=self.embedding.dtype, device=self.embedding.device)

    @torch.inference_mode()
    def run_padded(self, rows: Sequence[Sequence[int]], cache: PaddedKV) -> Tensor:
        """Run the same number of new tokens of every row; logits [B, V] after each row's last."""
        return self._logits(self._stream(self._ids(rows), cache)[:, -1])

    @torch.inference_mode()
    def sample_batch(self, logits: Tensor, states: Sequence[RequestState]) -> list[SampledToken]:
        """Choose one token for each row of ``logits`` [M, V], each as if it were alone."""
        return sampling.sample_batch(logits, states)

    def _ids(self, numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.embedding.device)

    def _stream(self, ids: Tensor, cache: KVCache | None) -> Tensor:
        """``ids``: [B, T] -> what the last layer leaves, [B, T, W], before the final norm."""
        new = ids.shape[1]
        if cache is None and new > self.config.context:
            raise ValueError(f"got {new} tokens, must be at most {self.config.context}: the context")
        at = slice(0, new) if cache is None else cache.positions(new)
        cos, sin = self.cos[at].unsqueeze(-2), self.sin[at].unsqueeze(-2)  # [T, 1, D] or [B, T, 1, D]
        x = F.embedding(ids, self.embedding)  # [B, T, W]
        for layer in self.layers:
            x = layer(x, cos, sin, cache)
        if cache is not None:
            cache.advance(new)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return linear(norm(x, self.norm, self.config.norm_eps), self.output)  # [..., W] -> [..., V]

    def _draw_weights(self) -> None:
        """Normal, variance 1/inputs: every product keeps the size of what it reads.

        What adds to the stream is drawn narrower, so that all layers together add about as much as
        the embedding gave (Radford et al. 2019, section 2.3). Rounding then stays small on its way
        to the logits, and two ways to compute a text rarely disagree on which token is likeliest.
        Queries and keys are drawn wider, so that attention picks a few tokens instead of averaging
        all: then the next token hangs on the whole text and greedy output rarely falls into a loop.
        The generator is ours: the global one is neither read nor moved.
        """
        generator = torch.Generator().manual_seed(self.config.seed)
        turned = (self.config.heads + self.config.kv_heads) * self.config.head_size
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Drawn row by row as [out, in], whatever the layout in memory.
                std = 1.0 if name == "embedding" else weight.shape[1] ** -0.5
                if name.endswith((".out", ".down")):
                    std *= (2 * self.config.layers) ** -0.5
                weight.data.copy_(torch.randn(weight.shape, generator=generator) * std)
            if name.endswith("qkv"):
                weight.data[:turned] *= QK_GAIN


QK_GAIN = 2.0


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """``x`` [..., W] divided by its root mean square, times ``gain``.

    The gain apart: given to ``rms_norm``, it turns one kernel into six on a CPU.
    """
    return F.rms_norm(x, gain.shape, None, eps).mul_(gain)


def _matrix(config: ModelConfig, rows: int, columns: int) -> nn.Parameter:
    # [out, in] like everyone's, but laid out column by column in memory: one token's product then
    # streams the weights in order, a third faster on CPUs; larger batches hardly notice.
    return nn.Parameter(torch.empty(columns, rows, dtype=getattr(torch, config.dtype)).t())


def _gain(config: ModelConfig) -> nn.Parameter:
    return nn.Parameter(torch.ones(config.width, dtype=getattr(torch, config.dtype)))
