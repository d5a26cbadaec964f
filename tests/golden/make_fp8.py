#!/usr/bin/env python3
"""Makes gpt2_fp8 and llama_fp8: models whose linears multiply in FP8 (precision.linear), in PyTorch.

    python3 -m venv venv && venv/bin/pip install torch==2.9.0 safetensors==0.8.0
    venv/bin/python tests/golden/make_fp8.py

Everything is float64 (reference.py) but what kernels/ops/fp8_ops.h defines in float32: an operand of a product is rounded to
float32, divided by its scale in float32, cast by PyTorch's own float8 types, and multiplied by its scale again, which is exact
in float64. Products are of these, so that sums have no rounding. The script knows nothing of how the trainer lays scales
out: it cuts matrices into blocks by itself. Sizes are past one block of 128 in every direction, and no multiple of it.

The bounds (README.md): rounding to float32, in another order, moves few results by more than float32's error; but an
operand beside the middle between two FP8 numbers may go to the other, an error of up to 1/16 of that element. How often
follows from float32's error alone. So, as for bf16, the bound is sampled: every stored value times 1 + u * uniform(-1, 1),
u = 2^-21 (sums of up to 300 terms, whose rounding errors of at most 2^-24 add to about sqrt(300) / 2 of them), the largest of
32 patterns, twice. Of a tensor it is the root of the mean square of its errors: the largest one is a matter of luck.
"""
import json
import pathlib

import safetensors.torch
import torch
import torch.nn.functional as F

import reference

STEPS, BATCH, SEQ, BLOCK = 10, 3, 50, 128
ROUNDOFF, PERTURBATIONS, MARGIN = 2.0**-21, 32, 2.0
LEAST_SCALE = 2.0**-117
OPTIMIZER = dict(name="adamw", lr=2e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip=1.5,
                 schedule=dict(kind="constant", warmup=0))
MODELS = {
    "gpt2_fp8": dict(family="gpt2", layers=1, d_model=132, heads=3, kv_heads=3, head_dim=44, ffn=140, vocab=61, seq_len=SEQ,
                     tied=True, norm_eps=1e-5),
    "llama_fp8": dict(family="llama", layers=1, d_model=132, heads=4, kv_heads=2, head_dim=34, ffn=140, vocab=61, seq_len=SEQ,
                      tied=False, norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None),
}
E4M3, E5M2 = (torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)


def quantized(x, rows, columns, form, power_of_two):
    """x [R, C] as FP8 gives it back, in blocks of rows x columns; 0: of all."""
    dtype, largest = form
    out, x32 = torch.empty_like(x), x.float()
    rows, columns = rows or x.shape[0], columns or x.shape[1]
    for r in range(0, x.shape[0], rows):
        for c in range(0, x.shape[1], columns):
            block = x32[r : r + rows, c : c + columns]
            scale = block.abs().max() / largest
            if power_of_two:
                scale = torch.exp2(torch.ceil(torch.log2(scale.double()))).float()
            scale = torch.ones(()) if block.abs().max() == 0 else scale.clamp(min=LEAST_SCALE)
            payload = (block / scale).clamp(-largest, largest).to(dtype)
            out[r : r + rows, c : c + columns] = payload.double() * scale.double()
    return out


def across(x, form):
    """Blocks of 1 x 128, all of them at once."""
    dtype, largest = form
    padded = F.pad(x.float(), (0, -x.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    most = padded.abs().amax(-1, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2((most / largest).double()))).float()
    scale = torch.where(most == 0, torch.ones_like(scale), scale.clamp(min=LEAST_SCALE))
    payload = (padded / scale).clamp(-largest, largest).to(dtype)
    return (payload.double() * scale.double()).flatten(1)[:, : x.shape[1]]


class Tensorwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x, weight = quantized(x, 0, 0, E4M3, False), quantized(weight, 0, 0, E4M3, False)
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, d_y):
        x, weight = ctx.saved_tensors
        d_y = quantized(d_y, 0, 0, E5M2, False)
        return d_y @ weight, d_y.T @ x


class Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        blocks = quantized(weight, BLOCK, BLOCK, E4M3, True)
        ctx.save_for_backward(x, blocks)
        return across(x, E4M3) @ blocks.T

    @staticmethod
    def backward(ctx, d_y):
        x, weight = ctx.saved_tensors
        return across(d_y, E4M3) @ weight, across(d_y.T.contiguous(), E4M3) @ across(x.T.contiguous(), E4M3).T


