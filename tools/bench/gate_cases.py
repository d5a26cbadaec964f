"""The runs of bits_gate.py: small training runs in which every value of an option meets every value of every other one, and those that such a choice does
not reach (stops, another world, Hugging Face folders, data in files, searches, guards, faults). Standard library only.

In `sets`, {work} stands for the folder that all runs share (files of data) and {run} for the folder of the run.
"""
import dataclasses, functools, json, math

STEPS = 5
STOP = 2  # where runs that are gone on with are stopped; a step that is evaluated

# Awkward on purpose: odd heads, widths that nothing divides, more query heads than key heads, heads that are not d_model / heads wide.
MODELS = {
    "gpt2": ["model.family=gpt2", "model.layers=3", "model.d_model=35", "model.heads=5", "model.ffn=61", "model.vocab=173", "model.seq_len=19",
             "train.micro_batch=2"],
    "llama": ["model.family=llama", "model.layers=3", "model.d_model=44", "model.heads=6", "model.kv_heads=2", "model.head_dim=10", "model.ffn=53",
              "model.vocab=131", "model.seq_len=17", "train.micro_batch=3"],
}
COMMON = ["execution.backend=cpu", "data.kind=synthetic", "optimizer.lr=0.01", "checkpoint.every=0", f"train.steps={STEPS}"]

NONE = "-"  # the option would have no effect, and is not given

# In this order a row is filled: what decides whether others have an effect comes first.
FACTORS = {
    "family": ["gpt2", "llama"],
    "mesh": ["1x1", "2x1", "3x1", "4x1", "1x2", "2x2", "1x3", "1x4"],  # shard x replicate
    "precision": ["fp32", "bf16", "bf16 norms"],
    "downcast": ["after_gather", "per_gather", "in_gather", "after_update", NONE],
    "reshard": ["after_forward", "after_backward", "never", NONE],
    "allocator": ["packed", "coloured", "max_pool", "fixed", "persistent", "dynamic", NONE],
    "prefetch": ["1", "0", "2", NONE],
    "slots": ["default", "one more", NONE],
    "accumulate": ["1", "3"],
    "sync": ["every", "last", NONE],
    "concat": ["direct", "every", "last"],
    "depth": ["1", "3", NONE],
    "gradients": ["fp32 fp32", "fp32 bf16", "bf16 bf16", "bf16 fp32"],  # accumulated, on the wire
    "recompute": ["none", "norms", "block"],
    "execution": ["step", "microbatch", "off", "checked"],
    "units": ["1", "2", "[2,1]"],
    "beside": ["false", "true"],  # gradients of weights beside those of activations
    "eval": ["0", "2"],
    "head": ["default", "other"],  # tied or not
    "schedule": ["constant", "cosine", "wsd"],
    "clip": ["1.0", "0", "0.05"],
}
SCHEDULES = {
    "constant": [],
    "cosine": ["optimizer.schedule.kind=cosine", "optimizer.schedule.warmup=2", "optimizer.schedule.decay_steps=4", "optimizer.schedule.min_lr=0.001"],
    "wsd": ["optimizer.schedule.kind=wsd", "optimizer.schedule.warmup=1", "optimizer.schedule.decay_steps=2"],
}


@dataclasses.dataclass
class Case:
    group: str
    name: str
    world: int
    sets: list
    config: str = ""  # file; "": none
    before: dict = None  # what is done first: {"do": "stop", "kill" or "export", "world":, "sets":}
    env: dict = dataclasses.field(default_factory=dict)
    same_as: str = ""  # id of an earlier case that must have the same bits

    @property
    def id(self):
        return f"{self.group}/{self.name}"

    def asked(self):
        """What makes the run what it is, as text."""
        return json.dumps({key: value for key, value in dataclasses.asdict(self).items() if value and key not in ("group", "name", "same_as")})


def shards(mesh):
    return int(mesh.split("x")[0])


def world_of(mesh):
    shard, replicate = mesh.split("x")
    return int(shard) * int(replicate)


def mesh_sets(mesh):
    shard, replicate = mesh.split("x")
    return [f"parallel.shard={shard}", f"parallel.replicate={replicate}"]


