#!/usr/bin/env python3
"""PyTorch's best at a hybrid stack's training step that Millrace does too: nemotron_h, qwen3 and qwen3_moe. Arguments, timing and JSON line are torch_bench.py's.

  python3 tools/bench/peers/torch_hybrid.py configs/nemotron_h_1b.json --variant compile --sdpa cudnn
  mpirun -n 2 --bind-to none python3 tools/bench/peers/torch_hybrid.py configs/qwen3_moe_8l.json --variant fsdp2 --sdpa cudnn

Experts are torch._grouped_mm over rows sorted by expert; ends of experts stay on the device. The scan is mamba_ssm's Triton kernels, which must be importable
(its folders ops/triton and utils are enough: it needs no compiled extension), two operators to the compiler, so that a block is one graph; --chunk is the
scan's. Convolution, gates, norms and the router are left to the compiler. On a CPU the scan is the plain recurrence, for tests. Weights of a unit are
cast together, rates and steps of Mamba-2 too. Of auxiliary losses there is Switch's.
"""
import argparse, json, math, os, sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_bench
from torch_bench import normed, rotated

CHUNK = 256


def recurrence(x, dt, a, b, c, d):
    """h = exp(dt a) h + dt x (x) b; y = h c + d x. x [B, T, H, P], dt [B, T, H], a and d [H], b and c [B, T, G, N]."""
    heads = x.shape[2] // b.shape[2]
    b, c = (v.repeat_interleave(heads, 2).float() for v in (b, c))
    state, rows, wide = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3], dtype=torch.float32), [], x.float()
    for t in range(x.shape[1]):
        state = torch.exp(dt[:, t] * a)[..., None, None] * state + (dt[:, t, :, None] * wide[:, t])[..., None] * b[:, t, :, None, :]
        rows.append((state * c[:, t, :, None, :]).sum(-1) + d[:, None] * wide[:, t])
    return torch.stack(rows, 1).to(x.dtype)


@torch.library.custom_op("hybrid::scan", mutates_args=())
def scan(x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_fwd
    return _mamba_chunk_scan_combined_fwd(x, dt, a, b, c, CHUNK, D=d)[0].contiguous()


@torch.library.custom_op("hybrid::scan_gradients", mutates_args=())
def scan_gradients(dy: torch.Tensor, y: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                   d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_bwd
    dx, ddt, da, db, dc, dd, *_ = _mamba_chunk_scan_combined_bwd(dy, x, dt, a, b, c, y, CHUNK, D=d)
    return tuple(found.to(of.dtype).contiguous() for found, of in zip((dx, ddt, da, db, dc, dd), (x, dt, a, b, c, d)))


scan.register_fake(lambda x, dt, a, b, c, d: torch.empty_like(x, memory_format=torch.contiguous_format))
scan_gradients.register_fake(lambda dy, y, *inputs: tuple(torch.empty_like(i, memory_format=torch.contiguous_format) for i in inputs))
scan.register_autograd(lambda ctx, dy: scan_gradients(dy, *ctx.saved_tensors), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output, *inputs))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.head_dim, self.repeat = c["d_model"], c["head_dim"], c.get("repeat_heads", 1)
        inner, kv, qwen = c["heads"] * self.head_dim, c["kv_heads"] * self.head_dim, c["family"] != "nemotron_h"
        self.widths, self.rope, self.grouped = [inner, kv, kv], qwen, c["heads"] != c["kv_heads"] and self.repeat == 1
        self.qkv, self.out = nn.Linear(d, inner + 2 * kv, bias=False), nn.Linear(inner, d, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, c["norm_eps"]) if qwen else None for _ in range(2))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, -1, self.head_dim) for part in self.qkv(x).split(self.widths, -1))
        if self.q_norm is not None:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.rope:
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.repeat > 1:
            k, v = k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.out(y.transpose(1, 2).reshape(b, t, -1)), 0.0


def activated(y, gated):
    if not gated:
        return F.relu(y).square()
    gate, value = y.chunk(2, -1)
    return F.silu(gate) * value


class Mlp(nn.Module):
    def __init__(self, d, width, gated):
        super().__init__()
        self.gated, self.up, self.down = gated, nn.Linear(d, width * (1 + gated), bias=False), nn.Linear(width, d, bias=False)

    def forward(self, x, cos=None, sin=None):
        return self.down(activated(self.up(x), self.gated)), 0.0


