"""What seeds.py compares: the five systems' own comparisons, as configurations of this program. Standard library only.

A group is one comparison; its first variant is the baseline, which is how the system did it before. A variant is a list of key=value. Groups stand in
order of worth: with little time on a machine, those on top are measured first.
"""
import dataclasses


@dataclasses.dataclass
class Group:
    name: str
    seed: str  # heading of the page that it stands under
    title: str
    config: object  # a path below configs, or a dictionary
    common: list  # key=value of every variant
    variants: dict  # name: list of key=value
    columns: list  # of seed_page.COLUMNS
    verb: str = "bench"  # bench, train or pool
    peers: dict = dataclasses.field(default_factory=dict)  # name: words of the peer; run in turn with the variants
    peer: str = "torch_axes.py"  # of the folder peers
    ranks: int = 0  # with another number of ranks it is left out; 0: with any
    steps: int = 20
    warmup: int = 5
    rounds: int = 2
    flags: tuple = ()  # of bench: trace, update
    env: dict = dataclasses.field(default_factory=dict)
    planned: bool = False  # ask `plan` for memory by class and pool bytes as well


SEEDS = {
    "downcast": "DeepSpeed #7588: cast before the gather",
    "update": "DeepSpeed #4318: capture short kernel sequences",
    "graphs": "torchtitan #2050: CUDA graphs around sharded training",
    "allocators": "Megatron-LM #5462: pools for units that are not alike",
    "concat": "fairscale #1180: concatenate gradients in the last microbatch only",
    "axes": "torchtitan #2050 and fairscale #1180: tensor parallelism in the same graph",
    "hybrids": "Hybrid stacks beside PyTorch",
    "float8": "FP8 and Muon on several GPUs",
    "options": "Every option's cost, beside the five",
}
PUBLISHED = {
    "downcast": "Published: 438 to 337 ms a step and 9.5 to 8.5 GB (RTX 5090, slow links, a model like OpenVLA with depths 3, 3, 4, autocast; number of GPUs not said).",
    "update": "Published: no figure. The benchmark that came with it takes host times without waiting for the device, so it measures issuing alone.",
    "graphs": "Published: bits equal for Llama 3.1 8B and 70B; memory 143 to 153 GiB (the text says 6 %, the arithmetic gives 7.0 %); step times are in pictures.",
    "allocators": "Published: no table in text; a user's report (Megatron-Bridge #5402): 38 unlike units, 79.1 GB and out of memory with persistent buffers, 54.4 GB "
                  "(74.8 at the peak) with the max-pool.",
    "concat": "Published: 339.53 to 387.98 TFLOPS end to end (+14.3 %), 625.64 to 817.5 without communication (+30.7 %): one layer like Llama 3's, 128 "
              "microbatches, FP8, TP 4, CP 8; losses equal to the bit.",
    "axes": "Published: torchtitan's graphs keep their bits with SimpleFSDP + TP; fairscale's TP 4 has equal losses to the bit. Peers are PyTorch's "
            "(tools/bench/peers/torch_axes.py), whose rows between blocks are split, too.",
    "hybrids": "Peers are PyTorch's (tools/bench/peers/torch_hybrid.py): FSDP2 and torch.compile, torch._grouped_mm for experts, cuDNN's attention, mamba_ssm's Triton "
               "kernels for the scan.",
    "float8": "Peers are PyTorch's in bf16 (tools/bench/peers/torch_bench.py), and torchao 0.17.0's float8 over FSDP2 (tools/bench/peers/torch_float8.py), whose gathers carry FP8 "
              "where a tensor has one scale.",
    "options": "What the options of sharding and memory move and keep.",
}
ALLOCATORS = ("persistent", "fixed", "max_pool", "coloured", "packed", "dynamic")
DOWNCASTS = {name: [f"sharding.downcast={name}"] for name in ("after_gather", "per_gather", "after_update", "in_gather")}
CONCATS = {name: [f"sharding.grad_concat={name}"] for name in ("every", "last", "direct")}
LINEARS = {name: [f"precision.linear={name}"] for name in ("compute", "fp8_tensor", "fp8_block")}
GATHERED = {f"{name}, gathers too": [*LINEARS[name], "precision.gather=linear"] for name in ("fp8_tensor", "fp8_block")}
GRAPHS = {name: [f"execution.graph={name}"] for name in ("off", "microbatch", "step")}
# As many gathers as there can be: what the comparisons are about.
APART = ["sharding.reshard=after_forward"]
STEP = ["step", "verdict"]
BYTES = ["gathered", "reduced", "cast", "concatenated", "gathers", "reduces"]
# Megatron #5462's stacks as they train here: configuration and ranks, all of which shard.
HYBRID_POOLS = {f"{name}, {ranks} ranks": [f"{name}.json", str(ranks)] for name in ("nemotron_nano", "nemotron_h_8b", "nemotron_nano_half", "qwen3_moe_8l")
                for ranks in (2, 8)}


