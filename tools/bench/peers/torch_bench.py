#!/usr/bin/env python3
"""PyTorch's best at a training step that Millrace does too: the shapes of a configuration, random tokens, one JSON line.

  python3 tools/bench/peers/torch_bench.py CONFIG --variant compile [--sdpa cudnn] [--set train.micro_batch=64]
  mpirun -n 2 --bind-to none python3 tools/bench/peers/torch_bench.py CONFIG --variant fsdp2 --sdpa flash

A step is tokens to the device, forward, loss, backward, clipping and fused AdamW, train.accumulate times the first four. bf16 means what it means in
Millrace: bf16 matmuls and residual stream, fp32 master weights and moments, gradients on the wire in precision.grad_wire.
Reported: step_ms of every timed step (CUDA events between the ends of steps that run back to back), host_us (median time to issue a step onto an
idle device), the allocator's peaks from the second step on, device memory in use by cudaMemGetInfo at the end, the loss of the first and of the last
step. Memory that making the model took and training does not need is given back first. An error is a JSON line too, and exit code 1.
"""
import argparse, contextlib, gc, json, math, os, statistics, sys, time, traceback

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist

# name: (how weights are spread, torch.compile's mode or None, what it is)
VARIANTS = {
    "eager": (None, None, "eager"),
    "compile": (None, "default", "torch.compile"),
    "autotune": (None, "max-autotune-no-cudagraphs", "torch.compile, max-autotune"),
    "graphs": (None, "reduce-overhead", "torch.compile, reduce-overhead (CUDA graphs)"),
    "step_graph": (None, "default", "torch.compile, the whole step in one CUDA graph"),
    "ddp_eager": ("ddp", None, "DDP, eager"),
    "ddp": ("ddp", "default", "DDP, torch.compile"),
    "ddp_graphs": ("ddp", "reduce-overhead", "DDP, torch.compile, reduce-overhead (CUDA graphs)"),
    "fsdp2_eager": ("reshard", None, "FSDP2, eager"),
    "fsdp2": ("reshard", "default", "FSDP2, torch.compile"),
    "fsdp2_keep": ("keep", "default", "FSDP2 without reshard, torch.compile"),
    "mfsdp": ("mfsdp", "default", "Megatron-FSDP, ZeRO-3 with its double buffer, blocks compiled; does not clip"),
    "mfsdp_maxpool": ("mfsdp_maxpool", "default", "Megatron-FSDP, ZeRO-3 with its max-pool, blocks compiled; does not clip"),
}
SDPA = ("auto", "cudnn", "flash", "efficient", "math")
TOKEN_BATCHES = 4  # different batches, taken in turn
ISSUE_STEPS = 5


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.gpt2, self.eps = c["d_model"], c["family"] == "gpt2", c["norm_eps"]
        self.heads, self.kv_heads, self.head_dim = c["heads"], c["kv_heads"], c["head_dim"]
        inner, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.widths, self.repeat = [inner, kv, kv], c.get("repeat_heads", 1)
        norm = nn.LayerNorm if self.gpt2 else nn.RMSNorm
        self.norm_1, self.norm_2 = norm(d, self.eps), norm(d, self.eps)
        self.qkv = nn.Linear(d, inner + 2 * kv, bias=self.gpt2)
        self.out = nn.Linear(inner, d, bias=self.gpt2)
        self.up = nn.Linear(d, c["ffn"] * (1 if self.gpt2 else 2), bias=self.gpt2)
        self.down = nn.Linear(c["ffn"], d, bias=self.gpt2)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, -1, self.head_dim).transpose(1, 2)
                   for part in self.qkv(normed(self.norm_1, x)).split(self.widths, -1))
        if not self.gpt2:
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.repeat > 1:
            k, v = k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != self.heads)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        z = self.up(normed(self.norm_2, x))
        if self.gpt2:
            z = F.gelu(z, approximate="tanh")
        else:
            gate, value = z.chunk(2, -1)
            z = F.silu(gate) * value
        return x + self.down(z)


def normed(norm, x):
    """A norm whose weights may be wider than x; the arithmetic is fp32 in any case."""
    weight = norm.weight.to(x.dtype)
    if isinstance(norm, nn.RMSNorm):
        return F.rms_norm(x, norm.normalized_shape, weight, norm.eps)
    return F.layer_norm(x, norm.normalized_shape, weight, norm.bias.to(x.dtype), norm.eps)


