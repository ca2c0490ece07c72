"""An ordinary PyTorch training script on pictures in a folder per class: train.py DIR"""

import os
import sys
import time

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 1_000
BATCH = 32


class Pictures(Dataset):
    def __init__(self, folder):
        self.classes = sorted(os.listdir(folder))
        self.files = [
            (os.path.join(folder, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as picture:
            picture = picture.convert("RGB").resize((224, 224), Image.BICUBIC)
        if torch.rand(1).item() < 0.5:
            picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1).float()
        return pixels / 127.5 - 1, label


def network(classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, classes),
    )


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Pictures(sys.argv[1])
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    model = network(len(data.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step, begun = 0, time.monotonic()
    for epoch in range(EPOCHS):
        for pixels, labels in loader:
            loss = criterion(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                took, begun = time.monotonic() - begun, time.monotonic()
                print(f"step {step} epoch {epoch} loss {loss.item():.3f} {took / 20 * 1e3:.0f} ms a step", flush=True)


if __name__ == "__main__":
    main()
