"""Trains the bundled model on one GPU: text and retrieval over growing lengths.

Resumes from RUN/checkpoint.pt when it is there, writes it every minute, and leaves the bfloat16
model in RUN/model and one JSON line for every report in RUN/log.jsonl. The stages and their steps
are below; the schedule depends on steps alone. README.md beside this names the two runs that made
the bundled model.

    python3 train.py --model ../../models/needle --tokens ../../.train/tokens --run ../../.train/run
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from data import ANSWER, TEXT, VALUE, Rows
from model import Qwen3, save_model

SEED = 2026
TOKENS_PER_STEP = 131072
STAGES = [
    (512, 1200),
    (1024, 800),
    (2048, 1200),
    (4096, 2000),
    (8192, 2500),
    (16384, 2500),
    (32768, 3000),
]
MUON_LR, ADAM_LR, WEIGHT_DECAY = 0.02, 4e-3, 0.02
WARM_UP_STEPS, DECAY_SHARE = (
    100,
    0.35,
)  # steps up; share of all steps over which the rate falls to zero
TEXT_SHARE, ANSWER_WEIGHT = 0.3, 0.3  # loss = answers (value tokens 1, the rest 0.3) + 0.3 * text
REPORT_STEPS, CHECKPOINT_SECONDS = 25, 60


def learning_rate(step: int, num_steps: int) -> float:
    """Warm-up, plateau, linear decay; a factor of the rates above."""
    left = (num_steps - step) / (DECAY_SHARE * num_steps)
    return min((step + 1) / WARM_UP_STEPS, 1.0, max(left, 0.01))


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
    text = (classes == TEXT).float()
    answer_loss = (entropies * answer).sum() / answer.sum().clamp(min=1)
    text_loss = (entropies * text).sum() / text.sum().clamp(min=1)
    return answer_loss + TEXT_SHARE * text_loss, answer_loss.detach(), text_loss.detach()


def exact_values(model: Qwen3, ids, targets, classes) -> float:
    """Share of values every token of which is predicted right (teacher forcing)."""
    right = model.predictions(ids) == targets.flatten()
    value = classes.flatten() == VALUE
    starts = value & ~torch.cat([value.new_zeros(1), value[:-1]])
    run = starts.cumsum(0)[value] - 1
    wrong = torch.zeros(int(starts.sum()), device=ids.device)
    wrong.index_add_(0, run, (~right[value]).float())
    return (wrong == 0).float().mean().item()


class Trainer:
    """Model, optimizers and the place in the schedule."""

    def __init__(self, args, stages):
        self.args, self.stages = args, stages
        self.num_steps = sum(steps for _, steps in stages)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(args.seed)
        self.model = Qwen3().to(self.device)
        self.optimizers = make_optimizers(self.model)
        self.step, self.num_tokens, self.seconds = 0, 0, 0.0
        self.started = self.saved = time.time()
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
        torch.save(state, self.checkpoint.with_suffix(".new"))
        os.replace(self.checkpoint.with_suffix(".new"), self.checkpoint)
        save_model(self.model, self.args.run / "model")
        self.saved = time.time()

    def elapsed(self) -> float:
        return self.seconds + time.time() - self.started

    def batches(self, length: int, stage: int):
        """The stage's rows, from the worker processes; a resumed stage gets fresh rows."""
        rows = Rows(
            self.args.model,
            self.args.tokens,
            length,
            self.args.tokens_per_step // length,
            seed=self.args.seed + 100 * stage + self.step % 97,
        )
        loader = torch.utils.data.DataLoader(
            rows,
            batch_size=None,
            num_workers=self.args.workers,
            prefetch_factor=3,
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
        factor = self.args.rate * learning_rate(self.step, self.num_steps)
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

    def report(self, length: int, losses, exact: float, tokens_per_second: float):
        line = {
            "step": self.step,
            "length": length,
            "answer_loss": round(losses[1].item(), 4),
            "text_loss": round(losses[2].item(), 4),
            "exact_values": round(exact, 4),
            "tokens": self.num_tokens,
            "tokens_per_second": round(tokens_per_second),
            "seconds": round(self.elapsed(), 1),
        }
        with open(self.args.run / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")
        print(*(f"{key} {value}" for key, value in line.items()), flush=True)

    def run_stage(self, stage: int, last_step: int):
        length = self.stages[stage][0]
        mark, mark_tokens = time.time(), self.num_tokens
        for ids, targets, classes in self.batches(length, stage):
            losses = self.update(ids, targets, classes)
            self.step, self.num_tokens = self.step + 1, self.num_tokens + ids.numel()
            if self.step % REPORT_STEPS == 0 or self.step == last_step:
                exact = exact_values(self.model, ids, targets, classes)
                rate = (self.num_tokens - mark_tokens) / (time.time() - mark)
                self.report(length, losses, exact, rate)
                mark, mark_tokens = time.time(), self.num_tokens
            if time.time() - self.saved > CHECKPOINT_SECONDS:
                self.save()
            if self.step >= last_step:
                return

    def run(self):
        last_step = 0
        for stage, (_, steps) in enumerate(self.stages):
            last_step += steps
            if self.step < last_step:
                self.run_stage(stage, last_step)
        self.save()


def attention_kernels(device):
    """cuDNN's attention first, it is the fastest on Hopper; any on the CPU."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


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
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--tokens-per-step", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--stages", help="length:steps,... in place of the built-in ones")
    parser.add_argument("--init", type=Path, help="model.safetensors to go on from")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    stages = STAGES
    if args.stages:
        stages = [tuple(map(int, stage.split(":"))) for stage in args.stages.split(",")]
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args, stages)
    with attention_kernels(trainer.device), torch.autocast(trainer.device.type, torch.bfloat16):
        trainer.run()


if __name__ == "__main__":
    main()