class Dispatched(torch.autograd.Function):
    """Rows in the order of their experts; `back` says where each (row, k) went, so that the gradient is a gather and a sum, not a scatter."""

    @staticmethod
    def forward(ctx, rows, order, back, top_k):
        ctx.save_for_backward(back)
        ctx.top_k = top_k
        return rows[order // top_k]

    @staticmethod
    def backward(ctx, d):
        back, = ctx.saved_tensors
        return d[back].view(-1, ctx.top_k, d.shape[-1]).sum(1), None, None, None


class Returned(torch.autograd.Function):
    """The inverse permutation."""

    @staticmethod
    def forward(ctx, y, order, back):
        ctx.save_for_backward(order)
        return y[back]

    @staticmethod
    def backward(ctx, d):
        order, = ctx.saved_tensors
        return d[order], None, None


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        m, d, self.gated = c["moe"], c["d_model"], c["family"] != "nemotron_h"
        self.experts, self.top_k, self.sigmoid = m["experts"], m["top_k"], not self.gated
        self.normalise, self.scaling = m.get("normalise", True), m.get("scaling", 1.0)
        self.aux = {"none": 0.0, "switch": m.get("aux_coefficient", 1e-3)}[m.get("aux_loss", "none")]
        self.router = nn.Linear(d, self.experts, bias=False)
        self.up = nn.Parameter(torch.empty(self.experts, m["ffn"] * (1 + self.gated), d))
        self.down_weight = nn.Parameter(torch.empty(self.experts, d, m["ffn"]))
        self.shared = Mlp(d, m["shared_ffn"], self.gated) if m.get("shared_ffn") else None

    def forward(self, x, cos, sin):
        rows = x.flatten(0, 1)
        logits = self.router(rows).float()
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        weights, ids = scores.topk(self.top_k, -1)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) if self.normalise else weights
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        # Ends of experts among the sorted rows; nothing comes to the host.
        ends = torch.searchsorted(flat[order], torch.arange(self.experts, device=x.device), right=True).to(torch.int32)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
        y = torch._grouped_mm(Dispatched.apply(rows, order, back, self.top_k), self.up.to(x.dtype).transpose(-2, -1), offs=ends)
        y = torch._grouped_mm(activated(y, self.gated), self.down_weight.to(x.dtype).transpose(-2, -1), offs=ends)
        y = (Returned.apply(y, order, back).view(-1, self.top_k, y.shape[-1]) * (weights * self.scaling).to(y.dtype)[..., None]).sum(1)
        if self.shared is not None:
            y = y + self.shared(rows)[0]
        aux = 0.0
        if self.aux > 0:
            counts = torch.diff(ends.float(), prepend=torch.zeros(1, device=x.device))
            aux = self.aux * self.experts * (counts / flat.numel() * scores.mean(0)).sum()
        return y.view(x.shape), aux