def hybrid_pools():
    """Planned alone: of models that no two ranks of a small host hold."""
    return Group("hybrid pools", "allocators", "What `plan CONFIG --world RANKS --allocators` gives for the published stacks: buckets of gathered weights, placed "
                 "by themselves; packed lays them beside activations: its arena and the bound of that are in the last columns. GiB.", None, [],
                 HYBRID_POOLS, ["pool_" + a for a in (*ALLOCATORS, "lower_bound")] + ["packed_arena", "arena_bound"], verb="pool", rounds=1)


def on_one_gpu():
    """With --ranks 1: bits at a width that fits one card, and where a step's time goes before and after an option."""
    small = ["train.micro_batch=1", "model.seq_len=128"]
    return [
        Group("one GPU at Llama 8B's width", "graphs", "Eight layers at Llama 8B's width, vocabulary 32000, T 2048, B 1 on one GPU, 20 deterministic steps.", "llama_8b.json",
              ["model.layers=8", "model.vocab=32000", "model.seq_len=2048", "execution.deterministic=true"], {name: GRAPHS[name] for name in ("off", "step", "microbatch")},
              ["bits"], verb="train", steps=20, rounds=1, ranks=1),
        Group("profile of a short step", "update", "GPT-2 124M, B 1, T 128 on one GPU: a step's microseconds by kind of op, both rounds' median.", "gpt2_124m.json", small,
              {name: GRAPHS[name] for name in ("off", "step")}, ["profile"], flags=("trace",), ranks=1, steps=50),
    ]


def hybrids():
    """On two GPUs, and with --ranks 1 on one."""
    sdpa, groups = ["--sdpa", "cudnn"], []
    fsdp = {"PyTorch FSDP2": [*sdpa, "--variant", "fsdp2"], "PyTorch FSDP2, kept": [*sdpa, "--variant", "fsdp2_keep"]}
    compiled = {"PyTorch compile": [*sdpa, "--variant", "compile"], "PyTorch FSDP2, kept": fsdp["PyTorch FSDP2, kept"]}
    for name, ranks, title, peers in (("nemotron_h_1b", 2, "T 4096, B 4 on each of two GPUs.", fsdp), ("nemotron_h_1b", 1, "T 4096, B 4 on one GPU.", compiled),
                                      ("qwen3_moe_8l", 2, "Eight layers of Qwen3-30B-A3B, T 4096, B 2 on each of two GPUs.", fsdp)):
        groups.append(Group(f"{name} on {ranks}", "hybrids", title, name + ".json", [], {"Millrace": []}, STEP + ["arena", "device"], peers=peers,
                            peer="torch_hybrid.py", steps=10, warmup=5, ranks=ranks))
    apart = ["train.micro_batch=1", *APART]
    groups.append(Group("allocators on a hybrid", "allocators", "nemotron_h_1b, B 1, T 4096: blocks of Mamba-2, attention and MLP.", "nemotron_h_1b.json", apart,
                        {a: [f"memory.allocator={a}"] for a in ALLOCATORS}, STEP + ["parameter_pool", "gradient_pool", "arena", "as_planned", "device"],
                        planned=True, steps=10))
    return groups