def has_effect(row, factor):
    """Whether the option acts, given those before it; the rules of runtime/config/idle_keys.cc."""
    alone = shards(row["mesh"]) == 1
    if factor == "downcast":
        return row["precision"] != "fp32"
    if factor in ("sync", "depth"):
        return not alone
    if factor in ("reshard", "allocator", "prefetch"):
        return not (alone and row["downcast"] in ("after_update", NONE))
    if factor == "slots":
        return row["allocator"] in ("coloured", "max_pool", "fixed") and row["reshard"] == "after_forward"
    return True


RULES = {  # factor: those that decide whether it has an effect
    "downcast": ["mesh", "precision"],
    "sync": ["mesh"],
    "depth": ["mesh"],
    "reshard": ["mesh", "downcast"],
    "allocator": ["mesh", "downcast"],
    "prefetch": ["mesh", "downcast"],
    "slots": ["mesh", "allocator", "reshard"],
}


def fits(row):
    """Whether what is known of a row may stand in one configuration."""
    for factor, deciders in RULES.items():
        if factor in row and all(d in row for d in deciders) and (row[factor] == NONE) == has_effect(row, factor):
            return False
    # A reduction in every microbatch needs its gradients in the bucket each time.
    return not (row.get("concat") == "last" and row.get("accumulate") == "3" and row.get("sync") in ("every", NONE))


def completed(row, gain, used):
    """`row` with a value for every factor, or None: of values that fit, the one that meets most of what has not met yet, then the one used least."""
    missing = [f for f in FACTORS if f not in row]
    if not missing:
        return row
    factor = missing[0]
    values = sorted(FACTORS[factor], key=lambda v: (-gain(row, factor, v), used[factor, v], FACTORS[factor].index(v)))
    for value in values:
        longer = dict(row, **{factor: value})
        whole = completed(longer, gain, used) if fits(longer) else None
        if whole:
            return whole
    return None


def pair(a, b):
    return (a, b) if a < b else (b, a)


@functools.lru_cache(maxsize=None)
def covering():
    """Rows in which all pairs of values that may stand together do so. The same ones each time: nothing is drawn by lot."""
    names = list(FACTORS)
    open_pairs = {pair((f, v), (g, w)): None for i, f in enumerate(names) for g in names[i + 1:] for v in FACTORS[f] for w in FACTORS[g]
                  if NONE not in (v, w)}
    used = {(f, v): 0 for f in names for v in FACTORS[f]}
    rows = []

    def gain(row, factor, value):
        return sum(pair((factor, value), item) in open_pairs for item in row.items())

    while open_pairs:
        (f, v), (g, w) = next(iter(open_pairs))
        start = {f: v, g: w}
        row = completed(start, gain, used) if fits(start) else None
        if row is None:  # the two exclude each other
            del open_pairs[pair((f, v), (g, w))]
            continue
        items = list(row.items())
        for i, a in enumerate(items):
            used[a] += 1
            for b in items[i + 1:]:
                open_pairs.pop(pair(a, b), None)
        rows.append({name: row[name] for name in names})
    return rows


def sets_of(row):
    def given(key, factor):
        return [] if row[factor] == NONE else [f"{key}={row[factor]}"]

    accumulated, wire = row["gradients"].split()
    sets = [*COMMON, *MODELS[row["family"]], *mesh_sets(row["mesh"])]
    sets += [f"precision.compute={row['precision'].split()[0]}", f"precision.grad_accumulate={accumulated}"]
    sets += [f"precision.grad_wire={wire}"] if world_of(row["mesh"]) > 1 else []
    sets += ["precision.norms=compute"] if row["precision"] == "bf16 norms" else []
    sets += given("sharding.downcast", "downcast") + given("sharding.reshard", "reshard") + given("sharding.grad_sync", "sync")
    sets += given("sharding.grad_concat", "concat") + given("sharding.blocks_per_unit", "units")
    sets += given("memory.allocator", "allocator") + given("memory.prefetch", "prefetch") + given("memory.reduce_depth", "depth")
    sets += [f"memory.slots={int(row['prefetch']) + 2}"] if row["slots"] == "one more" else []
    sets += given("memory.recompute", "recompute") + given("train.accumulate", "accumulate") + given("optimizer.clip", "clip")
    sets += ["execution.checked=true"] if row["execution"] == "checked" else [f"execution.graph={row['execution']}"]
    sets += given("execution.overlap_weight_gradients", "beside") + given("train.eval_every", "eval")
    sets += ["data.eval_batches=1"] if row["eval"] != "0" else []
    sets += [f"model.tied={'false' if row['family'] == 'gpt2' else 'true'}"] if row["head"] == "other" else []
    return sets + SCHEDULES[row["schedule"]]