ENCODINGS = dict(fp8_tensor=Tensorwise, fp8_block=Blockwise)


def products_by(function):
    def products(x, weights):
        fused = torch.cat(list(weights))
        y = function.apply(x.flatten(0, 1), fused).unflatten(0, x.shape[:2])
        return y.split([w.shape[0] for w in weights], -1)

    return products


class Run:
    """Float64 parameters, a rounding model at every stored value. Parameters are exact until they are updated."""

    def __init__(self, model, initial, products, site=reference.identity):
        self.model, self.products, self.site = model, products, site
        self.params = {n: p.double().requires_grad_() for n, p in initial.items()}
        self.seen = 0

    def logits(self, tokens):
        held = dict(self.params)
        logits_of = dict(gpt2=reference.gpt2_logits, llama=reference.llama_logits)[self.model["family"]]
        params = set(map(id, held.values()))
        exact = lambda x: x if id(x) in params and self.seen == 0 else self.site(x)
        return logits_of(held, self.model, tokens, exact, self.products)

    def loss(self, tokens):
        for p in self.params.values():
            p.grad = None
        logits = self.logits(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.item()

    def train(self, tokens):
        groups = [dict(params=[p for p in self.params.values() if p.dim() >= 2], weight_decay=OPTIMIZER["weight_decay"]),
                  dict(params=[p for p in self.params.values() if p.dim() < 2], weight_decay=0.0)]
        optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=OPTIMIZER["betas"], eps=OPTIMIZER["eps"], foreach=False)
        losses = []
        for step in range(STEPS):
            losses.append(self.loss(tokens[step]))
            norm = torch.sqrt(sum(p.grad.square().sum() for p in self.params.values())).item()
            for p in self.params.values():
                p.grad.mul_(min(1.0, OPTIMIZER["clip"] / norm))
            optimizer.step()
            self.seen += 1
        return losses


def first_step(model, initial, products, tokens, site=reference.identity):
    """Logits of each row by itself, as generation has them; gradients of the batch."""
    run = Run(model, initial, products, site)
    with torch.no_grad():
        logits = torch.cat([run.logits(row[None, :-1]) for row in tokens])
    run.loss(tokens)
    return logits, {n: p.grad.clone() for n, p in run.params.items()}


def difference(a, b):
    return (a - b).square().mean().sqrt().item()


def shapes(m):
    c, f, v = m["d_model"], m["ffn"], m["vocab"]
    if m["family"] == "gpt2":
        p = "transformer."
        s = {p + "wte.weight": [v, c], p + "wpe.weight": [m["seq_len"], c]}
        for i in range(m["layers"]):
            h = f"{p}h.{i}."
            for name, shape in (("ln_1", [c]), ("attn.c_attn", [c, 3 * c]), ("attn.c_proj", [c, c]), ("ln_2", [c]),
                                ("mlp.c_fc", [c, f]), ("mlp.c_proj", [f, c])):
                s |= {h + name + ".weight": shape, h + name + ".bias": shape[-1:]}
        return s | {p + "ln_f.weight": [c], p + "ln_f.bias": [c]}
    q, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    s = {"model.embed_tokens.weight": [v, c]}
    for i in range(m["layers"]):
        h = f"model.layers.{i}."
        s |= {h + "input_layernorm.weight": [c], h + "self_attn.q_proj.weight": [q, c], h + "self_attn.k_proj.weight": [kv, c],
              h + "self_attn.v_proj.weight": [kv, c], h + "self_attn.o_proj.weight": [c, q],
              h + "post_attention_layernorm.weight": [c], h + "mlp.gate_proj.weight": [f, c], h + "mlp.up_proj.weight": [f, c],
              h + "mlp.down_proj.weight": [c, f]}
    return s | {"model.norm.weight": [c], "lm_head.weight": [v, c]}


def initial_of(m, generator):
    """Rows and columns of matrices differ in size by up to 16, so that blocks have scales of their own."""
    params = {}
    for name, shape in shapes(m).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            sizes = [torch.exp2(4 * torch.rand(n, generator=generator) - 2) for n in shape]
            params[name] = 0.1 * noise * (sizes[0][:, None] * sizes[1][None, :]).sqrt()
        else:
            params[name] = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
    return params


