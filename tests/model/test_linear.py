from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from servelib.model.linear import MANY, linear, onednn


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (1, MANY - 1), (1, MANY), (2, MANY), (300,), (0,), (2, 0)])
@pytest.mark.parametrize("by_column", [False, True])
def test_every_size_layout_and_format_is_the_matrix_product(
    shape: tuple[int, ...], dtype: torch.dtype, by_column: bool
):
    x, weight = draw(*shape, 48).to(dtype), draw(20, 48).to(dtype)
    found = linear(x, weight.t().contiguous().t() if by_column else weight)
    assert found.dtype is dtype
    assert found.shape == (*shape, 20)
    expected = x.double() @ weight.double().t()
    assert torch.allclose(found.double(), expected, atol=0.3 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (draw(9, 1), draw(5, 1)),
        (draw(9, 0), draw(5, 0)),
        (draw(9, 7), draw(1, 7)),
        (draw(9, 7), draw(0, 7)),
        (draw(7, 9).t(), draw(5, 7)),
        (draw(9, 14)[:, ::2], draw(10, 14)[::2, ::2]),
        (draw(1, 7).expand(9, 7), draw(1, 7).expand(5, 7)),
        (draw(4, 3, 7).transpose(0, 1), draw(5, 7)),
        (draw(3, 2, 3, 7)[1], draw(15, 7)[5:10]),
        (draw(20_000, 8), draw(500, 8)),
    ],
)
def test_odd_sizes_and_views_too(x: torch.Tensor, weight: torch.Tensor):
    found = linear(x, weight)
    assert found.shape == (*x.shape[:-1], len(weight))
    assert torch.allclose(found, F.linear(x, weight), atol=1e-4)


def test_what_is_not_a_number_stays_in_its_row():
    x, weight = draw(8, 16), draw(5, 16)
    x[2, 3], x[4, 5] = torch.nan, torch.inf
    found = linear(x, weight)
    assert found.isfinite().all(1).tolist() == [True, True, False, True, False, True, True, True]
    assert torch.allclose(found, F.linear(x, weight), atol=1e-4, equal_nan=True)
    weight[1, 3] = torch.inf  # times the 0 that stands against it in one row
    x = draw(8, 16)
    x[0, 3] = 0
    assert linear(x, weight).isnan().nonzero().tolist() == [[0, 1]]


def test_a_row_is_the_same_beside_more_rows_and_on_more_threads(request: pytest.FixtureRequest):
    x, weight = draw(64, 256), draw(128, 256)
    alone = linear(x, weight)
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(2)
    assert torch.allclose(linear(x, weight), alone, atol=1e-4)
    for rows in (1, MANY, 7, 33):
        assert torch.allclose(linear(x[:rows], weight), alone[:rows], atol=1e-4)


@pytest.mark.parametrize("other", [draw(3, 6), draw(3, 7).double()])
def test_what_does_not_fit_is_said_by_pytorch(other: torch.Tensor):
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|same dtype"):
        linear(draw(8, 7), other)


def test_it_follows_the_device():
    assert linear(torch.empty(8, 4, device="meta"), torch.empty(3, 4, device="meta")).device.type == "meta"


@pytest.mark.filterwarnings("ignore:TF32")  # of PyTorch, about its own switch
def test_pytorchs_own_switch_turns_it_off():
    x, weight = draw(64, 256), draw(128, 256)
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.fixture
def tried_again() -> Iterator[None]:
    onednn.cache_clear()
    yield
    onednn.cache_clear()


@pytest.mark.usefixtures("tried_again")
@pytest.mark.parametrize("instead", [None, lambda x, weight: x, lambda *_: torch.zeros(MANY, 2)])
def test_a_pytorch_without_the_private_operation_or_with_another_by_its_name(
    monkeypatch: pytest.MonkeyPatch, instead: object
):
    class Namespace:
        _linear_pointwise = staticmethod(instead) if callable(instead) else property()

    monkeypatch.setattr(torch.ops, "mkldnn", Namespace())
    assert onednn() is None
    x, weight = draw(64, 256), draw(128, 256)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_a_weight_is_kept_in_another_order_and_a_change_in_place_is_seen():
    weight = nn.Parameter(draw(128, 256), requires_grad=False)
    x = draw(8, 256)
    for view in (weight, weight[:64], weight.detach()[64:]):
        view.mul_(2)
        assert torch.allclose(linear(x, weight), F.linear(x, weight), atol=1e-4)
    weight.data = draw(64, 256)  # as when a model moves: other memory
    assert torch.allclose(linear(x, weight), F.linear(x, weight), atol=1e-4)
    with torch.inference_mode():
        born_there = nn.Parameter(draw(128, 256), requires_grad=False)
        assert torch.allclose(linear(x, born_there), F.linear(x, born_there), atol=1e-4)


def test_a_model_that_has_run_is_pickled_and_copied_without_the_other_order():
    weight = nn.Parameter(draw(128, 256), requires_grad=False)
    x = draw(8, 256)
    expected = linear(x, weight)
    for other in (pickle.loads(pickle.dumps(weight)), copy.deepcopy(weight)):
        assert torch.equal(linear(x, other), expected)