def covering_cases():
    cases = []
    for number, row in enumerate(covering(), 1):
        ranks = world_of(row["mesh"])
        words = [row["mesh"], row["precision"].replace(" ", "+"), *(row[f] for f in ("allocator", "execution") if row[f] != NONE)]
        cases.append(Case(f"{row['family']}, {ranks} rank{'s' * (ranks > 1)}", f"{number:02} {' '.join(words)}", ranks, sets_of(row)))
    return cases


def replaced(sets, *others):
    """`sets` with the keys of `others` as these have them."""
    keys = {item.split("=", 1)[0] for item in others}
    return [item for item in sets if item.split("=", 1)[0] not in keys] + list(others)


def stopped(cases):
    """Some of the others, stopped half-way and gone on with: the same bits."""
    # wsd counts its decay back from train.steps, which is how a run is stopped here.
    fit = [case for case in cases if "optimizer.schedule.kind=wsd" not in case.sets]
    ways = [["checkpoint.every=1"], [], ["checkpoint.asynchronous=false"]]
    return [Case("stopped", f"of {case.name}", case.world, case.sets + ways[i % 3],
                 before=dict(do="stop", world=case.world, sets=case.sets + ways[i % 3] + [f"train.steps={STOP}"]), same_as=case.id)
            for i, case in enumerate(fit[::5])]


BF16 = ["precision.compute=bf16", "precision.norms=compute"]


def plain(family, mesh, *more):
    return replaced([*COMMON, *MODELS[family], *mesh_sets(mesh)], *more)


def killed():
    cases = []
    for family, more in (("gpt2", []), ("llama", BF16)):
        sets = plain(family, "1x1", "train.steps=60", "train.accumulate=2", *more)
        whole = Case("killed", f"{family}, not killed", 1, sets)
        cases += [whole, Case("killed", family, 1, sets + ["checkpoint.every=1"], before=dict(do="kill", world=1, sets=sets + ["checkpoint.every=1"]),
                              same_as=whole.id)]
    return cases


def moved():
    """Begun on one mesh, or with one layout, and gone on with on another."""
    moves = [("gpt2", "2x1", "3x1", [], []), ("llama", "3x1", "1x1", BF16, BF16), ("gpt2", "1x1", "2x2", BF16, BF16), ("llama", "2x2", "4x1", [], []),
             ("gpt2", "4x1", "2x1", BF16, BF16), ("llama", "1x2", "2x1", [], []), ("gpt2", "2x1", "2x1", [], ["sharding.blocks_per_unit=2"]),
             ("llama", "2x1", "2x1", [], BF16)]
    cases = []
    for family, start, end, first, then in moves:
        what = f"{start} to {end}" if start != end else f"{start}, {'other units' if family == 'gpt2' else 'fp32 to bf16'}"
        cases.append(Case("another world or layout", f"{family} {what}", world_of(end), plain(family, end, *then),
                          before=dict(do="stop", world=world_of(start), sets=plain(family, start, *first, f"train.steps={STOP}"))))
    return cases


def imported():
    """Trained on from the Hugging Face folder that another run is exported to."""
    kinds = [("gpt2", "1x1", []), ("gpt2", "3x1", ["execution.checked=true", "train.eval_every=2", "data.eval_batches=1"]), ("llama", "2x1", BF16),
             ("llama", "2x2", ["train.accumulate=3", "model.tied=true"])]
    cases = []
    for family, mesh, more in kinds:
        sets = plain(family, mesh, *more)
        cases.append(Case("imported", f"{family} {mesh}", world_of(mesh), sets + ["model.init_from={run}/hf"],
                          before=dict(do="export", world=world_of(mesh), sets=replaced(sets, f"train.steps={STOP}"))))
    return cases


