#!/usr/bin/env python3
"""PyTorch trains what Millrace trains: from the same weights (a folder of `millrace export`), on the same bytes in the same order.

  python3 tools/bench/peers/torch_train.py CONFIG --weights FOLDER --out losses.jsonl [--steps N] [--seconds S] [--compile] [--fp32 | --bf16] [--start SEED]

GPT-2, or a hybrid of nemotron_h without experts; data.kind text with one file in data.path, one GPU. GPT-2 is transformers', a hybrid that of
torch_hybrid.py; AdamW, schedule, clipping and batches follow CONFIG as Millrace defines them (sample order: runtime/data/tokens/sample_order.h).
bf16 under autocast (weights, residual stream and norms stay fp32; not of hybrids) unless --bf16, where the whole model computes in a bf16 copy of fp32
weights as FSDP2's mixed precision and Millrace do, or --fp32, where TF32 is off.
--start: a hybrid begins with weights of its own and leaves them in FOLDER for model.init_from, before it trains; config.json comes last.
Writes a JSON line per step: step, loss, step_ms. Needs torch, and transformers or safetensors.
"""
import argparse, copy, json, math, os, pathlib, time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn.functional as F

M32 = 0xFFFFFFFF
STARTED = time.monotonic()


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M32, (p0 >> 32) ^ c[3] ^ k[1], p0 & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


class SampleOrder:
    """Window of each sample: a keyed Feistel permutation per epoch, cycle-walked into [0, windows)."""

    def __init__(self, windows, seed):
        self.windows, self.seed, self.bits = windows, seed, 1
        while 1 << 2 * self.bits < windows:
            self.bits += 1

    def __call__(self, sample):
        epoch, value = divmod(sample, self.windows)
        mask = (1 << self.bits) - 1
        while True:
            left, right = value >> self.bits, value & mask
            for r in range(8):
                word = philox([right & M32, (right >> 32 | r) & M32, epoch & M32, epoch >> 32],
                              [self.seed & M32, self.seed >> 32])[0]
                left, right = right, left ^ (word & mask)
            value = left << self.bits | right
            if value < self.windows:
                return value


def rate_at(step, o, total):
    s = o.get("schedule", {})
    lr, low, warmup = o.get("lr", 3e-4), s.get("min_lr", 0.0), s.get("warmup", 0)
    if step < warmup:
        return lr * (step + 1) / warmup
    if s.get("kind", "constant") == "constant":
        return lr
    decay = s.get("decay_steps") or total - warmup
    return low + (lr - low) * (1 + math.cos(math.pi * min(1.0, (step - warmup) / decay))) / 2