class Mamba(nn.Module):
    def __init__(self, c):
        super().__init__()
        m, d, self.eps = c["mamba"], c["d_model"], c["norm_eps"]
        self.heads, self.head_dim, self.groups, self.state = m["heads"], m["head_dim"], m["groups"], m["state"]
        self.inner, shared = self.heads * self.head_dim, self.groups * self.state
        self.widths, self.taps = [self.inner, self.inner + 2 * shared, self.heads], 4
        self.in_proj, self.out = nn.Linear(d, sum(self.widths), bias=False), nn.Linear(self.inner, d, bias=False)
        self.conv = nn.Parameter(torch.empty(self.inner + 2 * shared, self.taps))
        self.conv_bias, self.dt_bias, self.a_log, self.d = (nn.Parameter(torch.empty(n)) for n in (self.inner + 2 * shared, *[self.heads] * 3))
        self.norm_weight = nn.Parameter(torch.empty(self.inner))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        z, xbc, dt = self.in_proj(x).split(self.widths, -1)
        padded, taps = F.pad(xbc, (0, 0, self.taps - 1, 0)), self.conv.float()
        xbc = F.silu(sum(padded[:, k:k + t].float() * taps[:, k] for k in range(self.taps)) + self.conv_bias.float()).to(x.dtype)
        dt = F.softplus(dt.float() + self.dt_bias.float())
        y, bs, cs = xbc.split([self.inner, self.groups * self.state, self.groups * self.state], -1)
        run = scan if x.is_cuda else recurrence
        y = run(y.reshape(b, t, self.heads, self.head_dim), dt, -torch.exp(self.a_log.float()),
                *(v.reshape(b, t, self.groups, self.state) for v in (bs, cs)), self.d.float())
        y = (y.reshape(b, t, -1).float() * F.silu(z.float())).view(b, t, self.groups, -1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return self.out((y.view(b, t, -1) * self.norm_weight.float()).to(x.dtype)), 0.0


def branch(kind, c):
    if kind == "-":
        return Mlp(c["d_model"], c["ffn"], c["family"] != "nemotron_h")
    return {"*": Attention, "E": Experts, "M": Mamba}[kind](c)


class Block(nn.Module):
    def __init__(self, c, kinds):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(c["d_model"], c["norm_eps"]) for _ in kinds)
        self.branches = nn.ModuleList(branch(kind, c) for kind in kinds)

    def forward(self, x, cos, sin):
        aux = 0.0
        for norm, each in zip(self.norms, self.branches):
            y, more = each(normed(norm, x), cos, sin)
            x, aux = x + y, aux + more
        return x, aux


class Model(torch_bench.Model):
    def __init__(self, c, dtype):
        nn.Module.__init__(self)
        self.config = c
        self.embed, self.head = torch_bench.Embed(c, dtype), torch_bench.Head(c)
        qwen = {"qwen3": "-", "qwen3_moe": "E"}
        kinds = list(c["pattern"]) if c["family"] == "nemotron_h" else ["*" + kind for kind in c.get("pattern") or qwen[c["family"]] * c["layers"]]
        self.blocks = nn.ModuleList(Block(c, kind) for kind in kinds)
        c["layers"], self.cos, self.sin = len(kinds), None, None

    def start(self, device, seed):
        super().start(device, seed)
        local = lambda p: p.to_local() if hasattr(p, "to_local") else p
        with torch.no_grad():
            for each in self.modules():
                if isinstance(each, Experts):
                    local(each.down_weight).normal_(0.0, self.config["init_std"] / math.sqrt(2 * self.config["layers"]))
                if isinstance(each, Mamba):
                    local(each.a_log).uniform_(1, 16).log_()
                    local(each.d).fill_(1.0)
                    local(each.conv).uniform_(-0.5, 0.5)
                    steps = torch.empty_like(local(each.dt_bias)).uniform_(math.log(1e-3), math.log(1e-1)).exp_()
                    local(each.dt_bias).copy_(steps + torch.log(-torch.expm1(-steps)))

    def forward(self, tokens, targets):
        x, aux = self.embed(tokens), 0.0
        for block in self.blocks:
            x, more = block(x, self.cos, self.sin)
            aux = aux + more
        return self.head(x, targets, self.embed.tokens.weight if self.head.weight is None else None) + aux


def completed(config, sets, fill=torch_bench.completed):
    """As Millrace fills in what a configuration leaves out; what there is no code for here is refused."""
    m = config["model"]
    assert m["family"] in ("nemotron_h", "qwen3", "qwen3_moe"), f"{m['family']}: torch_bench.py has it"
    m["tied"] = m.get("tied") or False
    config = fill(config, sets)
    moe = m.get("moe", {})
    for key, only in dict(bias=False, groups=1).items():
        assert moe.get(key) in (None, only), f"model.moe.{key}: only {json.dumps(only)} here"
    assert not m.get("mtp", {}).get("depth"), "model.mtp.depth: only 0 here"
    return config


def main():
    """torch_bench's, with this model and one argument more."""
    global CHUNK
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--chunk", type=int, default=CHUNK, choices=(64, 128, 256), help="tokens of a chunk of mamba_ssm's scan")
    extra, sys.argv[1:] = parser.parse_known_args()
    CHUNK = extra.chunk
    torch._dynamo.config.automatic_dynamic_shapes = False  # blocks of several kinds are several graphs, not one of symbols
    torch_bench.Model, torch_bench.completed = Model, completed
    return torch_bench.main()


if __name__ == "__main__":
    sys.exit(main())