def other_options():
    """Keys that only act beside others, or that have no pair of interest."""
    rope = 'model.rope_scaling={"rope_type":"llama3","factor":4.0,"low_freq_factor":1.0,"high_freq_factor":3.0,"original_max_position_embeddings":11}'
    files = ["model.vocab=259", "data.eval_batches=2", "train.eval_every=2"]
    text, tokens = ["data.kind=text", "data.path={work}/text"], ["data.kind=tokens", "data.path={work}/tokens"]
    kinds = [
        ("data", "gpt2 text", "gpt2", "2x1", files + text),
        ("data", "llama text, its own held-out file", "llama", "1x1", files + text + ["data.val_path={work}/held_out.txt", "data.shuffle_seed=7"]),
        ("data", "gpt2 tokens", "gpt2", "1x2", files + tokens + ["train.seed=3"]),
        ("data", "llama tokens", "llama", "3x1", files + tokens + ["train.accumulate=2", *BF16]),
        ("model", "rotary scaling", "llama", "2x1", [rope, "model.rope_theta=500"]),
        ("model", "one key-value head", "llama", "1x2", ["model.kv_heads=1", "model.norm_eps=0.001", "model.init_std=0.5"]),
        ("model", "wide", "gpt2", "2x1", ["model.d_model=128", "model.heads=2", "model.ffn=384", "model.vocab=1003", "model.layers=2", *BF16]),
        ("optimizer", "betas, eps, no decay", "gpt2", "2x1", ["optimizer.betas=[0.8,0.99]", "optimizer.eps=0.001", "optimizer.weight_decay=0"]),
        ("optimizer", "strong decay", "llama", "3x1", ["optimizer.weight_decay=3", "train.global_batch=18"]),
        ("searched", "reshard auto", "llama", "2x1", ["sharding.reshard=auto", "memory.budget_gib=0.00187"]),
        ("searched", "recompute auto", "gpt2", "2x1", ["memory.recompute=auto", "memory.budget_gib=0.0015"]),
        ("guards", "run twice", "gpt2", "2x1", ["guard.rerun_every=2"]),
        ("guards", "replicas compared", "llama", "2x2", ["guard.replicas_every=1", "guard.order_every=1"]),
        ("guards", "spikes skipped", "gpt2", "1x1", ["guard.loss_spike=skip", "guard.spike_window=2", "guard.spike_factor=0.001", "train.steps=8"]),
    ]
    cases = [Case(group, name, world_of(mesh), plain(family, mesh, *more)) for group, name, family, mesh, more in kinds]
    loss, unit = dict(MILLRACE_INJECT="2:0:loss"), dict(MILLRACE_INJECT="3:1:unit=h.1")
    cases += [Case("guards", "a loss that is not finite", 1, plain("llama", "1x1"), env=loss),
              Case("guards", "a gradient that is not finite", 2, plain("gpt2", "2x1", *BF16), env=unit),
              Case("guards", "rolled back", 2, plain("llama", "1x2", "guard.non_finite=roll_back", "checkpoint.every=1"), env=unit)]
    return cases


# Lengths and widths that ranks along context (twice as many chunks of a sequence) and tensor can split by 2 and 3; key heads that they cannot.
SPLIT = {
    "gpt2": ["model.d_model=36", "model.heads=6", "model.ffn=60", "model.seq_len=24"],
    "llama": ["model.ffn=54", "model.seq_len=24"],
}


def axis_case(group, family, mesh, axes, more=(), before=None):
    """A run along `axes` as well, {"context": 2}; the one that comes before it, if any, has (mesh, axes) of its own."""
    def sets_for(mesh, axes):
        ranks = world_of(mesh) * math.prod(axes.values())
        return ranks, plain(family, mesh, *SPLIT[family], *(f"parallel.{axis}={size}" for axis, size in axes.items()), *more)

    def words(mesh, axes):
        return " ".join([mesh, *(f"{axis} {size}" for axis, size in axes.items())])

    ranks, sets = sets_for(mesh, axes)
    name = f"{family} {words(mesh, axes)}"
    if before is None:
        others = [item.split(".", 1)[1] for item in more if item not in BF16 and not item.startswith(("data.", "model.", "train.eval"))]
        return Case(group, ", ".join([name, *(["bf16"] if set(BF16) <= set(more) else []), *others]), ranks, sets)
    first_ranks, first = sets_for(*before)
    return Case(group, f"{family} {words(*before)} to {words(mesh, axes)}", ranks, sets,
                before=dict(do="stop", world=first_ranks, sets=replaced(first, f"train.steps={STOP}")))