def rotated(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Embed(nn.Module):
    def __init__(self, c, dtype):
        super().__init__()
        self.dtype = dtype
        self.tokens = nn.Embedding(c["vocab"], c["d_model"])
        self.positions = nn.Embedding(c["seq_len"], c["d_model"]) if c["family"] == "gpt2" else None

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        return x.to(self.dtype)  # the residual stream is as narrow as ours


class Head(nn.Module):
    """Last norm, logits and mean loss. A tied head's weight is the embedding's and comes as an argument."""

    def __init__(self, c):
        super().__init__()
        self.norm = (nn.LayerNorm if c["family"] == "gpt2" else nn.RMSNorm)(c["d_model"], c["norm_eps"])
        self.weight = None if c["tied"] else nn.Parameter(torch.empty(c["vocab"], c["d_model"]))

    def forward(self, x, targets, tied_weight):
        logits = F.linear(normed(self.norm, x), self.weight if tied_weight is None else tied_weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Model(nn.Module):
    def __init__(self, c, dtype):
        super().__init__()
        self.config = c
        self.embed = Embed(c, dtype)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.head = Head(c)
        self.cos = self.sin = None

    def start(self, device, seed):
        """Weights as GPT-2 starts them; of sharded parameters, this rank's part. Angles stay fp32 and are no buffers, so nothing casts them."""
        torch.manual_seed(seed)
        narrow = self.config["init_std"] / math.sqrt(2 * self.config["layers"])
        with torch.no_grad():
            for name, p in self.named_parameters():
                local = p.to_local() if hasattr(p, "to_local") else p
                if "norm" in name:
                    local.fill_(0.0 if name.endswith("bias") else 1.0)
                elif name.endswith("bias"):
                    local.zero_()
                else:
                    local.normal_(0.0, narrow if name.endswith(("out.weight", "down.weight")) else self.config["init_std"])
        if self.config["family"] != "gpt2":
            half = self.config["head_dim"] // 2
            rates = self.config["rope_theta"] ** (-torch.arange(half, device=device) / half)
            angles = torch.outer(torch.arange(self.config["seq_len"], device=device), rates)
            self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(x, targets, self.embed.tokens.weight if self.head.weight is None else None)


def sharded(model, reshard, mode, dtype, wire):
    """FSDP2 by block, the order of gathers given, each block compiled by itself."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    if mode is not None:
        for part in [model.embed, model.head, *model.blocks]:
            part.compile(mode=mode, fullgraph=True)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wire, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    if model.head.weight is not None:
        fully_shard(model.embed, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model.head, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    for before, after in zip(model.blocks, model.blocks[1:]):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    return model


def megatron(model, max_pool, mode, dtype, wire):
    """Megatron-FSDP by block (PyPI megatron-fsdp). A block is a unit; embedding and head stay gathered between optimizer steps, as it does."""
    import megatron_fsdp
    for block in model.blocks:
        block.compile(mode=mode)
    policy = megatron_fsdp.MixedPrecisionPolicy(main_params_dtype=torch.float32, main_grads_dtype=torch.float32, grad_comm_dtype=wire)
    return megatron_fsdp.fully_shard_model(module=model.to(dtype), fsdp_unit_modules=[Block], zero_dp_strategy=3, mixed_precision_policy=policy,
                                           fsdp_double_buffer=True, maxpool_double_buffer=max_pool, sync_model_each_microbatch=True)


class Trainer:
    def __init__(self, args, config, rank, world, device):
        self.device, self.rank, self.world = device, rank, world
        self.spread, mode, _ = VARIANTS[args.variant]
        self.megatron = self.spread in ("mfsdp", "mfsdp_maxpool")
        self.whole_step, self.marks = args.variant == "step_graph", mode == "reduce-overhead"
        m, train, o, precision = config["model"], config["train"], config["optimizer"], config.get("precision", {})
        self.accumulate, self.clip = train.get("accumulate") or 1, o.get("clip", 1.0)
        narrow = precision.get("compute", "bf16") == "bf16"
        dtype = torch.bfloat16 if narrow else torch.float32
        wire = torch.bfloat16 if precision.get("grad_wire", "fp32") == "bf16" else torch.float32
        if self.spread in ("reshard", "keep"):
            with torch.device("meta"):
                self.model = Model(m, dtype)
            self.parameters = sum(p.numel() for p in self.model.parameters())
            self.run = sharded(self.model, self.spread == "reshard", mode, dtype, wire)
            self.model.to_empty(device=device)
            self.model.start(device, 1234 + rank)
            self.autocast = contextlib.nullcontext
        else:
            with device:
                self.model = Model(m, dtype)
            self.model.start(device, 1234)
            self.run = self.model
            self.parameters = sum(p.numel() for p in self.model.parameters())  # before anything shards them
            if self.megatron:
                self.model = self.run = megatron(self.model, self.spread == "mfsdp_maxpool", mode, dtype, wire)
                mode, narrow, self.clip = None, False, 0.0
            if self.spread == "ddp":
                self.run = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True, static_graph=self.accumulate == 1)
                if wire == torch.bfloat16:
                    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
                    self.run.register_comm_hook(None, bf16_compress_hook)
            if mode is not None:
                self.run = torch.compile(self.run, mode=mode)
            self.autocast = lambda: torch.autocast(device.type, torch.bfloat16, enabled=narrow, cache_enabled=not self.whole_step)
        wide = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        more = dict(capturable=True) if self.whole_step else {}
        self.optimizer = torch.optim.AdamW([dict(params=wide, weight_decay=o.get("weight_decay", 0.1)), dict(params=others, weight_decay=0.0)],
                                           lr=o["lr"], betas=tuple(o.get("betas", (0.9, 0.95))), eps=o.get("eps", 1e-8), fused=True, **more)
        if self.megatron:
            import megatron_fsdp
            self.optimizer = megatron_fsdp.fully_shard_optimizer(optimizer=self.optimizer)
        shape = (self.accumulate, train["micro_batch"], m["seq_len"] + 1)
        source = torch.Generator().manual_seed(99 + rank)
        self.batches = [torch.randint(0, m["vocab"], shape, generator=source) for _ in range(TOKEN_BATCHES)]
        if device.type == "cuda":
            self.batches = [b.pin_memory() for b in self.batches]
        self.tokens = torch.empty(shape, dtype=torch.int64, device=device)
        self.steps, self.graph, self.loss = 0, None, None

    def compute(self):
        loss = None
        for i in range(self.accumulate):
            last, part = i == self.accumulate - 1, self.tokens[i]
            if self.marks and i == 0:
                torch.compiler.cudagraph_mark_step_begin()
            if self.accumulate > 1 and self.spread in ("reshard", "keep"):
                self.model.set_requires_gradient_sync(last)
            alone = self.run.no_sync() if self.spread == "ddp" and not last else contextlib.nullcontext()
            with alone:
                with self.autocast():
                    loss = self.run(part[:, :-1].contiguous(), part[:, 1:].contiguous())
                (loss / self.accumulate if self.accumulate > 1 else loss).backward()
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        return loss.detach()

    def step(self):
        self.tokens.copy_(self.batches[self.steps % TOKEN_BATCHES], non_blocking=True)
        self.steps += 1
        if self.graph is not None:
            self.graph.replay()
            return
        self.loss = None  # memory of the compiler's graphs, which the step uses again
        self.loss = self.compute()
        self.optimizer.zero_grad(set_to_none=True)

    def capture(self, stream):
        """The whole step as one graph, as PyTorch's notes on CUDA graphs describe; the steps before it ran on `stream` too."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = self.compute()
        self.graph, self.loss = graph, loss

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def timed(trainer, count):
    """Milliseconds of each of `count` steps that run back to back."""
    if trainer.device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(count):
            trainer.step()
            times.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in zip(times, times[1:])]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        trainer.step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(events, events[1:])]


