"""Trains the bundled model on one GPU: text and retrieval over growing lengths.

A run takes --minutes, whatever the machine: each stage has a share of the time, and the learning
rate follows the time too. It resumes from RUN/checkpoint.pt when that is there and writes it every
minute, with the bfloat16 model in RUN/model; it also writes both when it is stopped (SIGTERM) or
fails. RUN/log.jsonl has a line for every report. README.md beside this has the runs that made the
bundled model.

    python3 train.py --model ../../models/needle --tokens ../../.train/tokens --run ../../.train/run
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from accuracy import HeldOut
from data import ANSWER, SHARES, TEXT, VALUE, WORD, Rows
from model import Qwen3, save_model

SEED = 2026
TOKENS_PER_STEP = 131072
MINUTES = 16.0
# length: share of the time
STAGES = [
    (512, 12),
    (1024, 8),
    (2048, 10),
    (4096, 13),
    (8192, 17),
    (16384, 18),
    (32768, 22),
]
MUON_LR, ADAM_LR, WEIGHT_DECAY = 0.02, 4e-3, 0.02
# Steps up; share of the time over which the rate falls to zero.
WARM_UP_STEPS, DECAY_SHARE = 100, 0.35
# loss = answers (value tokens 1, counted words 3: a text has few of them; the rest 0.3) + 0.3 * text
TEXT_SHARE, ANSWER_WEIGHT, WORD_WEIGHT = 0.3, 0.3, 3.0
REPORT_STEPS, ACCURACY_SECONDS, CHECKPOINT_SECONDS = 25, 20, 60


def learning_rate(step: int, progress: float) -> float:
    """Warm-up, plateau, linear decay; a factor of the rates above. `progress` is in [0, 1]."""
    return min((step + 1) / WARM_UP_STEPS, 1.0, max((1 - progress) / DECAY_SHARE, 0.01))


def make_optimizers(model: Qwen3) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embedding and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers" not in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=WEIGHT_DECAY, momentum=0.95),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def weighted_loss(entropies, classes):
    """Answers and text, each a mean of its own."""
    classes = classes.flatten()
    answer = (classes == VALUE).float() + ANSWER_WEIGHT * (classes == ANSWER).float()
    answer += WORD_WEIGHT * (classes == WORD).float()
    text = (classes == TEXT).float()
    answer_loss = (entropies * answer).sum() / answer.sum().clamp(min=1)
    text_loss = (entropies * text).sum() / text.sum().clamp(min=1)
    return answer_loss + TEXT_SHARE * text_loss, answer_loss.detach(), text_loss.detach()


class Trainer:
    """Model, optimizers and the place in the schedule."""

    def __init__(self, args, stages, shares):
        self.args, self.stages, self.shares = args, stages, shares
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(args.seed)
        self.model = Qwen3().to(self.device)
        self.optimizers = make_optimizers(self.model)
        self.step, self.num_tokens, self.seconds = 0, 0, 0.0
        self.started = self.saved = self.checked = time.time()
        args.run.mkdir(parents=True, exist_ok=True)
        self.checkpoint = args.run / "checkpoint.pt"
        if self.checkpoint.exists():
            self.load()
        elif args.init:
            self.model.load_state_dict(load_file(args.init))
        if self.device.type == "cuda":
            self.model.compile_parts()

    def load(self):
        state = torch.load(self.checkpoint, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.step, self.num_tokens, self.seconds = (
            state["step"],
            state["num_tokens"],
            state["seconds"],
        )

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step,
            "num_tokens": self.num_tokens,
            "seconds": self.elapsed(),
        }
        save_model(self.model, self.args.run / "model")  # first: it refuses bad weights
        torch.save(state, self.checkpoint.with_suffix(".new"))
        os.replace(self.checkpoint.with_suffix(".new"), self.checkpoint)
        self.saved = time.time()

    def elapsed(self) -> float:
        return self.seconds + time.time() - self.started

    def progress(self) -> float:
        """The share of the time that is over, at most 1."""
        return min(1.0, self.elapsed() / (60 * self.args.minutes))

    def batches(self, length: int, num_rows: int, stage: int):
        """The stage's rows, from the worker processes; a resumed stage gets fresh rows."""
        rows = Rows(
            self.args.model,
            self.args.tokens,
            length,
            num_rows,
            seed=self.args.seed + 100 * stage + self.step % 97,
            shares=self.shares,
        )
        loader = torch.utils.data.DataLoader(
            rows,
            batch_size=None,
            num_workers=self.args.workers,
            prefetch_factor=3 if self.args.workers else None,
            pin_memory=self.device.type == "cuda",
        )
        for ids, classes in loader:
            ids = ids.to(self.device, non_blocking=True).long()
            yield (
                ids[:, :-1],
                ids[:, 1:].contiguous(),
                classes.to(self.device, non_blocking=True)[:, 1:],
            )

    def update(self, ids, targets, classes):
        """One optimizer step."""
        factor = self.args.rate * learning_rate(self.step, self.progress())
        for optimizer, rate in zip(self.optimizers, (MUON_LR, ADAM_LR)):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        losses = weighted_loss(self.model(ids, targets), classes)
        losses[0].backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return losses

    def report(self, length: int, losses, tokens_per_second: float):
        self.log(
            {
                "step": self.step,
                "length": length,
                "answer_loss": round(losses[1].item(), 4),
                "text_loss": round(losses[2].item(), 4),
                "tokens": self.num_tokens,
                "tokens_per_second": round(tokens_per_second),
                "seconds": round(self.elapsed(), 1),
            }
        )

    def report_accuracy(self, length: int, held_out: HeldOut):
        shares = held_out.accuracy(self.model, self.device)
        self.log({"step": self.step, "length": length, "held_out": shares})
        self.checked = time.time()

    def log(self, line: dict):
        with open(self.args.run / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")
        print(*(f"{key} {value}" for key, value in line.items()), flush=True)

    def run_stage(self, stage: int, end: float):
        """Trains until the share `end` of the time is over; at least one step."""
        length = self.stages[stage][0]
        num_rows = max(1, self.args.tokens_per_step // length)
        batches = self.batches(length, num_rows, stage)
        ids, targets, classes = next(batches)  # the workers start while the rows below are made
        held_out = HeldOut(self.args.model, self.args.tokens, length, num_rows)
        mark, mark_tokens = time.time(), self.num_tokens
        while True:
            losses = self.update(ids, targets, classes)
            self.step, self.num_tokens = self.step + 1, self.num_tokens + ids.numel()
            ends = self.progress() >= end
            if self.step % REPORT_STEPS == 0 or ends:
                rate = (self.num_tokens - mark_tokens) / (time.time() - mark)
                self.report(length, losses, rate)
                mark, mark_tokens = time.time(), self.num_tokens
            if ends or time.time() - self.checked > ACCURACY_SECONDS:
                self.report_accuracy(length, held_out)
            if time.time() - self.saved > CHECKPOINT_SECONDS:
                self.save()
            if ends:
                return
            ids, targets, classes = next(batches)

    def run(self):
        total, end = sum(share for _, share in self.stages), 0.0
        try:
            for stage, (_, share) in enumerate(self.stages):
                end = min(1.0, end + share / total)
                if self.progress() < end:
                    self.run_stage(stage, end)
        finally:
            self.save()


def attention_kernels(device):
    """cuDNN's attention first, it is the fastest on Hopper; any on the CPU."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


def pairs(option: str) -> list[list[str]]:
    """The parts of an option's value: "a:1,b:2" is [["a", "1"], ["b", "2"]]."""
    return [pair.split(":") for pair in option.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument(
        "--tokens", type=Path, required=True, help="directory tokenize_corpus.py wrote"
    )
    parser.add_argument(
        "--run", type=Path, required=True, help="directory for checkpoint, log and model"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time of the whole run")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--tokens-per-step", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--stages", help="length:share,... in place of the built-in ones")
    parser.add_argument("--shares", help="kind:share,... of conversations, as SHARES in data.py")
    parser.add_argument(
        "--init", type=Path, help="model.safetensors to go on from, with fresh optimizers"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    stages, shares = STAGES, SHARES
    if args.stages:
        stages = [(int(length), float(share)) for length, share in pairs(args.stages)]
    if args.shares:
        shares = {kind: float(share) for kind, share in pairs(args.shares)}
        if not set(shares) <= set(SHARES):
            parser.error(f"--shares {args.shares}: the kinds are {', '.join(SHARES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args, stages, shares)
    with attention_kernels(trainer.device), torch.autocast(trainer.device.type, torch.bfloat16):
        trainer.run()


if __name__ == "__main__":
    main()