def along_axes():
    """Sequences cut along context, matrices along tensor, both beside shards and replicas; and rows of several documents."""
    checked, held_out = ["execution.checked=true"], ["train.eval_every=2", "data.eval_batches=1"]
    wire = ["precision.grad_accumulate=fp32", "precision.grad_wire=bf16"]
    # A document is a line: every other row of 24 bytes has the end of one.
    documents = ["data.kind=text", "data.path={work}/text", "model.vocab=259", "data.document_mask=true", "data.end_of_document=10"]
    runs = [
        ("context", "gpt2", "1x1", dict(context=2), []),
        ("context", "llama", "1x1", dict(context=2), ["memory.recompute=block", *BF16]),
        ("context", "gpt2", "1x1", dict(context=3), ["train.accumulate=3", "execution.graph=off", *BF16]),
        ("context", "llama", "1x1", dict(context=3), [*checked, *held_out]),
        ("context", "llama", "2x1", dict(context=2), ["sharding.downcast=after_update", *held_out, *BF16]),
        ("context", "gpt2", "2x1", dict(context=2), ["sharding.reshard=never", "memory.prefetch=0", *checked]),
        ("context", "llama", "1x2", dict(context=2), ["memory.recompute=norms", "train.accumulate=2", *wire, *BF16]),
        ("context", "gpt2", "1x2", dict(context=2), ["memory.allocator=coloured", "execution.graph=microbatch"]),
        ("tensor", "gpt2", "1x1", dict(tensor=3), BF16),
        ("tensor", "llama", "1x1", dict(tensor=2), ["memory.recompute=block", *held_out]),
        ("tensor", "gpt2", "2x1", dict(tensor=2), [*checked, "sharding.blocks_per_unit=2"]),
        ("tensor", "llama", "1x2", dict(tensor=2), ["train.accumulate=3", "sharding.grad_sync=last", *BF16]),
        ("tensor x context", "gpt2", "1x1", dict(context=2, tensor=2), [*checked, *held_out]),
        ("tensor x context", "llama", "1x1", dict(context=2, tensor=2), ["memory.recompute=block", *BF16]),
        ("tensor x context", "gpt2", "2x1", dict(context=2, tensor=2), ["train.accumulate=2", *BF16]),
        ("tensor x context", "llama", "2x1", dict(context=2, tensor=2), ["sharding.reshard=after_backward", *held_out]),
        ("documents", "gpt2", "2x1", {}, [*documents, *held_out]),
        ("documents", "llama", "1x1", {}, [*documents, *checked, "memory.recompute=block", *BF16]),
        ("documents", "llama", "1x2", {}, [*documents, "train.accumulate=3"]),
        ("documents", "gpt2", "1x1", dict(tensor=2), [*documents, *BF16]),
    ]
    cases = [axis_case(*run) for run in runs]
    moves = [("llama", "2x1", {}, "1x1", dict(context=2)), ("gpt2", "1x1", dict(context=3), "1x1", dict(tensor=2)),
             ("llama", "1x1", dict(context=2, tensor=2), "3x1", {})]
    return cases + [axis_case("another world or layout", family, mesh, axes, before=(start, before)) for family, start, before, mesh, axes in moves]


# Stacks of other branches: two experts to a token, a scan in chunks that do not divide the sequence, a block that predicts one token further.
OF_MOE = ["model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=24"]
STACKS = {
    "qwen3": ["model.family=qwen3", "model.layers=2", "model.d_model=40", "model.heads=4", "model.kv_heads=2", "model.head_dim=10", "model.ffn=44",
              "model.vocab=131", "model.seq_len=18", "train.micro_batch=2"],
    "qwen3_moe": ["model.family=qwen3_moe", "model.layers=2", "model.d_model=36", "model.heads=4", "model.kv_heads=2", "model.head_dim=10", *OF_MOE,
                  "model.vocab=131", "model.seq_len=18", "train.micro_batch=2"],
    "nemotron_h": ["model.family=nemotron_h", "model.pattern=M*E-", "model.d_model=36", "model.heads=4", "model.kv_heads=2", "model.head_dim=10", "model.ffn=44",
                   *OF_MOE, "model.mamba.heads=4", "model.mamba.head_dim=10", "model.mamba.state=12", "model.mamba.groups=2", "model.mamba.chunk=8",
                   "model.vocab=131", "model.seq_len=18", "train.micro_batch=2"],
}