def measure(args, config, rank, world, device):
    begin = time.monotonic()
    trainer, cuda = Trainer(args, config, rank, world, device), device.type == "cuda"
    trainer.wait()
    side = torch.cuda.Stream() if trainer.whole_step else None
    with torch.cuda.stream(side) if side else contextlib.nullcontext():
        trainer.step()
        loss_first = float(trainer.loss)
        gc.collect()  # what is alive now lives on: no pauses for it later
        gc.freeze()
        gc.disable()
        if cuda:
            trainer.wait()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # here, not later: replays of a graph allocate nothing, its capture does
        for _ in range(args.warmup - 1):
            trainer.step()
    trainer.wait()
    if trainer.whole_step:
        torch.cuda.empty_cache()
        trainer.capture(side)
        for _ in range(2):
            trainer.step()
    if world > 1:
        dist.barrier()
    trainer.wait()
    ready = time.monotonic() - begin
    step_ms = timed(trainer, args.steps)
    issue = []
    for _ in range(ISSUE_STEPS):
        trainer.wait()
        if world > 1:
            dist.barrier()
            trainer.wait()
        start = time.perf_counter()
        trainer.step()
        issue.append(1e6 * (time.perf_counter() - start))
    trainer.wait()
    loss_last = float(trainer.loss)
    memory = dict(peak_allocated_bytes=None, peak_reserved_bytes=None, device_used_bytes=None)
    if cuda:
        free, total = torch.cuda.mem_get_info()
        memory = dict(peak_allocated_bytes=torch.cuda.max_memory_allocated(), peak_reserved_bytes=torch.cuda.max_memory_reserved(),
                      device_used_bytes=total - free)
    train = config["train"]
    return dict(variant=args.variant, what=VARIANTS[args.variant][2], sdpa=args.sdpa, torch=torch.__version__, cuda=torch.version.cuda, keys_repeated=config["model"].get("repeat_heads", 1),
                cudnn=torch.backends.cudnn.version() if cuda else None, device=torch.cuda.get_device_name() if cuda else "cpu", world=world,
                parameters=trainer.parameters,
                tokens_per_step_per_rank=(train.get("accumulate") or 1) * train["micro_batch"] * config["model"]["seq_len"],
                step_ms=[round(t, 4) for t in step_ms], host_us=statistics.median(issue), loss_first=loss_first, loss_last=loss_last,
                seconds_until_ready=round(ready, 1), warmup=args.warmup, **memory)


