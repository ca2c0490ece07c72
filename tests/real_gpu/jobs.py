"""Training loops on a real GPU, each with one cause and without it: see run.sh."""
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from harness import FOLDER, NAME, main

DEVICE = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True


class Blocks(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x)) + x
        return x


def convolutions(width=64, classes=100):
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
    ).to(DEVICE)


class Made(Dataset):
    """Pictures that are made up."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        made = np.random.default_rng(i).integers(0, 255, (3, self.size, self.size), dtype=np.uint8)
        return torch.from_numpy(made), i % 100


class Jpeg(Dataset):
    """JPEG files, made when they are not there."""

    def __init__(self, folder="/tmp/real-gpu-jpeg", count=4000):
        from PIL import Image

        self.folder, self.count = folder, count
        if os.path.exists(folder):
            return
        random_ = np.random.default_rng(0)
        coarse = [random_.integers(0, 255, (14, 14, 3), dtype=np.uint8) for _ in range(16)]
        pictures = [np.kron(c, np.ones((24, 24, 1), np.uint8)) for c in coarse]
        for i in range(count):
            os.makedirs(f"{folder}/{i % 20}", exist_ok=True)
            Image.fromarray(np.roll(pictures[i % 16], i, 1)).save(f"{folder}/{i % 20}/{i}.jpg", quality=90)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        from PIL import Image

        picture = Image.open(f"{self.folder}/{i % 20}/{i}.jpg").convert("RGB").resize((224, 224))
        x = torch.from_numpy(np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 255.0)
        return (x - x.mean()) / (x.std() + 1e-5), i % 100


def updated(optimizer, loss):
    """The loss, after its update."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train(model, loader, non_blocking=False):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    while True:
        for i, (x, y) in enumerate(loader):
            x, y = x.to(DEVICE, non_blocking=non_blocking), y.to(DEVICE, non_blocking=non_blocking)
            x = x.float() / 255 if x.dtype == torch.uint8 else x
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            updated(optimizer, loss)
            if i % 10 == 0:
                loss.item()
            yield


class Update:
    """A model of wide layers and its update."""

    def __init__(self, width, layers, batch):
        self.model = Blocks(width, layers).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.x = torch.randn(batch, width, device=DEVICE)

    def forward(self, x=None):
        with torch.autocast("cuda", torch.bfloat16):
            return self.model(self.x if x is None else x)

    def step(self, loss):
        return updated(self.optimizer, loss)


def captured(step):
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph, loss


# What each is held up by, and what takes that away.


def resnet(fixed):
    """ResNet-50, 64 pictures a step: the host launches too slowly."""
    import torchvision

    model = torchvision.models.resnet50().to(DEVICE, memory_format=torch.channels_last)
    loader = DataLoader(Made(10**6, 224), 64, num_workers=8, pin_memory=True, persistent_workers=True)
    return train(model, loader, non_blocking=True)


def large(fixed):
    """Large matrices, nothing waits for the GPU: computing."""
    update = Update(4096, 24, 2048)
    while True:
        update.step(update.forward().square().mean())
        yield


def few_workers(fixed):
    """Two workers decode."""
    loader = DataLoader(Jpeg(), 32, shuffle=True, num_workers=14 if fixed else 2, pin_memory=True, persistent_workers=True)
    return train(convolutions(), loader, non_blocking=True)


def no_workers(fixed):
    """The trainer decodes itself."""
    return train(convolutions(), DataLoader(Jpeg(), 32, shuffle=True, num_workers=8 if fixed else 0))