def axes():
    """Tensor and context parallelism on two GPUs. The same sequences in all for every variant of a group."""
    eight, small = ["model.layers=8"], ["train.micro_batch=4"]
    shard, tensor, context = ["parallel.shard=2"], ["parallel.tensor=2"], ["parallel.context=2"]
    strips = {f"tensor, {n} strips": ["train.micro_batch=2", *tensor, f"parallel.tensor_strips={n}"] for n in (2, 4)}
    speed = {"shard": ["train.micro_batch=1", *shard], "tensor": ["train.micro_batch=2", *tensor], **strips,
             "tensor, 2 strips, NCCL": [*strips["tensor, 2 strips"], "execution.peer_memory=off"]}
    memory = ["arena", "device"]
    pair = ["--set", "train.micro_batch=2", "--set", "model.layers=8", "--sdpa", "cudnn"]
    long = ["model.seq_len=65536", "model.rope_scaling=null", "model.tied=false", "train.micro_batch=1", "memory.recompute=block", "memory.budget_gib=null"]
    groups = [
        Group("tensor beside shard", "axes", "Eight layers at Llama 8B's width, T 8192, two sequences in all.", "llama_8b.json", eight, speed, STEP + memory,
              steps=20, warmup=8,
              peers={"PyTorch tensor": ["--variant", "tensor", *pair, "--set", "parallel.tensor=2"],
                     "PyTorch async tensor": ["--variant", "async", *pair, "--set", "parallel.tensor=2"]}),
        Group("GPT-2 30M tensor", "axes", "GPT-2 30M, four sequences of 256 in all.", "gpt2_30m.json", small, {
            "shard": ["train.micro_batch=2", *shard], "tensor": tensor}, STEP + ["host", "nodes"], steps=200, warmup=50),
        Group("long context", "axes", "Llama 1B, T 65536, one sequence, blocks recomputed; half of the tokens of llama_1b_128k.json on half of its cards.",
              "llama_1b_128k.json", long, {"context": context}, STEP + memory, steps=6, warmup=2,
              peers={"PyTorch context_parallel": ["--variant", "context", "--sdpa", "cudnn", "--set", "model.seq_len=65536", "--set",
                                                  "model.rope_scaling=null", "--set", "parallel.context=2", "--recompute"]}),
    ]
    for name, config, common in (("Llama 160M B 4", "llama_160m.json", small), ("eight layers at Llama 8B's width", "llama_8b.json", eight)):
        for axis, keys in (("tensor 2", tensor), ("context 2", context)):
            more = common + keys + ["train.micro_batch=2"] * (axis == "tensor 2" and common is eight)
            if axis == "tensor 2" or common is small:
                groups += [Group(f"graphs {axis} {name}", "axes", f"{name}, {axis}.", config, more, GRAPHS,
                                 STEP + ["host", "nodes", "collectives", *memory], flags=("trace",)),
                           Group(f"bits {axis} {name}", "axes", f"{name}, {axis}, 100 deterministic steps.", config,
                                 more + ["execution.deterministic=true"], GRAPHS, ["bits"], verb="train", steps=100, rounds=1)]
    return groups


