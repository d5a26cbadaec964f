#!/usr/bin/env python3
"""PyTorch's tensor and context parallelism at a Llama training step that Millrace does too; as torch_bench.py, whose arguments, timing and JSON line these are.

  mpirun -n 2 --bind-to none python3 tools/bench/peers/torch_axes.py CONFIG --variant tensor --sdpa cudnn --set parallel.tensor=2 --set model.layers=8

tensor     parallelize_module as torchtitan's Llama plan does it: rows between blocks split (SequenceParallel), projections column- and row-wise, vocabulary
           of the head split with loss_parallel; blocks compiled; FSDP2 over what ranks are left gives bf16 weights of fp32 masters
async      the same, with inductor's micro-pipelined products over symmetric memory (async tensor parallelism)
context    torch.distributed.tensor.experimental.context_parallel, its rotation by --rotate (allgather or alltoall), FSDP2 over the same ranks

Embedding and head have weights of their own whatever model.tied says. --eager: blocks are not compiled. --recompute: their forward runs again in the backward.
"""
import argparse, os, sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch_bench
from torch_bench import rotated
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WHATS = {"tensor": "tensor parallel with split rows, blocks compiled", "async": "async tensor parallel, blocks compiled", "context": "context_parallel"}


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, inner, kv = c["d_model"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
        self.head_dim, self.repeat = c["head_dim"], c.get("repeat_heads", 1)
        self.wq, self.wk, self.wv = (nn.Linear(d, n, bias=False) for n in (inner, kv, kv))
        self.out = nn.Linear(inner, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.repeat > 1:
            k, v = k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.up = (nn.Linear(c["d_model"], c["ffn"], bias=False) for _ in range(2))
        self.down = nn.Linear(c["ffn"], c["d_model"], bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Norm(nn.RMSNorm):
    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm_1, self.norm_2 = (Norm(c["d_model"], c["norm_eps"]) for _ in range(2))
        self.attention, self.ffn = Attention(c), FeedForward(c)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.ffn(self.norm_2(x))


class Model(nn.Module):
    def __init__(self, c, dtype):
        super().__init__()
        assert c["family"] == "llama", "llama only"
        self.config = c
        self.embed = nn.Embedding(c["vocab"], c["d_model"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = Norm(c["d_model"], c["norm_eps"])
        self.head = nn.Linear(c["d_model"], c["vocab"], bias=False)  # a tied one would need one more plan: untied in every variant
        self.cos, self.sin, self.recompute = None, None, False

    start = torch_bench.Model.start

    def forward(self, tokens, targets, cos, sin):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if self.recompute else block(x, cos, sin)
        return self.head(self.norm(x))


def split(model, mesh):
    """torchtitan's plan for Llama with split rows."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "norm_1": SequenceParallel(), "norm_2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            **{f"attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")},
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "ffn.gate": ColwiseParallel(), "ffn.up": ColwiseParallel(),
            "ffn.down": RowwiseParallel(output_layouts=Shard(1))})


class Trainer(torch_bench.Trainer):
    whole_step = marks = False
    spread, graph, loss, steps = "axes", None, None, 0

    def __init__(self, args, config, rank, world, device):
        self.device, self.rank, self.world, self.args = device, rank, world, args
        m, train, o, precision, parallel = config["model"], config["train"], config["optimizer"], config.get("precision", {}), config["parallel"]
        self.accumulate, self.clip = train.get("accumulate") or 1, o.get("clip", 1.0)
        dtype = torch.bfloat16 if precision.get("compute", "bf16") == "bf16" else torch.float32
        wire = torch.bfloat16 if precision.get("grad_wire", "fp32") == "bf16" else torch.float32
        axis = "context" if args.variant == "context" else "tensor"
        ranks = parallel[axis]
        mesh = init_device_mesh(device.type, (world // ranks, ranks), mesh_dim_names=("data", axis))
        self.axis = mesh[axis]
        with torch.device("meta"):
            self.model = Model(m, dtype)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if axis == "tensor":
            split(self.model, self.axis)
        if args.variant == "async":
            from torch.distributed._symmetric_memory import enable_symm_mem_for_group
            torch._inductor.config._micro_pipeline_tp = True
            enable_symm_mem_for_group(self.axis.get_group().group_name)
        self.model.recompute = args.recompute
        if not args.eager:
            for block in self.model.blocks:
                block.compile(fullgraph=axis == "tensor")
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wire, cast_forward_inputs=False)
        spread = mesh["data"] if axis == "tensor" else mesh["data", "context"]._flatten("fsdp")
        for block in self.model.blocks:
            fully_shard(block, mesh=spread, mp_policy=policy)
        fully_shard(self.model, mesh=spread, mp_policy=policy, reshard_after_forward=False)
        self.model.to_empty(device=device)
        self.model.start(device, 1234 + rank)
        wide, others = ([p for p in self.model.parameters() if (p.dim() >= 2) == big] for big in (True, False))
        self.optimizer = torch.optim.AdamW([dict(params=wide, weight_decay=o.get("weight_decay", 0.1)), dict(params=others, weight_decay=0.0)],
                                           lr=o["lr"], betas=tuple(o.get("betas", (0.9, 0.95))), eps=o.get("eps", 1e-8), fused=True)
        shape = (self.accumulate, train["micro_batch"], m["seq_len"] + 1)
        source = torch.Generator().manual_seed(99 + rank // ranks)  # a data rank's tokens
        self.batches = [torch.randint(0, m["vocab"], shape, generator=source) for _ in range(torch_bench.TOKEN_BATCHES)]
        if device.type == "cuda":
            self.batches = [b.pin_memory() for b in self.batches]
        self.tokens = torch.empty(shape, dtype=torch.int64, device=device)

    def loss_of(self, logits, targets):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def compute(self):
        loss, m = None, self.model
        for i in range(self.accumulate):
            m.set_requires_gradient_sync(i == self.accumulate - 1)
            tokens, targets = self.tokens[i][:, :-1].contiguous(), self.tokens[i][:, 1:].contiguous()
            if self.args.variant == "context":
                from torch.distributed.tensor.experimental import context_parallel
                from torch.distributed.tensor.experimental._attention import set_rotate_method
                set_rotate_method(self.args.rotate)
                cos, sin = m.cos.clone(), m.sin.clone()  # the context splits them in place
                with context_parallel(self.axis, buffers=[tokens, targets, cos, sin], buffer_seq_dims=[1, 1, 0, 0]):
                    loss = self.loss_of(m(tokens, targets, cos, sin), targets)
                    (loss / self.accumulate).backward()
            else:
                from torch.distributed.tensor.parallel import loss_parallel
                with loss_parallel():
                    loss = self.loss_of(m(tokens, targets, m.cos, m.sin), targets)
                    (loss / self.accumulate).backward()
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(m.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        loss = loss.detach()
        return loss.full_tensor() if hasattr(loss, "full_tensor") else loss


def main():
    """torch_bench's, with this trainer and two arguments more."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--recompute", action="store_true", help="the blocks' forward again in the backward")
    parser.add_argument("--rotate", default="allgather", choices=("allgather", "alltoall"))
    extra, sys.argv[1:] = parser.parse_known_args()
    torch_bench.VARIANTS = {name: ("axes", None, what) for name, what in WHATS.items()}
    torch_bench.Trainer = lambda args, *rest: Trainer(argparse.Namespace(**vars(args), **vars(extra)), *rest)
    return torch_bench.main()


if __name__ == "__main__":
    sys.exit(main())