def launches(fixed):
    """2767 small kernels a step; one CUDA graph."""
    layers = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(60)]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, foreach=fixed, capturable=fixed)
    x = torch.randn(256, 128, device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    graph, loss = captured(step) if fixed else (None, None)
    while True:
        if fixed:
            graph.replay()
            loss.item()
        else:
            step().item()
        yield


def copies(fixed, width, layers, rows, count, pinned):
    model = Blocks(width, layers).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    data = [torch.randn(rows, width) for _ in range(count)]
    if fixed:
        data = [batch.to(DEVICE) for batch in data]
    elif pinned:
        data = [batch.pin_memory() for batch in data]
    turn = 0
    while True:
        turn += 1
        loss = model(data[turn % count].to(DEVICE, non_blocking=pinned)).square().mean()
        updated(optimizer, loss).item()
        yield


def pageable(fixed):
    """Copies from memory that is not pinned; data on the GPU."""
    return copies(fixed, 2048, 4, 16384, 8, False)


def pinned(fixed):
    """Copies that nobody waits for but the GPU; data on the GPU."""
    return copies(fixed, 2048, 2, 32768, 4, True)


def read_back(fixed):
    """400 results are read back one by one."""
    update = Update(1024, 16, 4096)
    while True:
        out = update.forward()
        loss = update.step(out.square().mean())
        [loss.item()] if fixed else [float(out[k].mean()) for k in range(400)]
        yield


def checkpoint(fixed):
    """Each 25th step is saved and synced."""
    update, turn = Update(4096, 16, 4096), 0
    while True:
        turn += 1
        update.step(update.forward().square().mean()).item()
        if turn % 25 == 0 and not fixed:
            with open(os.path.join(FOLDER, "state.new"), "wb") as file:
                torch.save(update.model.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(file.name, os.path.join(FOLDER, "state"))
        yield


def shared(fixed):
    """Another process computes on the GPU; it is gone."""
    update = Update(2048, 8, 8192)
    while True:
        if fixed:
            open(os.path.join(FOLDER, "neighbour.stop"), "w").close()
        update.step(update.forward().square().mean()).item()
        yield


def neighbour():
    matrix = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    while not os.path.exists(os.path.join(FOLDER, "neighbour.stop")):
        for _ in range(4):
            matrix @ matrix
        torch.cuda.synchronize()


def environment(fixed):
    """Reinforcement learning: 32 turns of an environment of 2 ms, then four updates; one that takes nothing."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    seen = np.zeros(64, np.float32)
    while True:
        turns = []
        for _ in range(32):
            with torch.no_grad():
                action = int(model(torch.from_numpy(seen).to(DEVICE)).argmax().item())
            begun = time.perf_counter()
            while not fixed and time.perf_counter() - begun < 0.002:
                seen = np.tanh(seen + 0.01 * action)
            turns.append(seen)
        batch = torch.from_numpy(np.stack(turns)).to(DEVICE)
        for _ in range(4):
            loss = model(batch).square().mean()
            updated(optimizer, loss)
        loss.item()
        yield


def empty_cache(fixed):
    """torch.cuda.empty_cache() in each step."""
    update = Update(2048, 8, 4096)
    update.optimizer = torch.optim.SGD(update.model.parameters(), 1e-4)
    while True:
        update.step(update.forward().square().mean()).item()
        if not fixed:
            torch.cuda.empty_cache()
        yield


def collate(fixed):
    """Texts become tokens in the trainer; six workers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=8000)).to(DEVICE)
    words = [f"w{k}" for k in range(8000)]
    vocabulary = {word: k for k, word in enumerate(words)}
    random_ = random.Random(1)
    texts = [" ".join(random_.choices(words, k=4000)) for _ in range(400)]

    def tokens(batch):
        return torch.tensor([[vocabulary[w.lower().strip()] for w in text.split(" ")][:256] for text in batch])

    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    workers = 6 if fixed else 0
    loader = DataLoader(texts * 100, 32, collate_fn=tokens, num_workers=workers, shuffle=True, persistent_workers=fixed)
    while True:
        for ids in loader:
            ids = ids.to(DEVICE)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(ids, labels=ids).loss
            updated(optimizer, loss).item()
            yield


def preparation(fixed):
    """numpy prepares each batch in the trainer; nothing is to be prepared."""
    update = Update(2048, 8, 2048)
    base = np.random.randn(2048, 2048).astype(np.float32)
    ready = torch.from_numpy(base)
    while True:
        x = ready
        if not fixed:
            x = torch.from_numpy(np.clip(np.sqrt(np.abs(base)) * np.sign(base), -2, 2))
        update.step(update.forward(x.to(DEVICE)).square().mean()).item()
        yield


WITHOUT_FIX = ("resnet", "large")

if __name__ == "__main__":
    if NAME == "neighbour":
        neighbour()
        sys.exit()
    main(globals()[NAME], fix=NAME not in WITHOUT_FIX)