def beside_torchao():
    """On two GPUs: ours in FP8 and torchao's, beside ours in bf16; then each with its other ways to gather and to scale."""
    models = {"Llama 1B B 8": ("llama_1b.json", ["train.micro_batch=8"]),
              "eight layers at Llama 8B's width": ("llama_8b.json", ["model.layers=8", "train.micro_batch=1"])}
    kept, apart = ["--variant", "fsdp2_keep"], ["--variant", "fsdp2"]

    def group(name, model, variants, peers):
        config, common = models[model]
        words = ["--sdpa", "cudnn", *(word for item in common for word in ("--set", item))]
        return Group(f"{name} {model}", "float8", f"{model} on each of two GPUs.", config, common, variants, STEP + ["gathered", "device"], steps=8, warmup=4, ranks=2,
                     peer="torch_float8.py", peers={peer: [*way, *words] for peer, way in peers.items()})

    return [*(group("FP8 beside torchao", model, LINEARS, {"torchao, kept": kept}) for model in models),
            *(group("other FP8 beside torchao", model, GATHERED, {"torchao": apart, "torchao by row, kept": [*kept, "--recipe", "rowwise"]}) for model in models)]


def float8():
    """On two GPUs: fairscale's layer in FP8, steps of FP8 beside bf16, and what Muon's products take."""
    layer = ["model.layers=1", "model.vocab=32000", "train.micro_batch=1", "train.accumulate=128", "sharding.grad_sync=last", *APART, "model.seq_len=2048"]
    groups = beside_torchao()
    groups.append(Group("concat in FP8", "concat", "One layer of Llama 8B in FP8, vocabulary 32000, T 2048, B 1, 128 microbatches.", "llama_8b.json",
                    layer + ["precision.linear=fp8_tensor"], CONCATS, STEP + ["concatenated", "arena", "device"], steps=5, warmup=2, ranks=2))
    for title, config, batch in (("Llama 1B B 4", "llama_1b.json", 4), ("GPT-2 124M B 4", "gpt2_124m.json", 4), ("GPT-2 30M B 4", "gpt2_30m.json", 4)):
        groups.append(Group(f"FP8 of {title} on 2", "float8", f"{title} on each of two GPUs.", config, [f"train.micro_batch={batch}"], {**LINEARS, **GATHERED},
                            STEP + ["gathered", "device"], ranks=2))
    return groups + [Group("Muon", "float8", "GPT-2 124M, B 64 on each of two GPUs.", "gpt2_124m.json", ["train.micro_batch=64"],
                           {"adamw": [], "muon": ["optimizer.name=muon"]}, STEP + ["device"], ranks=2)]


