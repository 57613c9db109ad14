"""The matrix product of every layer, by the fastest kernel at hand for its size.

In float32 on a CPU, PyTorch calls MKL, which takes 8 numbers an instruction (AVX2) on processors that are
not its maker's. oneDNN, also inside PyTorch, takes 16 (AVX-512) on any that can: twice as fast for the many
tokens of a batch. For one token MKL wins: it starts sooner, and the memory is the limit anyway.

oneDNN reads a matrix in an order of its own. Left to itself it reorders it in every call, which for a small
batch takes as long as the product. So a model's weights are kept in that order, too: twice the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

MANY = 4
"""Tokens from which oneDNN is quicker, as measured: fewer, and the weights' way from memory decides."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x``: [..., I], ``weight``: [O, I] -> [..., O].

    PyTorch's own switch, ``torch.backends.mkldnn.flags(enabled=False)``, leaves the choice to PyTorch.
    """
    if x.numel() >= MANY * weight.shape[-1] and _fit(x, weight) and (product := onednn()):
        return product(x, _packed(weight))
    return F.linear(x, weight)


class Packed:
    """A weight in oneDNN's order, and of which state of the weight it is. Nobody else can read it."""

    def __init__(self, made_of: tuple[int, int], weight: Tensor) -> None:
        self.made_of, self.weight = made_of, weight

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a model that is pickled leaves it behind


@cache
def onednn() -> Callable[[Tensor, Tensor], Tensor] | None:
    """oneDNN's product, or None where PyTorch's own choice stands: on ARM, a Mac, some later PyTorch.

    The operation is private to PyTorch, so it is tried once before it is relied on.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None

    def product(x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # no activation
        return y

    x, weight = torch.ones(MANY, 3, device="cpu"), torch.ones(2, 3, device="cpu")
    try:
        right = F.linear(x, weight)
        return product if all(torch.equal(product(x, w), right) for w in (weight, reorder(weight))) else None
    except (AttributeError, RuntimeError, TypeError):
        return None


def _fit(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes these two. What it cannot take, PyTorch says in clear words, or can."""
    return (
        x.dtype is weight.dtype is torch.float32
        and x.is_cpu
        and 0 < x.shape[-1] == weight.shape[-1]
        and torch._C._get_mkldnn_enabled()
    )


def _packed(weight: Tensor) -> Tensor:
    """A model's weight in oneDNN's order, made when first asked for and again after a change in place.

    A change through ``.data`` goes unseen, as it does by autograd. Other tensors stay as they are.
    """
    if not isinstance(weight, nn.Parameter) or weight.is_inference():  # the latter count no changes
        return weight
    now = weight.data_ptr(), weight._version
    held: Packed | None = getattr(weight, "packed", None)
    if held is None or held.made_of != now:
        held = Packed(now, reorder(weight))
        weight.packed = held  # type: ignore[attr-defined]
    return held.weight


def reorder(weight: Tensor) -> Tensor:
    """``weight`` in oneDNN's order, which only ``onednn()``'s product can read."""
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # for any number of tokens
    return ordered