def formats_and_stacks():
    """Formats of 8 and of the other 16 bits, other rules of the update, other branches."""
    fp16 = ["precision.compute=fp16", "precision.grad_accumulate=fp16", "precision.grad_wire=fp16"]
    muon = ["optimizer.name=muon"]
    models = {**MODELS, **STACKS}
    kinds = [
        ("formats", "fp8_tensor", "gpt2", "2x1", [*BF16, "precision.linear=fp8_tensor"]),
        ("formats", "fp8_block, gathered", "llama", "3x1", [*BF16, "precision.linear=fp8_block", "precision.gather=linear", "train.accumulate=3"]),
        ("formats", "fp8_block, one rank, recomputed", "gpt2", "1x1", [*BF16, "precision.linear=fp8_block", "memory.recompute=block"]),
        ("formats", "fp16", "llama", "2x1", [*fp16, "precision.norms=compute", "train.accumulate=3"]),
        ("formats", "fp16, replicas, a scale that overflows", "gpt2", "1x2", [*fp16, "precision.loss_scale.init_scale=1073741824"]),
        ("formats", "moments in bf16", "gpt2", "2x1", ["optimizer.moments=bf16"]),
        ("rules", "muon", "gpt2", "2x1", muon),
        ("rules", "muon, replicas, bf16", "llama", "2x2", [*muon, *BF16, "train.accumulate=3"]),
        ("rules", "groups", "llama", "2x1", ['optimizer.groups=[{"parameters":"h.*.mlp.*.weight","name":"muon"}]']),
        ("stacks", "qwen3", "qwen3", "2x1", BF16),
        ("stacks", "experts of each rank", "qwen3_moe", "2x1", [*BF16, "model.moe.aux_loss=switch"]),
        ("stacks", "experts", "qwen3_moe", "1x1", ["parallel.expert=2", "train.accumulate=3"]),
        ("stacks", "a further token", "qwen3_moe", "2x1", ["parallel.expert=2", "model.mtp.depth=1", "execution.checked=true"]),
        ("stacks", "four branches", "nemotron_h", "2x1", ["model.mtp.depth=1", "model.mtp.pattern=*E", "memory.allocator=max_pool"]),
        ("stacks", "four branches, bf16", "nemotron_h", "1x1", [*BF16, "parallel.expert=2", "memory.recompute=block"]),
    ]
    cases = []
    for group, name, model, mesh, more in kinds:
        expert = next((int(item.split("=")[1]) for item in more if item.startswith("parallel.expert=")), 1)
        words = f"{name}, {mesh}" + f", {expert} along expert" * (expert > 1)
        cases.append(Case(group, words, world_of(mesh) * expert, [*COMMON, *models[model], *mesh_sets(mesh), *more]))
    return cases


def on_cpu():
    cases = covering_cases()
    return cases + stopped(cases) + killed() + moved() + imported() + other_options() + along_axes() + formats_and_stacks()


def on_gpus():
    """20 deterministic steps of two models on one and two GPUs. Nothing is tuned: what is measured is another choice each time."""
    common = ["execution.backend=cuda", "execution.deterministic=true", "execution.tune=false", "data.kind=synthetic", "train.steps=20", "checkpoint.every=0"]
    cases = []
    for name in ("gpt2_124m", "llama_160m"):
        for ranks, peers in ((1, "off"), (2, "off"), (2, "on")):
            cases.append(Case(name, f"{ranks} GPU{'s' * (ranks > 1)}{', peers memory' if peers == 'on' else ''}", ranks,
                              common + [f"execution.peer_memory={peers}"], config=f"{name}.json"))
    return cases
