#include "tests/system/closed_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

namespace millrace::test {
namespace {

using Format = PrecisionConfig::Format;

int64_t BytesOf(Format format) { return format == Format::kFp32 ? 4 : 2; }
int64_t Up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t ShardAxis(const Trial& trial) { return trial.config.parallel.Shard(trial.world); }

int64_t DataRanks(const Trial& trial) { return trial.config.parallel.DataRanks(trial.world); }
int64_t TensorAxis(const Trial& trial) { return trial.config.parallel.tensor; }
int64_t ContextAxis(const Trial& trial) { return trial.config.parallel.context; }
int64_t ExpertAxis(const Trial& trial) { return trial.config.parallel.expert; }

struct Adder {
  FlatForm* matrices;
  FlatForm* norms;    // the same flat unless norms are kept apart
  FlatForm* exact;    // of what is f32 whatever the policy: the same flat where that is, too
  FlatForm* split;    // of what tensor splits: the same flat where nothing is split
  FlatForm* experts;  // of what the expert axis splits: likewise
  FlatForm* muon;     // of matrices between hidden states, by Muon: else those above
  int64_t tensor, strips, expert;
  // Of each rank an equal part.
  void Split(int64_t numel, int64_t products, int64_t columns = 0) const {
    FlatForm* const flat = muon != nullptr && products > 0 ? muon : split;
    Add(flat, numel / tensor, 1, products);
    flat->columns.back() = columns;
  }
  // Of each rank as many experts; grouped products form their gradients.
  void Experts(int64_t numel) const { Add(experts, numel / expert, 1, 0); }
  // `products`: of the contributions, those of a matmul.
  void Matrix(int64_t numel, int64_t contributions, int64_t products) const {
    Add(matrices, numel, contributions, products);
  }
  void Weight(int64_t numel, int64_t columns) const {
    FlatForm* const flat = muon != nullptr ? muon : matrices;
    Add(flat, numel, 1, 1);
    flat->columns.back() = columns;
  }
  // Its gradient is added strip by strip, as its rows are exchanged.
  void Norm(int64_t numel) const { Add(norms, numel, strips, 0); }
  void Exact(int64_t numel) const { Add(exact, numel, 1, 0); }
  static void Add(FlatForm* flat, int64_t numel, int64_t contributions, int64_t products) {
    flat->params.push_back(numel);
    flat->contributions.push_back(contributions);
    flat->products.push_back(products);
    flat->columns.push_back(0);
  }
};

// Nemotron-H's, without tensor: one branch.
void AddBranch(const Adder& add, const ModelConfig& m, char kind) {
  const int64_t c = m.d_model, attn = m.heads * m.HeadDim();
  add.Norm(c);
  if (kind == '*') {
    add.Weight((attn + 2 * m.KvHeads() * m.HeadDim()) * c, c);
    add.Weight(c * attn, attn);
  } else if (kind == '-') {
    add.Weight(m.Ffn() * c, c);
    add.Weight(c * m.Ffn(), m.Ffn());
  } else {
    const MambaConfig& mamba = m.mamba;
    const int64_t inner = mamba.heads * mamba.head_dim,
                  conv = inner + 2 * mamba.groups * mamba.state;
    add.Weight((inner + conv + mamba.heads) * c, c);
    add.Matrix(conv * 4, 1, 0);
    add.Matrix(conv, 1, 0);
    for (int i = 0; i < 3; ++i) add.Exact(mamba.heads);  // of steps, rates, d
    add.Norm(inner);
    add.Weight(c * inner, inner);
  }
}

// Qwen3's, without tensor: norms of queries and keys, and gated experts in place of the MLP.
void AddExpertsBlock(const Adder& add, const ModelConfig& m) {
  const int64_t c = m.d_model, attn = m.heads * m.HeadDim(), f = m.moe.ffn, e = m.moe.experts;
  for (const int64_t numel : {c, c, m.HeadDim(), m.HeadDim()}) add.Norm(numel);
  add.Weight((attn + 2 * m.KvHeads() * m.HeadDim()) * c, c);
  add.Weight(c * attn, attn);
  add.Matrix(e * c, 1, 1);  // the router
  add.Experts(e * 2 * f * c);
  add.Experts(e * c * f);
}

void AddBlock(const Adder& add, const ModelConfig& m, int64_t block) {
  if (m.family == ModelConfig::Family::kQwen3Moe) return AddExpertsBlock(add, m);
  if (m.family == ModelConfig::Family::kNemotronH)
    return AddBranch(add, m, m.Blocks()[static_cast<size_t>(block)]);
  const int64_t c = m.d_model, f = m.Ffn(), attn = m.heads * m.HeadDim(),
                qkv = attn + 2 * m.KvHeads() * m.HeadDim();
  const bool gpt2 = m.family == ModelConfig::Family::kGpt2;
  const auto norm = [&] {
    for (int part = 0; part < (gpt2 ? 2 : 1); ++part) add.Norm(c);
  };
  norm();
  add.Split(qkv * c, 1, c);
  if (gpt2) add.Split(qkv, 0);
  add.Split(c * attn, 1, attn);
  if (gpt2) add.Matrix(c, 1, 0);
  norm();
  add.Split((gpt2 ? 1 : 2) * f * c, 1, c);
  if (gpt2) add.Split(f, 0);
  add.Split(c * f, 1, f);
  if (gpt2) add.Matrix(c, 1, 0);
}

}  // namespace

std::vector<FlatForm> FlatsOf(const Trial& trial) {
  const Config& config = trial.config;
  const ModelConfig& m = config.model;
  const PrecisionConfig& p = config.precision;
  const bool gpt2 = m.family == ModelConfig::Family::kGpt2;
  const bool apart = p.norms == PrecisionConfig::Norms::kFp32 && p.compute != Format::kFp32;
  const int64_t table = Up(m.Vocab(), 64) * m.d_model;
  // Of rows of logits, each with a gradient of its own. CUDA takes up to a GiB of them at once.
  // Each strip's rows have gradients of their own, too.
  const int64_t strips = TensorAxis(trial) > 1 ? config.parallel.tensor_strips : 1;
  const int64_t rows =
      config.train.micro_batch * m.seq_len / ContextAxis(trial) / TensorAxis(trial) / strips;
  const int64_t chunks = TestRanks().Traits(trial.world).backend == Backend::kCuda
                             ? strips
                             : strips * (Up(rows, 512) / 512);

  // Of context and expert, too, ranks have data of their own.
  const int64_t tensor = TensorAxis(trial), expert = ExpertAxis(trial),
                shard = ShardAxis(trial) * ContextAxis(trial) * expert;
  FlatForm norms{"norms", -1, false, false, 4, shard * tensor, 0, 0, {}, {}, {}};
  std::deque<FlatForm> flats;
  int64_t units = 0;
  // Biases behind sums, alone in their flat: who computes the sums' readers again adds them again.
  const bool biases_alone = apart && tensor > 1 && config.memory.recompute != Recompute::kBlock;
  const auto begin = [&](const std::string& name, bool block) {
    flats.push_back({name,
                     units++,
                     block,
                     block && biases_alone,
                     BytesOf(p.compute),
                     shard * tensor,
                     0,
                     0,
                     {},
                     {},
                     {}});
    FlatForm* const whole = &flats.back();
    FlatForm* split = whole;
    if (block && tensor > 1) {
      flats.push_back(*whole);
      split = &flats.back();
      split->shards = shard;
      split->forward_only = false;
    }
    FlatForm* experts = whole;
    if (block && expert > 1) {
      flats.push_back(*whole);
      experts = &flats.back();
      experts->shards = shard / expert * tensor;
      experts->forward_only = false;
    }
    FlatForm* muon = nullptr;
    if (block && config.optimizer.HasMuon()) {
      flats.push_back(*whole);
      muon = &flats.back();
      muon->muon = true;
      muon->forward_only = false;
      if (tensor > 1) muon->shards = shard;  // all its matrices are split
      // Without the matrices that they go with, biases are alone where norms are, too.
      const bool again = config.memory.recompute == Recompute::kBlock;
      whole->forward_only = apart && !again;
      if (split != whole) split->forward_only = !again;
    }
    return Adder{whole,
                 apart ? &norms : whole,
                 p.compute != Format::kFp32 ? &norms : whole,
                 split,
                 experts,
                 muon,
                 tensor,
                 strips,
                 expert};
  };
  {
    const Adder add = begin("embed", false);
    // A tied table gets the head's gradients, too.
    add.Matrix(table, m.Tied() ? strips + chunks : strips, m.Tied() ? chunks : 0);
    if (gpt2) add.Matrix(m.seq_len * m.d_model, strips, 0);
  }
  int64_t first = 0;
  for (const int64_t blocks : config.sharding.BlocksOfUnits(m.layers)) {
    const Adder add = begin(fmt::format("h.{}", first), true);
    for (int64_t i = first; i < first + blocks; ++i) AddBlock(add, m, i);
    first += blocks;
  }
  {
    const Adder add = begin("head", false);
    add.Norm(m.d_model);
    if (gpt2) add.Norm(m.d_model);
    if (!m.Tied()) add.Matrix(table, chunks, chunks);
  }
  std::erase_if(flats, [](const FlatForm& flat) { return flat.params.empty(); });
  if (!norms.params.empty()) flats.push_back(norms);

  for (FlatForm& flat : flats) {
    // Every parameter begins at 256 bytes of the narrowest dtype that the flat is stored in; so
    // does every shard.
    const int64_t align =
        256 / std::min({flat.encoding_bytes, BytesOf(p.grad_accumulate), BytesOf(p.grad_wire)});
    int64_t end = 0;
    flat.align = align;
    for (const int64_t numel : flat.params) end += Up(numel, align);
    flat.padded = Up(end, align * flat.shards);
    flat.shard = flat.padded / flat.shards;
  }
  return {flats.begin(), flats.end()};
}

namespace {

// Gathers of one flat in one step. `from_end`: blocks behind it.
int64_t GathersOf(const Trial& trial, const FlatForm& flat, int64_t from_end, int64_t kept) {
  using Reshard = ShardingConfig::Reshard;
  const Config& config = trial.config;
  const int64_t accumulate = config.train.Accumulate(DataRanks(trial));
  if (flat.name == "norms") return 1;  // small: kept for the step, whatever the policy
  switch (config.sharding.reshard) {
    case Reshard::kNever:
      return 1;
    case Reshard::kAfterBackward:
      return accumulate;
    case Reshard::kAfterForward:
    case Reshard::kAuto: {
      if (!flat.block) return accumulate;  // one stay per microbatch
      if (from_end < kept) return 1;
      if (flat.forward_only) return accumulate;
      // Forward and backward; the last blocks, as many as there are slots, stay over the
      // turn-around.
      return accumulate * (from_end - kept < config.memory.Slots() ? 1 : 2);
    }
  }
  return 0;
}

// Elements of an all-reduce of n that a rank sends; `member`: its place in the group. Every member
// owns a slice of ceil(n / members), the last ones what is left. On hosts it sends each of the
// others their slice, then its own slice's sums; all of it at once where that is no more (two
// members, or two elements). On GPUs what is launched counts, as equal slices.
int64_t AllReduceSends(int64_t members, int64_t n, int64_t member) {
  const int64_t slice = (n + members - 1) / members;
  if (TestRanks().captures()) return 2 * (members - 1) * slice;
  if (n <= 2 * slice) return (members - 1) * n;
  const int64_t own = std::clamp<int64_t>(n - member * slice, 0, slice);
  return (n - own) + (members - 1) * own;
}

template <class F>
void ForFlats(const Trial& trial, int64_t kept, F&& f) {
  const std::vector<FlatForm> flats = FlatsOf(trial);
  int64_t last = 0;  // unit that is a block
  for (const FlatForm& flat : flats)
    if (flat.block) last = flat.unit;
  for (const FlatForm& flat : flats) f(flat, GathersOf(trial, flat, last - flat.unit, kept));
}

}  // namespace

int64_t ExpectedGathers(const Trial& trial, int64_t kept) {
  int64_t sum = 0;
  ForFlats(trial, kept, [&](const FlatForm& flat, int64_t gathers) {
    if (flat.shards > 1) sum += gathers;
  });
  return sum;
}

// Bytes of an element of a flat's gradient bucket. What nothing is added to before it is sent is
// formed in the wire's dtype.
int64_t BucketBytes(const Trial& trial, const FlatForm& flat) {
  const Config& config = trial.config;
  const int64_t sum = BytesOf(config.precision.grad_accumulate),
                wire = BytesOf(config.precision.grad_wire);
  const bool every =
      config.sharding.grad_sync == ShardingConfig::GradSync::kEvery && flat.shards > 1;
  const bool once = (every || config.train.Accumulate(DataRanks(trial)) == 1) &&
                    flat.shards * config.parallel.replicate > 1 && wire < sum &&
                    std::all_of(flat.contributions.begin(), flat.contributions.end(),
                                [](int64_t contributions) { return contributions <= 1; });
  return once ? wire : sum;
}

int64_t StagedPerStep(const Trial& trial) {
  using Concat = ShardingConfig::GradConcat;
  const Config& config = trial.config;
  int64_t bytes = 0;
  for (const FlatForm& flat : FlatsOf(trial)) {
    const int64_t bucket = BucketBytes(trial, flat);
    // concat=every forms each contribution in f32, unless the bucket is narrower than the sums.
    const bool f32 = config.sharding.grad_concat == Concat::kEvery &&
                     bucket == BytesOf(config.precision.grad_accumulate);
    const int64_t microbatches = config.train.Accumulate(DataRanks(trial));
    const bool scaled = config.precision.linear == LinearEncoding::kFp8Tensor &&
                        config.sharding.grad_concat != Concat::kEvery;
    for (size_t i = 0; i < flat.params.size(); ++i)
      if (bucket != 4 && !f32)
        bytes += microbatches * flat.products[i] * flat.params[i] * 4;
      else if (scaled && flat.columns[i] > 0)  // scaled before it is added to what is there
        bytes += (microbatches - 1) * flat.params[i] * 4;
  }
  return bytes;
}

// Of n ranks along tensor each has R/n rows of C between blocks. Attention and MLP of a block each
// gather their input's rows and scatter the sum of their result's. The backward gathers the
// gradient of that result, and the input's rows once more for the weight's gradient, unless they
// are kept, and scatters the sum of the input's gradient. An exchange of rows sends what n - 1
// others get: (n - 1) R/n C.
//
// Of n ranks along context each has R/n rows. Each attention gathers the rows' keys and values, Hkv
// heads of D each, of which tensor's ranks have equal parts; its gradient gathers them once more,
// unless they are kept, and scatters the sum of theirs. An attention that is computed again reads
// what its gradient does.
//
// Of n ranks along expert each has E/n experts of every block, and exchanges pieces of M = R min(K,
// E/n) rows: E/n counts to a rank; M weights, and in the backward their gradients; M rows of C out
// and back, and in the backward the gradients of both and those out once more.
ExchangeForm ExchangesOf(const Trial& trial, const KeptForm& kept) {
  const Config& config = trial.config;
  const ModelConfig& model = config.model;
  const int64_t accumulate = config.train.Accumulate(DataRanks(trial)),
                layers = model.layers * accumulate,
                rows = config.train.micro_batch * model.seq_len / ContextAxis(trial),
                element = BytesOf(config.precision.compute);
  ExchangeForm form;
  if (const int64_t n = TensorAxis(trial); n > 1) {
    const int64_t halves = 2 * layers, bytes = (n - 1) * (rows / n) * model.d_model * element;
    const int64_t strips = config.parallel.tensor_strips;
    const int64_t gathers = 3 * halves - accumulate * kept.halves;
    form = {gathers * strips, 2 * halves * strips, gathers * bytes, 2 * halves * bytes};
  }
  if (const int64_t n = ContextAxis(trial); n > 1) {
    const int64_t columns = 2 * model.KvHeads() / TensorAxis(trial) * model.HeadDim(),
                  bytes = (n - 1) * rows * columns * element;
    const int64_t gathers = 2 * layers - accumulate * kept.keys;
    form.gathers += gathers, form.scatters += layers;
    form.gathered_bytes += gathers * bytes, form.scattered_bytes += layers * bytes;
  }
  if (const int64_t n = ExpertAxis(trial); n > 1) {
    const int64_t experts = model.moe.experts / n, most = rows * std::min(model.moe.top_k, experts);
    form.pieces = (1 + 2 + 5) * layers;
    form.piece_bytes =
        layers * (n - 1) * (experts * 4 + 2 * most * 4 + 5 * most * model.d_model * element);
  }
  return form;
}

namespace {

// A flat that is `n` times the same parameters: a shard has whole matrices.
bool Repeats(const FlatForm& flat, int64_t n) {
  const size_t count = flat.params.size(), each = count / static_cast<size_t>(n);
  if (count != each * static_cast<size_t>(n)) return false;
  for (size_t i = each; i < count; ++i)
    if (flat.params[i] != flat.params[i - each] || flat.columns[i] != flat.columns[i - each])
      return false;
  return true;
}

// On n ranks that shard a flat of Muon's, and T that have parts of it. In a turn the ranks' shards
// of n flats of equal blocks, one for each, go out and back: n - 1 shards each way, in the dtype of
// computing. A flat of which each rank has as many equal blocks is not sent, and a turn of its own.
// T turns, of which the last ones may have no flats to send, are a round, in which the ranks' parts
// go out and back.
ExchangeForm MuonExchangesOf(const Trial& trial) {
  struct Kind {
    std::vector<int64_t> params;
    int64_t shard, shards;
    bool operator<(const Kind& o) const {
      return std::tie(params, shard, shards) < std::tie(o.params, o.shard, o.shards);
    }
  };
  std::map<Kind, int64_t> sent, kept;  // flats
  for (const FlatForm& flat : FlatsOf(trial))
    if (flat.muon)
      ++(Repeats(flat, flat.shards) ? kept : sent)[{flat.params, flat.shard, flat.shards}];
  const int64_t tensor = TensorAxis(trial), element = BytesOf(trial.config.precision.compute);
  ExchangeForm form;
  const auto add = [&](int64_t exchanges, int64_t bytes) {
    form.pieces += 2 * exchanges;
    form.piece_bytes += 2 * exchanges * bytes * element;
  };
  for (const auto* kind : {&sent, &kept})
    for (const auto& [flat, count] : *kind) {
      const int64_t n = kind == &sent ? flat.shards : 1, turns = Up(count, n) / n,
                    rounds = Up(turns, tensor) / tensor;
      if (n > 1) add(turns, (n - 1) * flat.shard);
      if (tensor > 1) add(rounds, (tensor - 1) * n * flat.shard);
    }
  return form;
}

}  // namespace

// With precision.gather=linear a flat that has linears' weights travels in bytes of 8 bits. Once in
// a step a rank casts its shard and sends the others one row of floats: a magnitude for each scale,
// and as much of the other parameters, each with the gap behind it, as any shard has; of each
// matrix and of these in fours. On CUDA so many are those of each row of blocks, for cuBLASLt.
bool GatheredInFp8(const Trial& trial, const FlatForm& flat) {
  return trial.config.precision.gather == WeightGather::kLinear &&
         std::any_of(flat.columns.begin(), flat.columns.end(), [](int64_t n) { return n > 0; });
}

int64_t TableRow(const Trial& trial, const FlatForm& flat) {
  const bool blocks = trial.config.precision.linear == LinearEncoding::kFp8Block;
  const int64_t across = TestRanks().Traits(trial.world).backend == Backend::kCuda ? 4 : 1;
  int64_t scales = 0, begin = 0;
  std::vector<int64_t> rest(static_cast<size_t>(flat.shards));  // by shard
  for (size_t i = 0; i < flat.params.size(); ++i) {
    const int64_t numel = flat.params[i], columns = flat.columns[i];
    if (columns > 0)
      scales +=
          Up(blocks ? Up(numel / columns, 128) / 128 * Up(Up(columns, 128) / 128, across) : 1, 4);
    const bool last = i + 1 == flat.params.size();
    const int64_t end = begin + (last ? numel : Up(numel, flat.align));
    for (int64_t at = begin; columns == 0 && at < end; ++at)
      ++rest[static_cast<size_t>(at / flat.shard)];
    begin = end;
  }
  return scales + Up(*std::max_element(rest.begin(), rest.end()), 4);
}

KeptForm KeptExchangesOf(const Trial& trial, const AssembledRun& run) {
  const std::vector<int64_t> blocks =
      trial.config.sharding.BlocksOfUnits(trial.config.model.layers);
  KeptForm kept;
  size_t next = 0;
  for (size_t u = 0; u < run.layout.units.size(); ++u) {
    if (run.layout.units[u].role != UnitRole::kBlock) continue;
    const int64_t of = blocks.at(next++);
    for (const NodeDef* kind : run.recompute.units[u].kept)
      (kind->name == "gather_rows" ? kept.halves : kept.keys) +=
          kind->name == "gather_rows" ? 2 * of : of;
  }
  return kept;
}

StepCounters ExpectedPerStep(const Trial& trial, int64_t kept, int64_t rank,
                             const KeptForm& exchanges) {
  using Downcast = ShardingConfig::Downcast;
  const Config& config = trial.config;
  const int64_t world = trial.world, replicas = config.parallel.replicate;
  const int64_t accumulate = config.train.Accumulate(DataRanks(trial));
  const int64_t sum_bytes = BytesOf(config.precision.grad_accumulate),
                wire_bytes = BytesOf(config.precision.grad_wire);
  const Downcast downcast = config.sharding.downcast;

  StepCounters e;
  int64_t flats = 0;
  ForFlats(trial, kept, [&](const FlatForm& flat, int64_t gathers) {
    ++flats;
    const int64_t shard = flat.shards;
    const bool every = config.sharding.grad_sync == ShardingConfig::GradSync::kEvery && shard > 1;
    const bool narrow = flat.encoding_bytes < 4;
    const bool fp8 = GatheredInFp8(trial, flat);
    const int64_t element = fp8 ? 1 : downcast == Downcast::kAfterGather ? 4 : flat.encoding_bytes;
    // Parameters. A cast reads f32; after_update leaves it to AdamW.
    if (shard > 1) {
      e.comm.all_gathers += gathers;
      e.comm.gathered_bytes += gathers * (shard - 1) * flat.shard * element;
    }
    if (fp8) e.kernels.cast_bytes += flat.shard * 4;
    // On CUDA each backward turns its payloads.
    if (fp8 && TestRanks().Traits(trial.world).backend == Backend::kCuda)
      for (size_t i = 0; i < flat.params.size(); ++i)
        e.kernels.copied_bytes += flat.columns[i] > 0 ? accumulate * flat.params[i] : 0;
    if (fp8 && shard > 1) {
      e.comm.all_gathers += 1;
      e.comm.gathered_bytes += (shard - 1) * TableRow(trial, flat) * 4;
    }
    if (narrow && (downcast == Downcast::kPerGather || downcast == Downcast::kInGather))
      e.kernels.cast_bytes += gathers * flat.shard * 4;
    if (narrow && downcast == Downcast::kAfterGather)
      e.kernels.cast_bytes += gathers * flat.padded * 4;

    // Gradients. A shard that is reduced once stays in the wire's dtype; of several, those that
    // arrive in bf16 or on top of earlier ones are added to the f32 shard by a copy.
    const int64_t reductions = every ? accumulate : 1;
    const int64_t shard_bytes = reductions == 1 ? wire_bytes : 4;
    const int64_t bucket_bytes = BucketBytes(trial, flat);
    const bool once = bucket_bytes != sum_bytes;
    if (shard > 1) {
      e.comm.reduce_scatters += reductions;
      e.comm.reduced_bytes += reductions * (shard - 1) * flat.shard * wire_bytes;
      if (wire_bytes != bucket_bytes)
        e.kernels.cast_bytes += reductions * flat.padded * bucket_bytes;
      const int64_t straight = wire_bytes == shard_bytes ? 1 : 0;
      e.kernels.copied_bytes += (reductions - straight) * flat.shard * wire_bytes;
    }
    if (replicas > 1) {
      const int64_t n = shard > 1 ? flat.shard : flat.padded;
      e.comm.all_reduces += 1;
      e.comm.all_reduced_bytes +=
          AllReduceSends(replicas, n, rank / (world / replicas)) * wire_bytes;
      // What is reduced is the shard, or without shards the bucket: narrowed to the wire first.
      const int64_t from_bytes = shard > 1 ? shard_bytes : bucket_bytes;
      if (wire_bytes != from_bytes) e.kernels.cast_bytes += n * from_bytes;
      if (wire_bytes != shard_bytes && shard > 1) e.kernels.copied_bytes += n * wire_bytes;
    }
    for (size_t i = 0; i < flat.params.size(); ++i) {
      switch (config.sharding.grad_concat) {
        case ShardingConfig::GradConcat::kEvery:
          e.kernels.concatenated_bytes +=
              accumulate * flat.contributions[i] * flat.params[i] * (once ? wire_bytes : 4);
          break;
        case ShardingConfig::GradConcat::kLast:
          e.kernels.concatenated_bytes += flat.params[i] * bucket_bytes;
          break;
        case ShardingConfig::GradConcat::kDirect:
          break;
      }
    }
  });
  if (TestRanks().Traits(trial.world).backend == Backend::kCuda)
    e.kernels.concatenated_bytes += StagedPerStep(trial);
  const ExchangeForm rows = ExchangesOf(trial, exchanges);
  e.comm.all_gathers += rows.gathers;
  e.comm.reduce_scatters += rows.scatters;
  e.comm.gathered_bytes += rows.gathered_bytes;
  e.comm.reduced_bytes += rows.scattered_bytes;
  const ExchangeForm muon = MuonExchangesOf(trial);
  e.comm.all_to_alls += rows.pieces + muon.pieces;
  e.comm.exchanged_bytes += rows.piece_bytes + muon.piece_bytes;
  if (world > 1) {  // the table of statistics: sum of squares and bad values per flat, and the loss
    e.comm.all_gathers += 1;
    e.comm.gathered_bytes += (world - 1) * (2 * flats + 1) * 8;
    // Of each router a count and a sum of probabilities per expert.
    const std::string blocks = config.model.Blocks();
    if (const int64_t routers = std::count(blocks.begin(), blocks.end(), 'E')) {
      e.comm.all_reduces += 1;
      e.comm.all_reduced_bytes +=
          AllReduceSends(world, routers * 2 * config.model.moe.experts, rank) * 4;
    }
  }
  switch (config.execution.graph) {
    case ExecutionConfig::Graph::kStep:
      e.graph_launches = 1;
      break;
    case ExecutionConfig::Graph::kMicrobatch:
      e.graph_launches = 2 * accumulate + 1;
      break;
    case ExecutionConfig::Graph::kOff:
      break;
  }
  // Op by op.
  if (config.execution.checked || trial.adversary_seed) e.graph_launches = 0;
  return e;
}

StepCounters operator*(const StepCounters& c, int64_t n) {
  StepCounters r;
  r.kernels = {c.kernels.concatenated_bytes * n, c.kernels.cast_bytes * n,
               c.kernels.copied_bytes * n};
  r.comm = {c.comm.all_gathers * n,    c.comm.reduce_scatters * n, c.comm.all_reduces * n,
            c.comm.gathered_bytes * n, c.comm.reduced_bytes * n,   c.comm.all_reduced_bytes * n,
            c.comm.all_to_alls * n,    c.comm.exchanged_bytes * n};
  r.graph_launches = c.graph_launches * n;
  return r;
}

std::string ToString(const StepCounters& c) {
  return fmt::format(
      "concatenated {} cast {} copied {} | gathers {} ({} B) reduce-scatters {} ({} B) all-reduces "
      "{} ({} B) all-to-alls {} ({} B) | launches {}",
      c.kernels.concatenated_bytes, c.kernels.cast_bytes, c.kernels.copied_bytes,
      c.comm.all_gathers, c.comm.gathered_bytes, c.comm.reduce_scatters, c.comm.reduced_bytes,
      c.comm.all_reduces, c.comm.all_reduced_bytes, c.comm.all_to_alls, c.comm.exchanged_bytes,
      c.graph_launches);
}

}  // namespace millrace::test