def gpt2(args, config):
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    net = transformers.AutoModelForCausalLM.from_pretrained(args.weights, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa").to(args.device)
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return net, lambda model, inputs, targets: F.cross_entropy(model(input_ids=inputs, use_cache=False).logits.float().flatten(0, 1), targets.flatten())


# Of a branch: where the export's tensors go. Queries, keys and values lie one behind another.
PARTS = {"Mamba": {"in_proj.weight": ["in_proj.weight"], "conv": ["conv1d.weight"], "conv_bias": ["conv1d.bias"], "dt_bias": ["dt_bias"], "a_log": ["A_log"],
                   "d": ["D"], "norm_weight": ["norm.weight"], "out.weight": ["out_proj.weight"]},
         "Attention": {"qkv.weight": ["q_proj.weight", "k_proj.weight", "v_proj.weight"], "out.weight": ["o_proj.weight"]},
         "Mlp": {"up.weight": ["up_proj.weight"], "down.weight": ["down_proj.weight"]}}
WIDE = ("dt_bias", "a_log", "d")  # stay fp32 in any precision, as in Millrace


def export(net, places, m, folder):
    """As `millrace export` writes it."""
    import safetensors.torch
    folder.mkdir(parents=True, exist_ok=True)
    tensors, kv = {}, m["kv_heads"] * m["head_dim"]
    for name, parameter in net.state_dict().items():
        parts = places[name]
        pieces = parameter.split([parameter.shape[0] - 2 * kv, kv, kv]) if len(parts) == 3 else [parameter]
        for part, piece in zip(parts, pieces):
            tensors[part] = piece[:, None] if part.endswith("conv1d.weight") else piece
    safetensors.torch.save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    mamba = m["mamba"]
    said = dict(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", hybrid_override_pattern=m["pattern"], num_hidden_layers=len(m["pattern"]),
                hidden_size=m["d_model"], max_position_embeddings=m["seq_len"], layer_norm_epsilon=m["norm_eps"], mlp_hidden_act="relu2", num_attention_heads=m["heads"],
                num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"], intermediate_size=m["ffn"], mamba_num_heads=mamba["heads"], mamba_head_dim=mamba["head_dim"],
                n_groups=mamba["groups"], ssm_state_size=mamba["state"], chunk_size=mamba.get("chunk") or 128, conv_kernel=4, use_conv_bias=True, vocab_size=m["vocab"],
                tie_word_embeddings=False, torch_dtype="float32")
    (folder / "config.json.part").write_text(json.dumps(said, indent=2))
    os.replace(folder / "config.json.part", folder / "config.json")


def hybrid(args, config):
    import safetensors.torch
    import torch_hybrid
    if not (args.fp32 or args.bf16):
        raise SystemExit("torch_train.py: a hybrid computes in --fp32 or --bf16")
    model = torch_hybrid.completed(config, [])["model"]
    if model["family"] != "nemotron_h" or "E" in model["pattern"]:
        raise SystemExit(f"torch_train.py: of hybrids there is nemotron_h without experts, not {model['family']} {model.get('pattern')}")
    with torch.device(args.device):
        net = torch_hybrid.Model(model, torch.bfloat16 if args.bf16 else torch.float32)
    places = {"embed.tokens.weight": ["backbone.embeddings.weight"], "head.norm.weight": ["backbone.norm_f.weight"], "head.weight": ["lm_head.weight"]}
    for i, block in enumerate(net.blocks):
        places[f"blocks.{i}.norms.0.weight"] = [f"backbone.layers.{i}.norm.weight"]
        for name, parts in PARTS[type(block.branches[0]).__name__].items():
            places[f"blocks.{i}.branches.0.{name}"] = [f"backbone.layers.{i}.mixer.{part}" for part in parts]
    if args.start is not None:
        net.start(torch.device(args.device), args.start)
        export(net, places, model, pathlib.Path(args.weights))
        return net, lambda model, inputs, targets: model(inputs, targets)
    given = {}
    for path in sorted(pathlib.Path(args.weights).glob("*.safetensors")):
        given.update(safetensors.torch.load_file(path, device=args.device))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parts = [given.pop(part) for part in places.pop(name)]
            parameter.copy_(torch.cat(parts).view(parameter.shape))
    if given or places:
        raise SystemExit(f"torch_train.py: the weights have {sorted(given)} that the model has not, and lack {sorted(places)}")
    return net, lambda model, inputs, targets: model(inputs, targets)


def narrow_of(net):
    """A bf16 copy that computes."""
    copied = copy.deepcopy(net).to(torch.bfloat16)
    for name, parameter in copied.named_parameters():
        if name.rsplit(".", 1)[-1] in WIDE:
            parameter.data = parameter.data.float()
    return copied


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=0, help="default: train.steps")
    parser.add_argument("--seconds", type=float, default=0, help="take no step after so long since the start")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--start", type=int, metavar="SEED")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--fp32", action="store_true")
    formats.add_argument("--bf16", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with open(args.config) as text:
        config = json.load(text)
    train, opt, length = config["train"], config["optimizer"], config["model"]["seq_len"]
    assert config["data"]["kind"] == "text", "one text file"
    assert opt.get("schedule", {}).get("kind", "constant") in ("constant", "cosine"), "no other schedule here"
    total, rows = train["steps"], train["micro_batch"] * train.get("accumulate", 1)
    with open(config["data"]["path"], "rb") as file:
        corpus = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    windows = (len(corpus) - 1) // length
    order = SampleOrder(windows - max(1, windows // 10), config["data"].get("shuffle_seed", 0))

    net, loss_with = (gpt2 if config["model"]["family"] == "gpt2" else hybrid)(args, config)
    net.train()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    matrices = [p for p in net.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=opt.get("weight_decay", 0.1)),
                                   dict(params=others, weight_decay=0.0)],
                                  lr=opt.get("lr", 3e-4), betas=tuple(opt.get("betas", (0.9, 0.95))), eps=opt.get("eps", 1e-8),
                                  fused=args.device == "cuda")
    computing = narrow_of(net) if args.bf16 else net
    pairs = list(zip(computing.parameters(), net.parameters())) if args.bf16 else []

    def loss_of(inputs, targets):
        return loss_with(computing, inputs, targets)

    forward = loss_of
    if args.compile and hasattr(computing, "blocks"):
        torch._dynamo.config.automatic_dynamic_shapes = False  # blocks of several kinds are several graphs, not one of symbols
        for block in computing.blocks:
            block.compile()
    elif args.compile:
        forward = torch.compile(loss_of)
    micro = train["micro_batch"]
    with open(args.out, "w") as out:
        for step in range(min(total, args.steps or total)):
            if args.seconds and time.monotonic() - STARTED > args.seconds:
                break
            start = time.perf_counter()
            batch = torch.stack([corpus[w * length:w * length + length + 1]
                                 for w in (order(step * rows + i) for i in range(rows))]).to(args.device).long()
            mean = 0.0
            with torch.no_grad():
                for narrow, wide in pairs:
                    narrow.copy_(wide)
            for m in range(0, rows, micro):
                part = batch[m:m + micro]
                with torch.autocast(args.device, torch.bfloat16, enabled=not (args.fp32 or args.bf16)):
                    loss = forward(part[:, :-1], part[:, 1:]) * (micro / rows)
                loss.backward()
                for narrow, wide in pairs:
                    grad = narrow.grad.float()
                    wide.grad = grad if wide.grad is None else wide.grad + grad
                    narrow.grad = None
                mean += loss.detach()
            if opt.get("clip", 1.0) > 0:
                torch.nn.utils.clip_grad_norm_(net.parameters(), opt.get("clip", 1.0))
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, opt, total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            value = float(mean)
            out.write(json.dumps(dict(step=step + 1, loss=value, step_ms=1e3 * (time.perf_counter() - start))) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
