#!/usr/bin/env python3
"""PyTorch trains what Millrace trains: from the same weights (a folder of `millrace export`), on the same bytes in the same order.

  python3 tools/bench/peers/torch_train.py CONFIG --weights FOLDER --out losses.jsonl [--steps N] [--seconds S] [--compile] [--fp32 | --bf16]

GPT-2 only, data.kind text with one file in data.path, one GPU. Model of transformers; AdamW, schedule, clipping and batches follow CONFIG as
Millrace defines them (sample order: runtime/data/tokens/sample_order.h). bf16 under autocast (weights, residual stream and norms stay fp32) unless --bf16, where the whole model computes in a bf16 copy of fp32 weights as
FSDP2's mixed precision and Millrace do, or --fp32, where TF32 is off.
Writes a JSON line per step: step, loss, step_ms. Needs torch and transformers.
"""
import argparse, copy, json, math, os, time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn.functional as F
import transformers

M32 = 0xFFFFFFFF


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=0, help="default: train.steps")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long")
    parser.add_argument("--compile", action="store_true")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--fp32", action="store_true")
    formats.add_argument("--bf16", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with open(args.config) as text:
        config = json.load(text)
    train, opt, length = config["train"], config["optimizer"], config["model"]["seq_len"]
    assert config["data"]["kind"] == "text" and config["model"]["family"] == "gpt2", "GPT-2 on one text file"
    assert opt.get("schedule", {}).get("kind", "constant") in ("constant", "cosine"), "no other schedule here"
    total, rows = train["steps"], train["micro_batch"] * train.get("accumulate", 1)
    with open(config["data"]["path"], "rb") as file:
        corpus = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    windows = (len(corpus) - 1) // length
    order = SampleOrder(windows - max(1, windows // 10), config["data"].get("shuffle_seed", 0))

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    net = transformers.AutoModelForCausalLM.from_pretrained(args.weights, local_files_only=True, dtype=torch.float32,
                                                            attn_implementation="sdpa").to(args.device).train()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    matrices = [p for p in net.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=opt.get("weight_decay", 0.1)),
                                   dict(params=others, weight_decay=0.0)],
                                  lr=opt.get("lr", 3e-4), betas=tuple(opt.get("betas", (0.9, 0.95))), eps=opt.get("eps", 1e-8),
                                  fused=args.device == "cuda")
    computing = copy.deepcopy(net).to(torch.bfloat16) if args.bf16 else net
    pairs = list(zip(computing.parameters(), net.parameters())) if args.bf16 else []

    def loss_of(inputs, targets):
        return F.cross_entropy(computing(input_ids=inputs, use_cache=False).logits.float().flatten(0, 1), targets.flatten())

    forward = torch.compile(loss_of) if args.compile else loss_of
    micro, begin = train["micro_batch"], time.monotonic()
    with open(args.out, "w") as out:
        for step in range(min(total, args.steps or total)):
            if args.seconds and time.monotonic() - begin > args.seconds:
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