def on_four_gpus():
    """With --ranks 4 alone, in order of worth."""
    eight, fsdp = ["model.layers=8"], ["--variant", "fsdp2_keep", "--sdpa", "cudnn"]
    groups = [Group(f"FP8 of {title} on 4", "float8", f"{title} on each of four GPUs.", config, [f"train.micro_batch={batch}"], LINEARS, STEP + ["gathered", "device"],
                    peers={"PyTorch FSDP2, kept": [*fsdp, "--set", f"train.micro_batch={batch}"]}, peer="torch_bench.py", warmup=8, ranks=4)
              for title, config, batch in (("Llama 8B B 1", "llama_8b.json", 1), ("Llama 1B B 8", "llama_1b.json", 8), ("GPT-2 1558M B 16", "gpt2_1558m.json", 16))]
    tensor, both = ["parallel.tensor=4"], ["parallel.tensor=2", "parallel.shard=2"]
    strips = ["train.micro_batch=4", *tensor, "parallel.tensor_strips=2"]
    pair = ["--set", "model.layers=8", "--sdpa", "cudnn"]
    groups.append(Group("tensor beside shard on 4", "axes", "Eight layers at Llama 8B's width, T 8192, four sequences in all.", "llama_8b.json", eight, {
        "shard": ["train.micro_batch=1", "parallel.shard=4"], "tensor 4": ["train.micro_batch=4", *tensor], "tensor 4, 2 strips": strips,
        "tensor 4, 2 strips, NCCL": [*strips, "execution.peer_memory=off"], "tensor 2 x shard 2": ["train.micro_batch=2", *both]}, STEP + ["arena", "device"], warmup=8, ranks=4,
        peers={"PyTorch tensor 4": ["--variant", "tensor", *pair, "--set", "train.micro_batch=4", "--set", "parallel.tensor=4"],
               "PyTorch async tensor 4": ["--variant", "async", *pair, "--set", "train.micro_batch=4", "--set", "parallel.tensor=4"]}))
    groups.append(Group("long context on 4", "axes", "Llama 1B, T 131072, one sequence.", "llama_1b_128k.json", [], {"context": ["parallel.context=4"]}, STEP + ["arena", "device"],
                        steps=6, warmup=2, ranks=4,
                        peers={"PyTorch context_parallel": ["--variant", "context", "--sdpa", "cudnn", "--set", "parallel.context=4", "--recompute"]}))
    experts = ["parallel.expert=4", "train.micro_batch=2", "train.accumulate=4", "model.moe.gate=balanced"]
    for name in ("qwen3_moe_8l", "nemotron_nano_half"):
        groups.append(Group(f"{name} on 4", "hybrids", "T 4096, B 2, 4 microbatches on each of four GPUs, experts spread over all, a gate that sends each as many rows.", name + ".json",
                            experts, {"Millrace": []}, STEP + ["arena", "device"], peer="torch_hybrid.py", steps=10, warmup=5, ranks=4,
                            peers={"PyTorch FSDP2": ["--variant", "fsdp2", "--sdpa", "cudnn", "--set", "train.micro_batch=2", "--set", "train.accumulate=4"]}))
    for name, config, common in (("Llama 160M B 4", "llama_160m.json", ["train.micro_batch=4"]), ("eight layers at Llama 8B's width", "llama_8b.json", [*eight, "train.micro_batch=1"])):
        for axis in ("tensor", "context"):
            groups.append(Group(f"bits {axis} 2 x shard 2 {name}", "axes", f"{name}, {axis} 2 x shard 2, 100 deterministic steps.", config,
                                [*common, f"parallel.{axis}=2", "parallel.shard=2", "execution.deterministic=true"], GRAPHS, ["bits"], verb="train", steps=100, rounds=1, ranks=4))
    return groups + [Group(f"bits {name} on 4", "hybrids", "100 deterministic steps, B 1.", name + ".json", ["train.micro_batch=1", "execution.deterministic=true", *more], GRAPHS,
                           ["bits"], verb="train", steps=100, rounds=1, ranks=4) for name, more in (("nemotron_h_1b", []), ("qwen3_moe_8l", ["parallel.expert=4"]))]


