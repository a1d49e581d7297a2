"""Training programs for record_trace. Each builds its model and returns a function that runs one training step."""
from dataclasses import dataclass
from typing import Callable, Optional

import torch
import transformers
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Workload:
    sentence: str
    build: Callable
    batch: int
    sequence: Optional[int] = None


def mixed_precision():
    return torch.autocast('cpu', torch.bfloat16)


def adamw(model):
    return torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4, fused=True)


def training_step(model, loss_of, optimizer, micro_batches=1, evaluations=0):
    """A step: forward and backward passes of so many micro-batches, one update, and some passes without gradients."""
    def step():
        for _ in range(micro_batches):
            with mixed_precision():
                loss = loss_of() / micro_batches
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.eval()
        for _ in range(evaluations):
            with torch.no_grad(), mixed_precision():
                loss_of()
        model.train()
    return step


def language_model(config_of, checkpointing=False, prepare=lambda model: None, shares=(1,), **step):
    """`shares`: a step for each, of so much of the sequence's length."""
    def build(arguments):
        model = transformers.AutoModelForCausalLM.from_config(config_of(), attn_implementation='sdpa')
        model.train()
        prepare(model)
        if checkpointing:
            model.gradient_checkpointing_enable({'use_reentrant': False})
        model.config.use_cache = False

        def loss_of(length):
            tokens = torch.zeros(arguments.batch, length, dtype=torch.long)
            return model(input_ids=tokens, labels=tokens).loss
        optimizer = adamw(model)
        steps = [training_step(model, lambda length=int(share * arguments.sequence): loss_of(length), optimizer, **step)
                 for share in shares]
        return lambda: [run_step() for run_step in steps]
    return build


class LowRank(nn.Module):
    """LoRA (Hu et al. 2021): a frozen linear layer and a trained low-rank correction."""

    def __init__(self, frozen, rank=16):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def freeze_to_bf16(model):
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16)
        weight.requires_grad_(False)
    for block in model.model.layers:
        for name in ('q_proj', 'k_proj', 'v_proj', 'o_proj'):
            setattr(block.self_attn, name, LowRank(getattr(block.self_attn, name)))


def llama(hidden, intermediate, layers, heads):
    return lambda: transformers.LlamaConfig(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                                            num_attention_heads=heads, num_key_value_heads=heads, vocab_size=32000)


LLAMA_7B = llama(4096, 11008, 32, 32)
LLAMA_13B = llama(5120, 13824, 40, 40)


def gpt2(width, layers, heads):
    # With dropout in the attention, which flash kernels do on a GPU, PyTorch on a CPU falls back to whole matrices.
    return lambda: transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, attn_pdrop=0)


gpt2_medium = gpt2(1024, 24, 16)
gpt2_xl = gpt2(1600, 48, 25)


class Experts(nn.Module):
    """A GShard layer (Lepikhin et al. 2020) of the top two of its experts, with room for 1.25 times the mean load.

    Its shapes do not depend on the data, so that fake tensors will do: a token without room is lost, as in GShard.
    """

    def __init__(self, width, hidden, experts=8):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        experts = self.gate.out_features
        room = tokens.shape[0] * 2 * 5 // (experts * 4)
        shares, chosen = self.gate(tokens).softmax(-1).topk(2)
        order = functional.one_hot(chosen.flatten(), experts).cumsum(0).gather(1, chosen.flatten()[:, None]) - 1
        slots = chosen.flatten() * room + order.squeeze(1).clamp(max=room - 1)
        load = tokens.new_zeros(experts * room, tokens.shape[1]).index_copy(0, slots, tokens.repeat_interleave(2, 0))
        hidden = functional.gelu(torch.bmm(load.view(experts, room, -1), self.up))
        answers = torch.bmm(hidden, self.down).view(experts * room, -1)
        return (answers[slots].view(-1, 2, x.shape[-1]) * shares[..., None]).sum(1).view_as(x)


def use_experts(model):
    for block in model.model.layers:
        block.mlp = Experts(model.config.hidden_size, model.config.intermediate_size)


def bert_large(arguments):
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                                     intermediate_size=4096)
    model = transformers.BertForMaskedLM._from_config(config, attn_implementation='eager').train()

    def loss_of():
        tokens = torch.zeros(arguments.batch, arguments.sequence, dtype=torch.long)
        return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
    return training_step(model, loss_of, adamw(model))


def image_classifier(model_of):
    def build(arguments):
        model = model_of().train()

        def loss_of():
            images = torch.zeros(arguments.batch, 3, 224, 224)
            return model(pixel_values=images, labels=torch.zeros(arguments.batch, dtype=torch.long)).loss
        return training_step(model, loss_of, adamw(model))
    return build


def vit_large():
    return transformers.ViTForImageClassification._from_config(
        transformers.ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                               num_labels=1000), attn_implementation='eager')


