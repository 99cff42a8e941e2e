"""Messages, corrections and the loss: literal numbers, and the corners where nothing is known."""

import math

import pytest
import torch

from envsched_gnn.graph.neighbors import RELATIONS
from envsched_gnn.models.features import SOURCE
from envsched_gnn.models.memory import Groups
from envsched_gnn.models.network import MESSAGE, NODE, GatedConv, Propagation, corrected, loss


def groups(n: int, seed: int = 0) -> Groups:
    g = torch.Generator().manual_seed(seed)
    return Groups(
        nodes=torch.randn(n, NODE, generator=g),
        neighbors=torch.rand(n, 5, len(SOURCE), generator=g),
        similarity=(torch.rand(n, 5, generator=g) - 0.3).clamp(min=0),
        base=torch.zeros(n, 3),
        outcome=torch.rand(n, 3, generator=g),
    )


def test_an_untrained_network_corrects_nothing() -> None:
    some = groups(7)
    assert torch.equal(Propagation()(some.nodes, some.neighborhood(2)), torch.zeros(7, 3))


def test_corrections_by_hand() -> None:
    p = torch.tensor([0.3, 0.0, 1.0, 0.5], dtype=torch.float64)
    assert torch.equal(corrected(p, torch.zeros(4, dtype=torch.float64)), p)
    assert corrected(p, torch.full((4,), math.log(3.0), dtype=torch.float64)).tolist() == pytest.approx([0.9 / 1.6, 0.0, 1.0, 0.75])


def test_messages_by_hand() -> None:
    """Two neighbours with gates g and values x: (g1 x1 + g2 x2) / (g1 + g2 + 1)."""
    conv = GatedConv()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.zero_()
        conv.value.bias.fill_(2.0)
        conv.gate[2].bias.fill_(math.log(3.0))
    source = torch.zeros(2, len(SOURCE))
    out = conv((source, None), torch.tensor([[0, 1], [0, 0]]), torch.tensor([0.5, 0.5]), (2, 2))
    assert out.tolist() == [pytest.approx([2 * 0.75 * 2 / 2.5] * MESSAGE), [0.0] * MESSAGE]


def test_a_gate_hears_similarity_and_evidence() -> None:
    torch.manual_seed(0)
    conv = GatedConv()
    source = torch.zeros(3, len(SOURCE))
    source[1, 0] = math.log(5.0)  # W_long = 4
    one = [conv((source, None), torch.tensor([[j], [0]]), torch.tensor([s]), (3, 1)) for j, s in ((0, 0.5), (0, 0.9), (2, 0.5))]
    assert torch.equal(one[0], one[2])
    assert not torch.allclose(one[0], one[1])
    with torch.no_grad():
        conv.value.weight.zero_()  # the same value from both: only the gate may tell them apart
    a, b = (conv((source, None), torch.tensor([[j], [0]]), torch.tensor([0.5]), (3, 1)) for j in (0, 1))
    assert not torch.allclose(a, b)


def test_the_order_of_neighbours_and_padding_do_not_matter() -> None:
    torch.manual_seed(1)
    network, some = Propagation(), groups(6)
    torch.nn.init.normal_(network.head.weight)
    order = [1, 0, 4, 2, 3]
    shuffled = Groups(**{**some.tensors(), "neighbors": some.neighbors[:, order], "similarity": some.similarity[:, order]})
    torch.testing.assert_close(network(some.nodes, some.neighborhood(2)), network(shuffled.nodes, shuffled.neighborhood(2)))
    silent = Groups(**{**some.tensors(), "similarity": torch.zeros(6, 5)})
    alone = Groups(**{**some.tensors(), "neighbors": torch.zeros(6, 0, len(SOURCE)), "similarity": torch.zeros(6, 0)})
    torch.testing.assert_close(network(some.nodes, silent.neighborhood(2)), network(some.nodes, alone.neighborhood(0)))


def test_the_loss_by_hand() -> None:
    r, base = torch.zeros(2, 3), torch.zeros(2, 3)
    base[:, 0] = math.log(3.0)  # p = 0.75
    z, v, m = torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.0]), torch.tensor([0.5, 0.5])
    expected = -(math.log(0.75) + math.log(0.25)) / 2 + math.log(2) / 2 + 0.5 * math.log(2)
    assert float(loss(r, base, z, v, m)) == pytest.approx(expected, rel=1e-6)


def test_devices_agree(device: torch.device) -> None:
    torch.manual_seed(2)
    network, some = Propagation(), groups(50)
    torch.nn.init.normal_(network.head.weight, std=0.1)
    here = network(some.nodes, some.neighborhood(2))
    there = Groups(**{name: tensor.to(device) for name, tensor in some.tensors().items()})
    torch.testing.assert_close(network.to(device)(there.nodes, there.neighborhood(2)).cpu(), here, rtol=1e-4, atol=1e-5)


def test_both_relations_have_weights_of_their_own() -> None:
    network = Propagation()
    within, cross = (network.messages[relation].value.weight for relation in RELATIONS)
    assert not torch.equal(within, cross)