def on_devices():
    """On two GPUs: times and peaks, and bits where many steps show more than on the CPU."""
    parameters = ["train.micro_batch=1", "model.seq_len=512", "sharding.blocks_per_unit=4", "precision.grad_accumulate=bf16", *APART]
    small = ["train.micro_batch=4", "sharding.blocks_per_unit=1", *APART]
    eight = ["model.layers=8", "train.micro_batch=1", "sharding.blocks_per_unit=1", *APART]
    layer = ["model.layers=1", "model.vocab=32000", "train.micro_batch=1", "train.accumulate=128", "sharding.grad_sync=last", *APART]
    memory = ["arena", "device", "class_parameters", "class_slots", "class_gradients", "class_activations"]
    models = {"GPT-2 124M B 4": ("gpt2_124m.json", small), "Llama 160M B 4": ("llama_160m.json", small),
              "eight layers at Llama 8B's width": ("llama_8b.json", eight)}
    groups = [
        Group("downcast over NVLink", "downcast", "Llama 1B, B 1, T 512, four blocks a unit: parameters dominate.", "llama_1b.json", parameters, DOWNCASTS,
              STEP + ["gathered", "cast"] + memory, planned=True),
        Group("downcast without peer access", "downcast", "The same with NCCL_P2P_DISABLE=1, a link as slow as the published figure's.", "llama_1b.json",
              parameters + ["execution.peer_memory=off"], {k: v for k, v in DOWNCASTS.items() if k != "in_gather"}, STEP + ["gathered", "cast", "arena"],
              steps=12, env={"NCCL_P2P_DISABLE": "1"}),
    ]
    # Whether the cast within the peers' stores pays in whole steps of training's size.
    for name, config, common in (("GPT-2 355M B 8", "gpt2_355m.json", ["train.micro_batch=8", "precision.grad_wire=fp32"]),
                                 ("Llama 1B B 4", "llama_1b.json", ["train.micro_batch=4"])):
        groups.append(Group(f"downcast over peers' memory {name}", "downcast", f"{name}, activations set the peak.", config,
                            common + ["execution.peer_memory=on", *APART], DOWNCASTS, STEP + ["gathered", "cast", "arena", "device"]))
    for name, config in (("GPT-2 124M", "gpt2_124m.json"), ("GPT-2 355M", "gpt2_355m.json")):
        groups.append(Group(f"update of {name}", "update", f"{name}: norm, clip factor and AdamW by themselves, on one rank's shards; two ranks.", config,
                            ["train.micro_batch=1", "model.seq_len=128"], {"as configured": []}, ["updates"], steps=10, flags=("update",)))
    groups += [
        Group("short sequences", "update", "Whole steps, GPT-2 124M, B 1, T 128, where the host's issuing is the limit.", "gpt2_124m.json",
              ["train.micro_batch=1", "model.seq_len=128"], GRAPHS, STEP + ["host", "nodes", "update_in_step"], steps=50, flags=("trace",)),
        Group("graph beside op by op", "update", "12 steps of the step's graph, each launch of which compares the arena's address with the one that was bound, beside the same"
              " walked op by op (execution.checked).", "gpt2_30m.json", ["train.micro_batch=1", "model.seq_len=128", "execution.deterministic=true"],
              {"graph": [], "op by op": ["execution.checked=true"]}, ["bits"], verb="train", steps=12, rounds=1),
        Group("allocators on uneven units", "allocators", "Llama 1B, B 1, T 2048, units of 1, 2, 4, 1, 2, 4, 1 and 1 blocks.", "llama_1b.json",
              ["train.micro_batch=1", "model.seq_len=2048", "sharding.blocks_per_unit=[1,2,4,1,2,4,1,1]", *APART],
              {a: [f"memory.allocator={a}"] for a in ALLOCATORS}, STEP + ["parameter_pool", "gradient_pool", "arena", "device"], planned=True),
    ]
    for name, (config, common) in models.items():
        groups.append(Group(f"graphs {name}", "graphs", name, config, common, GRAPHS, STEP + ["host", "nodes", "arena", "device", "collectives"],
                            flags=("trace",)))
    for length in (256, 2048):
        groups.append(Group(f"concat T {length}", "concat", f"One layer of Llama 8B, vocabulary 32000, T {length}, B 1, 128 microbatches.", "llama_8b.json",
                            layer + [f"model.seq_len={length}"], CONCATS, STEP + ["concatenated", "arena", "device"], steps=5, warmup=2))
    for name, (config, common) in models.items():
        groups.append(Group(f"bits {name}", "graphs", f"{name}, 100 deterministic steps.", config, common + ["execution.deterministic=true"], GRAPHS,
                            ["bits"], verb="train", steps=100, rounds=1))
    sums = ["train.accumulate=8", "train.micro_batch=8"]
    groups.append(Group("synchronisations", "options", "GPT-2 355M, B 8, accumulate 8.", "gpt2_355m.json", sums, {
        "sync last": ["sharding.grad_sync=last"], "sync every": ["sharding.grad_sync=every"]}, STEP + ["reduced", "arena", "device"], steps=10, warmup=3))
    return groups + axes() + hybrids() + float8() + on_four_gpus() + on_one_gpu()


TINY = {
    "model": {"family": "llama", "layers": 6, "d_model": 96, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 32},
    "data": {"kind": "synthetic"},
    "train": {"steps": 3, "micro_batch": 1, "accumulate": 2, "eval_every": 0},
    "optimizer": {"lr": 1e-3},
    "precision": {"compute": "bf16", "norms": "compute"},
    "sharding": {"grad_sync": "last", "reshard": "after_forward"},
    "checkpoint": {"every": 0},
    "execution": {"backend": "cpu"},
}


