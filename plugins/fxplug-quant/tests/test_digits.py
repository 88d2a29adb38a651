"""Models trained on scikit-learn's digits lose next to nothing, over all images."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug_quant

datasets = pytest.importorskip("sklearn.datasets")

_FOLDS = 5


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = datasets.load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.tensor(data.target)[order]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.SELU(), nn.Linear(32, 10)
    )


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.third = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)
        self.pool, self.hidden, self.head = nn.MaxPool2d(2), nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        x = self.pool((self.second(x) + x).relu())
        return self.head(self.hidden(torch.flatten(self.third(x).relu(), 1)).relu())


def trained(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(12):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for part in order.split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize("build", [mlp, Cnn])
def test_at_most_half_a_point_of_accuracy_is_lost_over_five_folds(digits, build):
    images, labels = digits
    right = dict.fromkeys(("float", *fxplug_quant.MODES), 0)
    assert len(right) == 5
    for fold in range(_FOLDS):
        held = torch.arange(len(images)) % _FOLDS == fold
        torch.manual_seed(fold)
        model = trained(build(), images[~held], labels[~held])
        for mode in right:
            tested = copy.deepcopy(model)
            if mode != "float":
                config = {"mode": mode, "group_size": 32}
                prepared = fxplug_quant.prepare(tested, config, images[:2])
                assert mode in {entry.mode for entry in prepared.plan.calls().values()}
                if prepared.observers:
                    prepared.calibrate(images[~held][:512].split(128))
                tested = fxplug_quant.convert(prepared)
            with torch.no_grad():
                right[mode] += int((tested(images[held]).argmax(1) == labels[held]).sum())
    accuracy = {mode: count / len(images) for mode, count in right.items()}

    assert accuracy["float"] > 0.95
    assert all(found >= accuracy["float"] - 0.005 for found in accuracy.values()), accuracy
