#!/usr/bin/env python3
"""Trains a model on random data as a user would: nothing here knows of hmshim.

Prints one line of JSON: per step the time and the launches, and what PyTorch's allocator counted.
"""

import argparse
import contextlib

import models
import torch
from steps import Steps

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("gpt2", "llama", "resnet50"), default="gpt2")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--optimizer", choices=("foreach", "fused", "sgd"), default="foreach")
parser.add_argument("--bf16", action="store_true", help="autocast")
parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
parser.add_argument("--evaluate-every", type=int, default=0, help="steps between evaluations of two batches")
parser.add_argument("--lengths", type=int, nargs="+", default=[models.LENGTH], help="sequence lengths, in turn")
parser.add_argument("--compile", choices=("eager", "aot_eager"))
parser.add_argument("--graph", action="store_true", help="capture the whole step and replay it")
parser.add_argument("--workers", type=int, default=0, help="DataLoader workers")
arguments = parser.parse_args()


class RandomBatches(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        if arguments.model == "resnet50":
            return torch.rand(arguments.batch, 3, 128, 128, generator=generator), torch.randint(1000, (arguments.batch,), generator=generator)
        length = arguments.lengths[index // arguments.accumulate % len(arguments.lengths)]
        tokens = torch.randint(models.VOCABULARY, (arguments.batch, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


torch.manual_seed(0)
torch.backends.cudnn.enabled = False
with torch.device("cuda"):
    model = {"gpt2": models.gpt2, "llama": models.llama, "resnet50": models.ResNet50}[arguments.model]()
model.recompute = arguments.recompute
if arguments.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=arguments.graph, **{arguments.optimizer: True})
forward = torch.compile(model, backend=arguments.compile) if arguments.compile else model
loader = torch.utils.data.DataLoader(RandomBatches(arguments.steps * arguments.accumulate), batch_size=None,
                                     num_workers=arguments.workers, pin_memory=True)
steps = Steps()


def loss_of(inputs, targets):
    with torch.autocast("cuda", torch.bfloat16) if arguments.bf16 else contextlib.nullcontext():
        return forward(inputs, targets)


def evaluate():
    model.eval()
    with torch.no_grad():
        for index in range(2):
            inputs, targets = (tensor.cuda() for tensor in loader.dataset[index])
            loss_of(inputs, targets).item()
    model.train()


def train():
    for index, batch in enumerate(loader):
        inputs, targets = (tensor.cuda(non_blocking=True) for tensor in batch)
        (loss_of(inputs, targets) / arguments.accumulate).backward()
        if (index + 1) % arguments.accumulate:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps.done()
        if arguments.evaluate_every and steps.count % arguments.evaluate_every == 0:
            evaluate()


def train_by_graph():
    inputs, targets = (tensor.cuda() for tensor in loader.dataset[0])

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(inputs, targets).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in loader:
        inputs.copy_(batch[0], non_blocking=True)
        targets.copy_(batch[1], non_blocking=True)
        graph.replay()
        steps.done()


(train_by_graph if arguments.graph else train)()
steps.report(max_allocated_bytes=torch.cuda.max_memory_allocated(), parameters=sum(p.numel() for p in model.parameters()))
