"""The model of examples/gpt in PyTorch: minGPT's shapes, names of parameters and first values.

    model = Gpt(vocabulary=65, context=128, layers=6, heads=6, width=192)
    loss = model.loss(tokens, targets)
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads, dropout, residual_dropout, fused):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.residual_dropout = nn.Dropout(residual_dropout)
        self.heads = heads
        self.fused = fused

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                             for part in self.c_attn(x).split(width, dim=2))
        if self.fused:
            rate = self.attention_dropout.p if self.training else 0.0
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(width // self.heads)
            above = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = self.attention_dropout(scores.masked_fill(above, -math.inf).softmax(3)) @ value
        return self.residual_dropout(self.c_proj(y.transpose(1, 2).reshape(batch, length, width)))


class Mlp(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, width, heads, attention_dropout, residual_dropout, fused):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, attention_dropout, residual_dropout, fused)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, residual_dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """fused: attention by one call of PyTorch; else step by step, as minGPT writes it."""

    def __init__(self, vocabulary, context, layers, heads, width, tied=False, fused=True, embedding_dropout=0.0,
                 attention_dropout=0.0, residual_dropout=0.0):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(context, width),
            "drop": nn.Dropout(embedding_dropout),
            "h": nn.ModuleList(Block(width, heads, attention_dropout, residual_dropout, fused) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width),
        })
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.transformer["wte"].weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["drop"](parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1])))
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))

    def loss(self, tokens, targets):
        return functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    def parameter_groups(self, weight_decay):
        """minGPT's two groups: only the matrices of linear layers decay."""
        embeddings = {id(self.transformer[name].weight) for name in ("wte", "wpe")}
        parameters = list(self.parameters())
        decays = [p for p in parameters if p.dim() == 2 and id(p) not in embeddings]
        others = [p for p in parameters if p.dim() == 1 or id(p) in embeddings]
        return [{"params": decays, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def load_weights(model, path):
    """From a safetensors file with these names, such as a snapshot of examples/gpt; what else is in it is left alone."""
    from safetensors.torch import load_file
    tensors = load_file(path)
    names = [name for name, _ in model.named_parameters()]  # a tied head has none
    missing = [name for name in names if name not in tensors]
    if missing:
        sys.exit(f"gpt: {path} has no tensor {missing[0]}")
    model.load_state_dict({name: tensors[name] for name in names}, strict=False)
