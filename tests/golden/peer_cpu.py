#!/usr/bin/env python3
"""The model of a Millrace configuration in plain PyTorch on the CPU: tokens per second, for a comparison side by side.

    peer_cpu.py configs/quickstart.json [--mode ddp|threads|both] [--cores 2] [--steps 20] [--warmup 5] [--compile]

Reads model.*, train.{micro_batch, accumulate, global_batch, seed}, optimizer.{lr, betas, eps, weight_decay, clip} and
precision.compute; absent keys have Millrace's defaults. A step is forward, loss, backward, clip and AdamW (PyTorch's fused
one) over the same number of tokens in both modes, which are what one would run on the same cores:
  ddp      one process per core, one thread each, DistributedDataParallel over gloo
  threads  one process, one thread per core, the batches of all the ranks in one
Tokens are random and drawn before the clock starts; nothing is evaluated, written or tokenised. --compile puts
torch.compile (which needs a C++ compiler) around the model. precision.compute bf16 runs under autocast.

Prints one JSON line: for each mode, over the timed steps, the median and the 10th and 90th percentile of the
step time and of the tokens per second of all processes together. Needs PyTorch only (see make_golden.py).
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F


def shape_of(model):
    """The model section with Millrace's defaults filled in."""
    m = dict(family="gpt2", layers=12, d_model=768, heads=12, seq_len=1024, norm_eps=1e-5, init_std=0.02)
    m.update({k: v for k, v in model.items() if v is not None})
    llama = m["family"] == "llama"
    m.setdefault("kv_heads", m["heads"])
    m.setdefault("head_dim", m["d_model"] // m["heads"])
    m.setdefault("ffn", 256 * math.ceil(8 * m["d_model"] / 3 / 256) if llama else 4 * m["d_model"])
    m.setdefault("vocab", 256)
    m.setdefault("tied", not llama)
    m.setdefault("rope_theta", 10000.0)
    return m


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        d, hd, bias = m["d_model"], m["head_dim"], m["family"] == "gpt2"
        norm = nn.LayerNorm if bias else nn.RMSNorm
        self.head_dim, self.gelu = hd, bias
        self.widths = [m["heads"] * hd, m["kv_heads"] * hd, m["kv_heads"] * hd]
        self.norm1, self.norm2 = norm(d, eps=m["norm_eps"]), norm(d, eps=m["norm_eps"])
        self.qkv = nn.Linear(d, sum(self.widths), bias=bias)
        self.out = nn.Linear(self.widths[0], d, bias=bias)
        self.up = nn.Linear(d, m["ffn"] * (1 if bias else 2), bias=bias)
        self.down = nn.Linear(m["ffn"], d, bias=bias)

    def forward(self, x, rope):
        def rotate(z):
            a, b = z.chunk(2, -1)
            return torch.cat((a * rope[0] - b * rope[1], b * rope[0] + a * rope[1]), -1).to(z.dtype)

        parts = self.qkv(self.norm1(x)).split(self.widths, -1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        if rope is not None:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.out(y.transpose(1, 2).flatten(2))
        z = self.up(self.norm2(x))
        if self.gelu:
            z = F.gelu(z, approximate="tanh")
        else:
            gate, value = z.chunk(2, -1)
            z = F.silu(gate) * value
        return x + self.down(z)


class LanguageModel(nn.Module):
    """Returns the mean loss. RoPE scaling would change values, not the work, and is left out."""

    def __init__(self, m):
        super().__init__()
        gpt2, d = m["family"] == "gpt2", m["d_model"]
        self.tokens = nn.Embedding(m["vocab"], d)
        self.positions = nn.Embedding(m["seq_len"], d) if gpt2 else None
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = (nn.LayerNorm if gpt2 else nn.RMSNorm)(d, eps=m["norm_eps"])
        self.head = nn.Linear(d, m["vocab"], bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=m["init_std"])
        if m["tied"]:
            self.head.weight = self.tokens.weight
        frequencies = m["rope_theta"] ** (-torch.arange(0, m["head_dim"], 2) / m["head_dim"])
        angle = torch.outer(torch.arange(m["seq_len"]), frequencies)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, inputs, targets):
        x, rope = self.tokens(inputs), (self.cos, self.sin)
        if self.positions is not None:
            x, rope = x + self.positions.weight[: inputs.shape[1]], None
        for block in self.blocks:
            x = block(x, rope)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def work(rank, args, config, mode, results):
    """One process of one mode; rank 0 puts its step times (seconds) and the shape of the work into `results`."""
    processes, threads = (args.cores, 1) if mode == "ddp" else (1, args.cores)
    torch.set_num_threads(threads)
    train, opt = config.get("train", {}), config.get("optimizer", {})
    m = shape_of(config.get("model", {}))
    micro = train.get("micro_batch", 8)
    accumulate = train.get("accumulate") or max(1, (train.get("global_batch") or 0) // (micro * args.cores))
    batch = micro * args.cores // processes
    torch.manual_seed(train.get("seed", 0))
    net = LanguageModel(m)
    run = net
    if mode == "ddp":
        dist.init_process_group("gloo", init_method=f"file://{args.rendezvous}", rank=rank, world_size=processes)
        run = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    if args.compile:
        run = torch.compile(run)
    decay = opt.get("weight_decay", 0.1)
    optimizer = torch.optim.AdamW(
        [dict(params=[p for p in net.parameters() if p.dim() == 2], weight_decay=decay),
         dict(params=[p for p in net.parameters() if p.dim() != 2], weight_decay=0.0)],
        lr=opt.get("lr", 3e-4), betas=tuple(opt.get("betas", (0.9, 0.95))), eps=opt.get("eps", 1e-8), fused=True)
    clip = opt.get("clip", 1.0)
    bf16 = config.get("precision", {}).get("compute", "fp32") == "bf16"
    data = torch.randint(m["vocab"], (accumulate, batch, m["seq_len"] + 1),
                         generator=torch.Generator().manual_seed(1000 + rank))

    def step():
        for i in range(accumulate):
            quiet = mode == "ddp" and i + 1 < accumulate
            with run.no_sync() if quiet else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = run(data[i, :, :-1], data[i, :, 1:]) / accumulate
                loss.backward()
        if clip > 0:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(args.warmup):
        step()
    seconds = []
    for _ in range(args.steps):
        if mode == "ddp":
            dist.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        results.put(dict(processes=processes, threads=threads, micro_batch=batch, accumulate=accumulate,
                         tokens_per_step=data[..., 1:].numel() * processes, seconds=seconds,
                         parameters=sum(p.numel() for p in net.parameters())))
    if mode == "ddp":
        dist.destroy_process_group()


def spread(values):
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return dict(median=round(statistics.median(values), 3), p10=round(deciles[0], 3), p90=round(deciles[-1], 3))


def measure(args, config, mode):
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        args.rendezvous = os.path.join(folder, "gloo")
        mp.spawn(work, (args, config, mode, results), nprocs=args.cores if mode == "ddp" else 1)
    run = results.get()
    seconds = run.pop("seconds")
    return dict(mode=mode, **run, steps=len(seconds), step_ms=spread([1e3 * s for s in seconds]),
                tokens_per_s=spread([run["tokens_per_step"] / s for s in seconds]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--mode", choices=["ddp", "threads", "both"], default="both")
    parser.add_argument("--cores", type=int, default=2, help="also the number of ranks whose batch is trained")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: a spread needs two")
    with open(args.config) as f:
        config = json.load(f)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # OpenMP reads its limit when it loads, so the child of each mode must find its own in the environment.
    runs = []
    for mode in ["ddp", "threads"] if args.mode == "both" else [args.mode]:
        os.environ["OMP_NUM_THREADS"] = "1" if mode == "ddp" else str(args.cores)
        runs.append(measure(args, config, mode))
    print(json.dumps(dict(peer="torch", torch=torch.__version__, compile=args.compile, config=args.config,
                          cpu=torch.backends.cpu.get_cpu_capability(), runs=runs)))


if __name__ == "__main__":
    main()