# A block of each kind, of sizes of its own.
TINY_HYBRID = {
    **TINY,
    "model": {"family": "nemotron_h", "pattern": "ME*-MEM*", "d_model": 96, "heads": 4, "kv_heads": 2, "ffn": 320, "vocab": 512, "seq_len": 32,
              "moe": {"experts": 6, "top_k": 2, "ffn": 64, "shared_ffn": 96, "bias": False}, "mamba": {"heads": 6, "head_dim": 32, "groups": 2, "state": 16, "chunk": 16}},
}


OPTIONS = {
    "base: downcast per_gather, concat direct, sync last, packed, prefetch 1": [],
    "concat every, sync every": ["sharding.grad_sync=every", "sharding.grad_concat=every"],
    "sync every": ["sharding.grad_sync=every"],
    "prefetch 0": ["memory.prefetch=0"],
    "prefetch 2": ["memory.prefetch=2"],
    "reshard after_backward": ["sharding.reshard=after_backward"],
    "reshard never": ["sharding.reshard=never"],
    "recompute norms": ["memory.recompute=norms"],
    "recompute block": ["memory.recompute=block"],
}


def on_cpu():
    """Two ranks of the CPU backend: bytes, counts, planned memory and bits. No times: they are this host's, not the comparison's."""
    memory = ["arena_mib", "class_parameters_mib", "class_slots_mib", "class_gradients_mib", "class_activations_mib"]
    uneven = "sharding.blocks_per_unit=[1,2,3]"
    cpu = dict(verb="train", steps=3, rounds=1)
    return [
        Group("downcast", "downcast", "Llama of 6 layers of 96, three blocks a unit, T 32: parameters dominate.", TINY,
              ["sharding.blocks_per_unit=3", "precision.grad_accumulate=bf16", "precision.grad_wire=bf16"], DOWNCASTS,
              ["gathered", "cast", "gathers", *memory, "bits"], planned=True, **cpu),
        Group("update", "update", "The same model: norm, clip factor and AdamW by themselves. The CPU captures nothing, so there are no graphs; kernels are "
              "what is compared.", TINY, [], {"as configured": []}, ["update_kernels"], flags=("update",), steps=1, warmup=1, rounds=1),
        Group("graphs", "graphs", "The recorded list issued again, for a step and by microbatch, beside the eager walk; 12 steps.", TINY, [], GRAPHS,
              ["launches", "arena_mib", "bits"], verb="train", steps=12, rounds=1),
        Group("allocators", "allocators", "Units of 1, 2 and 3 blocks.", TINY, [uneven], {a: [f"memory.allocator={a}"] for a in ALLOCATORS},
              ["parameter_pool_mib", "gradient_pool_mib", "arena_mib", "bits"], planned=True, **cpu),
        Group("allocators on a hybrid", "allocators", "Blocks ME*-MEM* of width 96: Mamba-2, experts, attention, MLP.", TINY_HYBRID, [],
              {a: [f"memory.allocator={a}"] for a in ALLOCATORS}, ["parameter_pool_mib", "gradient_pool_mib", "arena_mib", "as_planned", "bits"], planned=True, **cpu),
        hybrid_pools(),
        Group("concat", "concat", "One layer, 128 microbatches.", TINY, ["model.layers=1", "train.accumulate=128"], CONCATS, BYTES + ["arena_mib", "bits"],
              verb="train", steps=2, rounds=1),
        Group("options", "options", "Accumulate 8. `sync every` adds the same gradients in another order, ranks first, so its bits differ.", TINY,
              ["train.accumulate=8", "sharding.downcast=per_gather", "sharding.grad_concat=direct"], OPTIONS, BYTES + ["arena_mib", "bits"], **cpu),
    ]