def config_of(m):
    if m["family"] == "gpt2":
        return dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", activation_function="gelu_new", n_layer=m["layers"],
                    n_embd=m["d_model"], n_head=m["heads"], n_inner=m["ffn"], vocab_size=m["vocab"], n_positions=m["seq_len"],
                    layer_norm_epsilon=m["norm_eps"], tie_word_embeddings=True)
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", num_hidden_layers=m["layers"],
                hidden_size=m["d_model"], num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"],
                head_dim=m["head_dim"], intermediate_size=m["ffn"], vocab_size=m["vocab"],
                max_position_embeddings=m["seq_len"], rms_norm_eps=m["norm_eps"], tie_word_embeddings=m["tied"],
                rope_parameters=dict(rope_type="default", rope_theta=m["rope_theta"]))


def make(name, seed):
    m, folder = MODELS[name], pathlib.Path(__file__).resolve().parent / name
    generator = torch.Generator().manual_seed(seed)
    initial = initial_of(m, generator)
    tokens = torch.randint(m["vocab"], (STEPS, BATCH, SEQ + 1), generator=generator)
    follow = torch.rand(tokens.shape, generator=generator) < 2 / 3
    for i in range(1, SEQ + 1):
        tokens[..., i] = torch.where(follow[..., i], (3 * tokens[..., i - 1] + 1) % m["vocab"], tokens[..., i])

    plain, plain_grads = first_step(m, initial, reference.products, tokens[0])
    golden = dict(model=m, optimizer=OPTIMIZER, logits_size=difference(plain, 0 * plain), encodings={})
    tensors = {}
    for encoding, function in ENCODINGS.items():
        products = products_by(function)
        logits, grads = first_step(m, initial, products, tokens[0])
        losses = Run(m, initial, products).train(tokens)
        worst = dict(logits=0.0, grad=dict.fromkeys(grads, 0.0), loss=[0.0] * STEPS)
        for pattern in range(PERTURBATIONS):
            site = reference.perturbation(1000 * seed + pattern, ROUNDOFF)
            got, got_grads = first_step(m, initial, products, tokens[0], site)
            worst["logits"] = max(worst["logits"], difference(got, logits))
            worst["grad"] = {n: max(w, difference(got_grads[n], grads[n])) for n, w in worst["grad"].items()}
            run = Run(m, initial, products, site).train(tokens)
            worst["loss"] = [max(w, abs(a - b)) for w, a, b in zip(worst["loss"], run, losses)]
        golden["encodings"][encoding] = dict(
            loss=losses, grad_size={n: difference(g, 0 * g) for n, g in grads.items()},
            bound=dict(logits=MARGIN * worst["logits"], grad={n: MARGIN * w for n, w in worst["grad"].items()},
                       loss=[MARGIN * w for w in worst["loss"]]),
            from_plain=dict(logits=difference(logits, plain),
                            grad={n: difference(g, plain_grads[n]) for n, g in grads.items()}))
        tensors |= {f"{encoding}.logits": logits.float()} | {f"{encoding}.grad.{n}": g.float() for n, g in grads.items()}
        report = golden["encodings"][encoding]
        print(f"{name} {encoding}: loss {losses[0]:.4f} -> {losses[-1]:.4f}; logits of {golden['logits_size']:.3g}, "
              f"{report['from_plain']['logits']:.3g} from plain ones, bound {report['bound']['logits']:.3g}; gradients' bounds up to "
              f"{max(b / report['grad_size'][n] for n, b in report['bound']['grad'].items()):.3g} of the tensor; "
              f"a tensor is at least "
              f"{min(report['from_plain']['grad'][n] / b for n, b in report['bound']['grad'].items()):.3g} bounds from plain; "
              f"losses' up to {max(report['bound']['loss']):.3g}", flush=True)

    (folder / "hf").mkdir(parents=True, exist_ok=True)
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    (folder / "hf" / "config.json").write_text(json.dumps(config_of(m), indent=2) + "\n")
    save = safetensors.torch.save_file
    save({n: p.contiguous() for n, p in initial.items()}, folder / "hf" / "model.safetensors", {"format": "pt"})
    save({"tokens": tokens[:, None].int().contiguous(), "logits": plain.contiguous()}, folder / "golden.safetensors")
    save({n: t.contiguous() for n, t in tensors.items()}, folder / "fp8.safetensors")


def main():
    torch.set_num_threads(1)
    make("gpt2_fp8", 11)
    make("llama_fp8", 12)


if __name__ == "__main__":
    main()
