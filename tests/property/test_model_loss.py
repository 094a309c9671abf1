"""Losses and probabilities: chunked equals plain, adaptive is a distribution, -100 is nothing."""

from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model import cross_entropy
from model.cross_entropy import linear_cross_entropy
from model.loss import loss_sum
from model.transformer_xl import TransformerXL
from tests.models import V, same, small_model

HEADS: list[dict[str, Any]] = [
    {},
    {"tie_weights": False},
    {"embed_width": 8},
    {"cutoffs": (4, 9)},
    {"cutoffs": (4, 9), "embed_width": 8, "tie_projections": (True, False, True)},
    {"cutoffs": (4, 9), "div_val": 2, "tie_weights": False},
    {"cutoffs": (1, 9), "div_val": 2, "tie_projections": (False, True, True)},
    {"cutoffs": (20,), "div_val": 4},
]
MODELS = [small_model(**changes) for changes in HEADS]
heads = st.integers(0, len(HEADS) - 1)


def drawn(data: st.DataObject, *shape: int) -> Tensor:
    source = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    return torch.empty(shape, dtype=torch.float64).normal_(generator=source)


def targets_of(count: int) -> st.SearchStrategy[Tensor]:
    one = st.one_of(st.just(-100), st.integers(0, V - 1))
    return st.lists(one, min_size=count, max_size=count).map(torch.tensor)


@given(data=st.data(), chunk=st.integers(1, 200), even=st.booleans())
def test_chunked_cross_entropy_is_the_plain_one_in_value_and_gradient(
    data: st.DataObject, chunk: int, even: bool
) -> None:
    T, D = data.draw(st.integers(1, 12)), 5
    inputs = [drawn(data, *shape).requires_grad_() for shape in ((T, D), (V, D), (V,))]
    targets = data.draw(targets_of(T))
    weights = torch.full((T,), 0.3).double() if even else drawn(data, T)
    hidden, weight, bias = inputs
    plain = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none")
    wanted = torch.autograd.grad((plain * weights).sum(), inputs)
    with mock.patch.object(cross_entropy, "_CHUNK_LOGITS", {"cpu": chunk}):
        found = linear_cross_entropy(hidden, weight, bias, targets)
        gradients = torch.autograd.grad((found * weights).sum(), inputs)
        with torch.no_grad():
            same(linear_cross_entropy(hidden, weight, bias, targets), plain)
    same(found, plain)
    for one, other in zip(gradients, wanted, strict=True):
        same(one, other)


@given(which=heads, data=st.data(), z_loss=st.sampled_from([0.0, 1e-4, 0.3]), even=st.booleans())
def test_the_z_loss_is_the_plain_one_in_value_and_gradient_in_any_chunks(
    which: int, data: st.DataObject, z_loss: float, even: bool
) -> None:
    model = MODELS[which]
    T, chunk = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 200))
    hidden = drawn(data, 1, T, model.config.width).requires_grad_()
    targets = data.draw(targets_of(T)).view(1, T)
    inputs = [hidden, *model.softmax.parameters(), *model.embedding.parameters()]
    weights = torch.full((1, T), 0.3).double() if even else drawn(data, 1, T)
    wanted_penalty = z_loss * log_totals_squared(model, hidden, targets)
    nll = model.nll(hidden, targets)
    with mock.patch.object(cross_entropy, "_CHUNK_LOGITS", {"cpu": chunk}):
        found, penalty = model.penalized(hidden, targets, z_loss=z_loss)
    assert not penalty.requires_grad
    same(penalty, wanted_penalty.detach())
    same(found, nll + wanted_penalty)
    grads = [
        torch.autograd.grad((loss * weights).sum(), inputs, materialize_grads=True)
        for loss in (found, nll + wanted_penalty)
    ]
    for one, other in zip(*grads, strict=True):
        same(one, other)