def resnet_152():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(depths=[3, 8, 36, 3], num_labels=1000))


class Dlrm(nn.Module):
    """DLRM (Naumov et al. 2019) in the shape of its Criteo benchmark: 26 tables, pairwise products, two MLPs."""

    # Rows of the Criteo Kaggle categories, as the reference implementation counts them.
    ROWS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
            5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
    WIDTH = 64

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, self.WIDTH, mode='sum', sparse=True) for rows in self.ROWS)
        self.bottom = self.perceptron(13, 512, 256, self.WIDTH)
        pairs = (len(self.ROWS) + 1) * len(self.ROWS) // 2
        self.top = self.perceptron(self.WIDTH + pairs, 1024, 1024, 512, 256, 1)
        self.register_buffer('pairs', torch.tril_indices(len(self.ROWS) + 1, len(self.ROWS) + 1, -1), persistent=False)

    @staticmethod
    def perceptron(*widths):
        layers = []
        for narrow, wide in zip(widths, widths[1:]):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def forward(self, dense, bags, offsets):
        x = self.bottom(dense)
        features = torch.stack([x] + [table(bag, offsets) for table, bag in zip(self.tables, bags)], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def dlrm(arguments):
    model = Dlrm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of():
        bags = [torch.zeros(arguments.batch, dtype=torch.long) for _ in Dlrm.ROWS]
        logits = model(torch.zeros(arguments.batch, 13), bags, torch.arange(arguments.batch))
        return functional.binary_cross_entropy_with_logits(logits.squeeze(1), torch.zeros(arguments.batch))
    return training_step(model, loss_of, optimizer)


class GraphSage(nn.Module):
    """GraphSAGE (Hamilton et al. 2017), mean aggregation over sampled neighbours, for all vertices at once."""

    def __init__(self, width, hidden, classes):
        super().__init__()
        widths = [(width, hidden), (hidden, hidden), (hidden, classes)]
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in widths)
        self.neighbours = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in widths)

    def forward(self, features, samples):
        for layer, (own, neighbours) in enumerate(zip(self.own, self.neighbours)):
            mean = sum(features[sample] for sample in samples) / len(samples)
            features = own(features) + neighbours(mean)
            if layer + 1 < len(self.own):
                features = functional.relu(features)
        return features


def graphsage(arguments):
    """`batch` is thousands of vertices, with the 100 features and 47 classes of ogbn-products; 10 samples each."""
    vertices = arguments.batch * 1000
    model = GraphSage(100, 256, 47)
    features = torch.zeros(vertices, 100)
    samples = [torch.zeros(vertices, dtype=torch.long) for _ in range(10)]
    labels = torch.zeros(vertices, dtype=torch.long)
    return training_step(model, lambda: functional.cross_entropy(model(features, samples), labels), adamw(model))


WORKLOADS = {
    'gpt2-xl': Workload('GPT-2 XL, AdamW, bf16 autocast', language_model(gpt2_xl), 4, 1024),
    'gpt2-xl-accumulate': Workload('GPT-2 XL, two micro-batches a step and an evaluation pass after it',
                                   language_model(gpt2_xl, micro_batches=2, evaluations=1), 2, 1024),
    'gpt2-medium-lengths': Workload('GPT-2 medium, AdamW, bf16 autocast, four steps of different sequence lengths',
                                    language_model(gpt2_medium, shares=(1, 0.375, 0.75, 0.5)), 8, 1024),
    'llama-7b': Workload('Llama 7B, AdamW, bf16 autocast, activation checkpointing',
                         language_model(LLAMA_7B, checkpointing=True), 2, 2048),
    'llama-13b': Workload('Llama 13B, AdamW, bf16 autocast, activation checkpointing',
                          language_model(LLAMA_13B, checkpointing=True), 2, 2048),
    'llama-13b-lora': Workload('Llama 13B in bf16, frozen but for LoRA of rank 16 in the attention',
                               language_model(LLAMA_13B, prepare=freeze_to_bf16), 4, 2048),
    'moe': Workload('16 Llama layers of width 1024 with 8 experts each, top two, AdamW, bf16 autocast',
                    language_model(llama(1024, 4096, 16, 16), prepare=use_experts), 8, 1024),
    'bert-large': Workload('BERT large, AdamW, bf16 autocast', bert_large, 32, 512),
    'vit-large': Workload('ViT-L/16, 224 x 224, AdamW, bf16 autocast', image_classifier(vit_large), 128),
    'resnet-152': Workload('ResNet-152, 224 x 224, AdamW, bf16 autocast', image_classifier(resnet_152), 256),
    'dlrm': Workload('DLRM on Criteo-shaped tables, SGD with sparse gradients', dlrm, 65536),
    'graphsage': Workload('GraphSAGE on a whole graph of 2.4 million vertices, AdamW', graphsage, 2400),
}
