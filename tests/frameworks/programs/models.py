"""A GPT-2-like and a Llama-like language model and a ResNet-50, in plain torch.nn; small, and made on the device."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads, rotary, bias):
        super().__init__()
        self.heads, self.kv_heads, self.head_width, self.rotary = heads, kv_heads, width // heads, rotary
        self.q = nn.Linear(width, width, bias=bias)
        self.kv = nn.Linear(width, 2 * kv_heads * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def rotate(self, x):
        half = self.head_width // 2
        positions = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, 10000 ** (-torch.arange(half, device=x.device) / half))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class GatedMlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, norm, attention, mlp, width):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(width), attention, norm(width), mlp

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, blocks, norm, width, vocabulary, positions, tied):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.recompute = False

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


VOCABULARY = 8192
LENGTH = 256


def gpt2(width=768, heads=12, layers=6):
    def mlp():
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    blocks = [Block(nn.LayerNorm, Attention(width, heads, heads, False, True), mlp(), width) for _ in range(layers)]
    return LanguageModel(blocks, nn.LayerNorm, width, VOCABULARY, LENGTH, tied=True)


def llama(width=768, heads=12, kv_heads=4, layers=6, hidden=2048):
    blocks = [Block(nn.RMSNorm, Attention(width, heads, kv_heads, True, False), GatedMlp(width, hidden), width) for _ in range(layers)]
    return LanguageModel(blocks, nn.RMSNorm, width, VOCABULARY, None, tied=False)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(count):
                layers.append(Bottleneck(inputs, width, 2 if i == 0 and width > 64 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, images, targets):
        return F.cross_entropy(self.body(images), targets)
