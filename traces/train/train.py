#!/usr/bin/env python3
"""Train kjv-llama and kjv-qwen2, both at the same time on one GPU.

Reads the tokenisers and the tokenised text that train_tokenizers.py left in --data. Writes two files per model into
--out: NAME.npz, the weights as the GGUF will store them (see storage.py), and NAME.json, the log. Training ends after
--steps or --seconds, whichever comes first; the learning rate's cosine follows whichever is nearer to its end.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Callable

import numpy as np
import sentencepiece
import tokenizers
import torch
import torch.nn.functional as F

import data
import storage
from model import Model, greedy
from model_config import CONFIGS, Config

SEED = 1611
PEAK_RATE, LAST_RATE, WARMUP = 1e-3, 5e-5, 100
WEIGHT_DECAY, DROPOUT, CLIP = 0.1, 0.2, 1.0
GENESIS_SHARE, OPENING_SHARE = 0.02, 0.2
PROMPTS = ("In the beginning", "The LORD is my shepherd", "And it came to pass")


class Text:
    """A model's tokeniser and tokenised text."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.encode: Callable[[str], list[int]]
        self.decode: Callable[[list[int]], str]
        if config.arch == "llama":
            processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{config.name}.model"))
            self.bos = [processor.bos_id()]
            self.encode, self.decode = processor.encode, processor.decode
        else:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / f"{config.name}.json"))
            self.bos = []
            self.encode, self.decode = lambda text: tokenizer.encode(text).ids, tokenizer.decode
        path = folder / f"{config.name}.npz"
        train, valid = data.load(path, "train"), data.load(path, "valid")
        self.train = torch.from_numpy(data.windows(train, config.n_ctx + 1, self.bos))
        self.valid = torch.from_numpy(data.windows(valid, config.n_ctx + 1, self.bos)[::8])
        self.odds = torch.full((len(train.opens),), (1 - OPENING_SHARE - GENESIS_SHARE) / len(train.opens))
        self.odds[torch.from_numpy(train.opens)] += OPENING_SHARE / train.opens.sum()
        self.odds[0] += GENESIS_SHARE

    def continuations(self, model: Model) -> dict[str, str]:
        """What the model says, greedily, after each prompt."""
        texts = {}
        for prompt in PROMPTS:
            tokens = self.bos + self.encode(prompt)
            texts[prompt] = self.decode(tokens + greedy(model, tokens, 24))
        return texts


def loss_of(model: Model, rows: torch.Tensor) -> torch.Tensor:
    rows = rows.long()
    with torch.autocast("cuda", torch.bfloat16) if rows.is_cuda else nullcontext():
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Model, rows: torch.Tensor, batch: int) -> float:
    """Mean loss on the held-out chapters, nats per token."""
    model.eval()
    total = sum(float(loss_of(model, part)) * len(part) for part in rows.split(batch))
    model.train()
    return total / len(rows)


def learning_rate(step: int, progress: float) -> float:
    cosine = LAST_RATE + (PEAK_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return cosine * min(1.0, (step + 1) / WARMUP)


def stored_weights(model: Model) -> dict[str, np.ndarray]:
    matrices = model.config.matrices
    return {name: storage.store(tensor.cpu().numpy(), matrices) for name, tensor in model.state_dict().items()}


def describe_end(model: Model, text: Text, valid: torch.Tensor, batch: int) -> dict[str, object]:
    loss = held_out_loss(model, valid, batch)
    model.eval()
    return {"valid": round(loss, 4), "continuations": text.continuations(model)}


def train(config: Config, args: argparse.Namespace) -> None:
    torch.manual_seed(SEED)
    device = args.device
    text = Text(args.data, config)
    model = Model(config, DROPOUT).to(device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    train_rows, valid_rows, odds = text.train.to(device), text.valid.to(device), text.odds.to(device)

    log: list[dict[str, object]] = []

    def say(line: str) -> None:
        print(f"{config.name}: {line}", flush=True)

    say(f"{sum(p.numel() for p in model.parameters())} parameters on {device}, torch {torch.__version__}")
    start, step, progress = time.monotonic(), 0, 0.0
    while progress < 1:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, progress)
        chosen = torch.multinomial(odds, args.batch, replacement=True)
        loss = loss_of(model, train_rows[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        step += 1
        progress = max(step / args.steps, (time.monotonic() - start) / args.seconds)
        if step % args.report == 0 or progress >= 1:
            valid = held_out_loss(model, valid_rows, args.batch)
            seconds = time.monotonic() - start
            log.append({"step": step, "seconds": round(seconds, 1), "train": round(float(loss.detach()), 4),
                        "valid": round(valid, 4)})
            model.eval()
            say(f"{log[-1]} {text.continuations(model)[PROMPTS[0]]!r}")
            model.train()

    trained = describe_end(model, text, valid_rows, args.batch)
    stored = stored_weights(model)
    model.load_state_dict({name: torch.from_numpy(storage.restore(array)) for name, array in stored.items()})
    rounded = describe_end(model, text, valid_rows, args.batch)
    biases = {name: [round(float(b), 2) for b in array if abs(b) > 10]
              for name, array in stored.items() if name.endswith(".bias")}
    say(f"trained, float32: {trained}")
    say(f"rounded to {config.matrices}: {rounded}")
    say(f"biases beyond ±10: { {name: beyond for name, beyond in biases.items() if beyond} }")
    record = {
        "model": config.name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if train_rows.is_cuda else device,
        "seed": SEED,
        "steps": step,
        "tokens_per_step": args.batch * config.n_ctx,
        "seconds": round(time.monotonic() - start, 1),
        "float32": trained,
        "rounded": rounded,
        "biases_beyond_10": biases,
        "log": log,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(args.out / f"{config.name}.npz", **stored)
    (args.out / f"{config.name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of train_tokenizers.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seconds", type=float, default=200, help="longest training time")
    parser.add_argument("--steps", type=int, default=3000, help="most optimiser steps")
    parser.add_argument("--batch", type=int, default=64, help="windows of 512 tokens per step")
    parser.add_argument("--report", type=int, default=250, help="steps between reports")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=sorted(CONFIGS), help="train this one, in this process")
    args = parser.parse_args()
    if args.only:
        train(CONFIGS[args.only], args)
        return 0
    command = [sys.executable, *sys.argv]
    children = [subprocess.Popen([*command, "--only", name]) for name in CONFIGS]
    return max([child.wait() for child in children], key=abs)


if __name__ == "__main__":
    sys.exit(main())
