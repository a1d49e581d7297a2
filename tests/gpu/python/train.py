"""An ordinary PyTorch training program, in plain torch.nn: a GPT-2-small-like language model or a ResNet.

usage: train.py gpt2|resnet [--layers N] [--batch N] [--iterations N] [--device cpu]

It knows nothing of hmshim. Two runs that compute on the same numbers print the same losses, to the bit: fixed seeds, data
made on the CPU, deterministic algorithms, no tuning by time. Prints `iteration N loss HEX`, `iteration N ms T`, a
checksum of all weights, and the most memory that tensors took.
"""
import argparse
import hashlib
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY, CONTEXT, WIDTH, HEADS = 50257, 512, 768, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.before_attention(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class LanguageModel(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.token(tokens) + self.position(places)))
        return functional.linear(x, self.token.weight)  # tied, as GPT-2's


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.side = nn.Sequential() if inputs == outputs and stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return functional.relu(self.body(x) + self.side(x))


def resnet(layers):
    stages, width = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.ReLU()], 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for layer in range(max(1, layers // 4)):
            stages.append(Residual(width, outputs, 2 if stage and not layer else 1))
            width = outputs
    # Not adaptive pooling: its backward pass is not deterministic.
    return nn.Sequential(*stages, nn.Flatten(2), Mean(), nn.Linear(512, 1000))


class Stopwatch:
    """Milliseconds by the device's own events; by the clock where there is no device."""

    def __init__(self, device):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device == "cuda" else None

    def start(self):
        if self.events:
            torch.cuda.synchronize()
            self.events[0].record()
        self.begin = time.perf_counter()

    def stop(self):
        if not self.events:
            return 1e3 * (time.perf_counter() - self.begin)
        self.events[1].record()
        torch.cuda.synchronize()
        return self.events[0].elapsed_time(self.events[1])


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-1)


def build(arguments, numbers):
    """The model and a function that gives the next batch's inputs and targets."""
    if arguments.model == "gpt2":
        def batch():
            tokens = torch.randint(VOCABULARY, (arguments.batch, CONTEXT + 1), generator=numbers)
            return tokens[:, :-1], tokens[:, 1:]
        return LanguageModel(arguments.layers), batch

    def images():
        return (torch.randn(8 * arguments.batch, 3, 224, 224, generator=numbers),
                torch.randint(1000, (8 * arguments.batch,), generator=numbers))
    return resnet(arguments.layers), images


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("gpt2", "resnet"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    numbers = torch.Generator().manual_seed(2)
    model, batch = build(arguments, numbers)
    model.to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    stopwatch = Stopwatch(arguments.device)

    with sdpa_kernel(SDPBackend.MATH):
        for iteration in range(1, arguments.iterations + 1):
            inputs, targets = (part.to(arguments.device) for part in batch())
            stopwatch.start()
            with torch.autocast(arguments.device, torch.bfloat16):
                outputs = model(inputs)
            loss = functional.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(f"iteration {iteration} ms {stopwatch.stop():.3f}")
            print(f"iteration {iteration} loss {loss.item().hex()}", flush=True)

    checksum = hashlib.sha256()
    for weight in model.parameters():
        checksum.update(weight.detach().cpu().numpy().tobytes())
    print(f"weights {checksum.hexdigest()}")
    taken = torch.cuda.max_memory_allocated() if arguments.device == "cuda" else sum(4 * 4 * w.numel() for w in model.parameters())
    print(f"footprint {taken}")


if __name__ == "__main__":
    main()