def log_totals_squared(model: TransformerXL, hidden: Tensor, targets: Tensor) -> Tensor:
    """The squared log Z of the head, and of the cluster of a rare target; (B, L)."""
    softmax, edges = model.softmax, model.config.cluster_edges

    def log_total(cluster: int) -> Tensor:
        weight, bias = (softmax._head if cluster == 0 else partial(softmax._cluster, cluster))(
            model.embedding
        )
        projected = softmax._projected(hidden, cluster, model.embedding)
        return F.linear(projected, weight, bias).logsumexp(dim=-1)

    total = log_total(0).square() * (targets >= 0)
    for cluster in range(1, len(edges) - 1):
        inside = (targets >= edges[cluster]) & (targets < edges[cluster + 1])
        total = total + log_total(cluster).square() * inside
    return total


@given(which=heads, data=st.data())
def test_a_loss_is_minus_its_log_probability_and_all_of_these_sum_to_one(
    which: int, data: st.DataObject
) -> None:
    model = MODELS[which]
    B, L = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    hidden = drawn(data, B, L, model.config.width).requires_grad_()
    targets = data.draw(targets_of(B * L)).view(B, L)
    log_prob = model.log_prob(hidden)
    same(log_prob.exp().sum(dim=-1), torch.ones(B, L).double())
    real = targets >= 0
    wanted = -log_prob.gather(2, targets.clamp(min=0)[..., None])[..., 0].masked_fill(~real, 0)
    found = model.nll(hidden, targets)
    same(found, wanted)
    assert (found[~real] == 0).all()
    inputs = [hidden, *model.softmax.parameters(), *model.embedding.parameters()]
    grads = [
        torch.autograd.grad(loss.sum(), inputs, materialize_grads=True) for loss in (found, wanted)
    ]
    for one, other in zip(*grads, strict=True):
        same(one, other)
    total, count = loss_sum(found, targets)
    assert (total.dtype, count.dtype) == (torch.float64, torch.int64)
    assert int(count) == int(real.sum())
    same(total, wanted.sum())


@pytest.mark.parametrize("which", range(len(HEADS)))
def test_every_weight_has_a_gradient_though_only_one_cluster_is_read(which: int) -> None:
    model = small_model(**HEADS[which])
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    hidden = model.embedding(tokens)
    model.nll(hidden, tokens).sum().backward()
    weights = [*model.embedding.parameters(), *model.softmax.parameters()]
    assert all(weight.grad is not None for weight in weights)


@given(which=heads, data=st.data())
def test_a_cluster_embeds_its_ids_as_the_definition_says(which: int, data: st.DataObject) -> None:
    model = MODELS[which]
    config, embedding = model.config, model.embedding
    token = data.draw(st.integers(0, V - 1))
    edges = list(pairwise(config.cluster_edges))
    cluster = next(i for i, (low, high) in enumerate(edges) if low <= token < high)
    if config.div_val > 1:
        row = embedding.tables[cluster][token - edges[cluster][0]]
    else:
        row = embedding.tables[0][token]
    if len(embedding.projections):
        row = embedding.projections[cluster if config.div_val > 1 else 0] @ row
    same(embedding(torch.tensor([[token]]))[0, 0], row * config.width**0.5)


@pytest.mark.parametrize("which", [0, 4, 6])
def test_losses_stay_float32_and_near_under_bf16(which: int) -> None:
    model = small_model(dtype=torch.float32, **HEADS[which])
    source = torch.Generator().manual_seed(0)
    hidden = torch.empty(2, 6, model.config.width).normal_(generator=source).requires_grad_()
    targets = torch.arange(12).view(2, 6)
    wanted = model.nll(hidden, targets)
    (wanted_grad,) = torch.autograd.grad(wanted.sum(), hidden)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.nll(hidden, targets)
        assert model.log_prob(hidden).dtype == torch.float32
    (found_grad,) = torch.autograd.grad(found.sum(), hidden)
    assert found.dtype == torch.float32
    same(found, wanted, close=0.05)
    same(found_grad, wanted_grad, close=0.05)


def test_all_targets_missing_give_zero_losses_and_gradients() -> None:
    model = small_model(cutoffs=(4, 9))
    hidden = torch.ones(1, 3, model.config.width, dtype=torch.float64, requires_grad=True)
    nll = model.nll(hidden, torch.full((1, 3), -100))
    nll.sum().backward()
    assert (nll == 0).all()
    assert hidden.grad is not None
    assert (hidden.grad == 0).all()