def completed(config, sets):
    """The configuration with `sets` in it and what torch needs filled in."""
    for item in sets:
        path, value = item.split("=", 1)
        *outer, last = path.split(".")
        place = config
        for key in outer:
            place = place.setdefault(key, {})
        try:
            place[last] = json.loads(value)
        except json.JSONDecodeError:
            place[last] = value
    m = config["model"]
    for key, value in dict(kv_heads=m["heads"], head_dim=m["d_model"] // m["heads"], ffn=4 * m["d_model"], tied=True, norm_eps=1e-5, init_std=0.02,
                           rope_theta=10000.0).items():
        if m.get(key) is None:
            m[key] = value
    assert m.get("rope_scaling") is None, "rope_scaling is not supported here"
    return config


def select_attention(name, config, device):
    """Before anything is traced: torch.compile keeps the back-end that it finds. One that has no grouped queries gets its keys and values repeated."""
    if name == "auto":
        return
    cuda = torch.backends.cuda
    for key, enable in dict(cudnn=cuda.enable_cudnn_sdp, flash=cuda.enable_flash_sdp, efficient=cuda.enable_mem_efficient_sdp,
                            math=cuda.enable_math_sdp).items():
        enable(key == name)
    c = config["model"]
    if c["heads"] == c["kv_heads"]:
        return
    narrow = config.get("precision", {}).get("compute", "bf16") == "bf16"
    q, kv = (torch.ones(1, heads, 128, c["head_dim"], device=device, dtype=torch.bfloat16 if narrow else torch.float32, requires_grad=True)
             for heads in (c["heads"], c["kv_heads"]))
    try:
        F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True).sum().backward()
    except RuntimeError as e:
        print(f"{name}: no grouped queries ({e}); keys and values are repeated", file=sys.stderr)
        c["repeat_heads"] = c["heads"] // c["kv_heads"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    parser.add_argument("--variant", required=True, choices=VARIANTS)
    parser.add_argument("--sdpa", default="auto", choices=SDPA)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    with open(args.config) as text:
        config = completed(json.load(text), args.sets)
    rank, world, local = (int(os.environ.get(f"OMPI_COMM_WORLD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1), ("LOCAL_RANK", 0)))
    try:
        if args.device == "cuda":
            torch.cuda.set_device(local)
        device = torch.device(args.device, local) if args.device == "cuda" else torch.device("cpu")
        spread = VARIANTS[args.variant][0]
        if world > 1 and spread is None:
            raise ValueError(f"{args.variant} trains on one rank, not on {world}")
        if spread is not None:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29517")
            on_gpu = dict(device_id=device) if args.device == "cuda" else {}
            dist.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=rank, world_size=world, **on_gpu)
        wide = config.get("precision", {}).get("compute", "bf16") != "bf16"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not wide
        select_attention(args.sdpa, config, device)
        result = measure(args, config, rank, world, device)
        if rank == 0:
            print(json.dumps(result), flush=True)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except Exception as e:  # the benchmark's table wants the reason, whatever it is
        said = " ".join(str(e).split())
        kind = "out of memory" if "out of memory" in said else type(e).__name__
        print(json.dumps(dict(variant=args.variant, rank=rank, error=f"{kind}: {said}"[:300])), flush=True)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # nothing at exit waits for ranks that are gone


if __name__ == "__main__":
    main()
