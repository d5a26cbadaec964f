#include "runtime/plan/nodes/head.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/ops/sample_ops.h"
#include "runtime/base/arithmetic.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/cached_rows.h"
#include "runtime/plan/nodes/exchange.h"
#include "runtime/plan/nodes/sample.h"

namespace millrace {
namespace {

// Everything was computed in the forward, while the logits existed.
void Gradient(Differentiator& d, const Node& n) {
  if (n.outputs[1]) Contribute(d, n.inputs[0], n.outputs[1], n);
}

// Of each strip in turn, `rows` rows at a time.
std::vector<RowStrip> ChunksOf(const std::vector<RowStrip>& strips, int64_t rows) {
  std::vector<RowStrip> chunks;
  for (const RowStrip& strip : strips)
    for (int64_t at = 0; at < strip.rows; at += rows) {
      RowStrip& chunk = chunks.emplace_back(strip);
      chunk.begin += at;
      chunk.rows = std::min(rows, strip.rows - at);
      chunk.first.base += at;
    }
  return chunks;
}

// Of a node's inputs.
enum Told : size_t { kTargets = 2, kWeights, kOldLogprobs, kAdvantages, kReferenceLogprobs };

// What the op is told of each target, and beside it.
CrossEntropyOp<View> ToldOf(Lowering& l, const Node& node, const LossSpec& spec) {
  const auto read = [&](Told which) {
    return which < node.inputs.size() ? l.storage().Read(node.inputs[which]) : View{};
  };
  CrossEntropyOp<View> op;
  op.targets = read(kTargets);
  op.weights = read(kWeights);
  op.old_logprobs = read(kOldLogprobs);
  op.advantages = read(kAdvantages);
  op.reference_logprobs = read(kReferenceLogprobs);
  if (!op.advantages) return op;
  op.policy = spec.policy->loss;
  op.tally = l.storage().Tally(node.label, TallyKind::kPolicy,
                               DenseLayout(DType::kF32, {PolicyTally::kCount}));
  return op;
}

// By chunks of rows, through one buffer of logits.
struct Chunks {
  View x, weight, logits;
  CrossEntropyOp<View> told;  // what its ops have in common
  std::vector<RowStrip> parts;
  int64_t rows = 0;  // of most parts
};

Chunks ChunksOf(Lowering& l, const Node& node) {
  ValueStorage& storage = l.storage();
  Chunks c;
  c.x = storage.Read(node.inputs[0]);
  c.weight = storage.Read(node.inputs[1]);
  const int64_t rows = c.x.layout.dims[0], padded_vocab = c.weight.layout.dims[0];
  MR_CHECK_GE(l.options().loss_chunk_rows, 0, "loss_chunk_rows");
  const int64_t wanted =
      l.options().loss_chunk_rows > 0
          ? l.options().loss_chunk_rows
          : LossChunkRows(l.options().backend, rows, padded_vocab, c.x.layout.dtype);
  c.rows = std::min(wanted, rows);
  c.parts = ChunksOf(StripsOf(l.graph(), l.graph().value(node.inputs[0])), c.rows);
  return c;
}

View LogitsOf(Lowering& l, const Chunks& chunks, const std::string& name) {
  return l.storage().Temporary(
      name, DenseLayout(chunks.x.layout.dtype, {chunks.rows, chunks.weight.layout.dims[0]}));
}

std::string SuffixOf(const RowStrip& part) {
  return fmt::format("[{}:{}]", part.begin, part.begin + part.rows);
}

// The logits of a part, and the op that will read them; what it writes is the caller's.
CrossEntropyOp<View> PushLogits(Lowering& l, const Node& node, const Chunks& chunks,
                                const RowStrip& part) {
  MatmulOp<View> product;
  product.a = Rows(chunks.x, part.begin, part.rows);
  product.b = Transposed(chunks.weight);
  product.out = Rows(chunks.logits, 0, part.rows);
  product.in_order = l.options().in_order;
  l.Push(product, node, ":logits" + SuffixOf(part));

  CrossEntropyOp<View> entropy = chunks.told;
  entropy.row_begin = part.first;
  entropy.vocab = l.graph().vocab;
  entropy.output = LossOutput::kLossOnly;
  entropy.loss_update = part.begin == 0 ? Update::kOverwrite : Update::kAccumulate;
  entropy.logits = product.out;
  entropy.scalars = l.storage().Scalars();
  return entropy;
}

// When it trains, the gradient replaces the logits, and both products of it are taken at once. The
// weight gradient comes first: then the input gradient can replace the rows of x that it has just
// read.
void LowerLoss(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const ValueId x_value = node.inputs[0], d_x_value = node.outputs[1];
  const bool gradient = static_cast<bool>(d_x_value);
  const LossId loss_id = l.graph().value(node.outputs[0]).loss;
  const LossSpec& spec = l.graph().loss(loss_id);
  Chunks chunks = ChunksOf(l, node);
  const View loss = storage.Write(node.outputs[0]);
  chunks.logits =
      LogitsOf(l, chunks, loss_id.value == 0 ? "head/logits" : "head/logits." + spec.name);
  const bool in_place = gradient && storage.CanReplace(x_value, d_x_value);
  const View d_x = in_place ? storage.WriteOver(d_x_value, x_value) : storage.Write(d_x_value);
  chunks.told = ToldOf(l, node, spec);
  l.Choose(fmt::format("{}: {} chunks of {} rows of logits{}", node.label, chunks.parts.size(),
                       chunks.rows, in_place ? ", d_x in place of x" : ""));
  for (const RowStrip& part : chunks.parts) {
    CrossEntropyOp<View> entropy = PushLogits(l, node, chunks, part);
    entropy.tally_update = entropy.loss_update;
    entropy.loss_weight = spec.weight;
    entropy.output = gradient ? LossOutput::kLossAndGradient : LossOutput::kLossOnly;
    entropy.loss_sum = loss;
    l.Push(entropy, node, SuffixOf(part));
    if (!gradient) continue;

    MatmulOp<View> d_weight;
    d_weight.a = Transposed(entropy.logits);
    d_weight.b = Rows(chunks.x, part.begin, part.rows);
    d_weight.out = storage.Grad(node.grads[0], d_weight.update);
    d_weight.rounding = Rounding::kOnce;
    l.Push(d_weight, node, ":d_weight" + SuffixOf(part));

    MatmulOp<View> d_input;
    d_input.a = entropy.logits;
    d_input.b = chunks.weight;
    d_input.out = Rows(d_x, part.begin, part.rows);
    l.Push(d_input, node, ":d_input" + SuffixOf(part));
  }
}

void PushGather(Lowering& l, const Node& node, AxisSet axes, const View& shard, const View& full,
                const std::string& suffix) {
  AllGatherOp<View> gather;
  gather.axes = axes;
  gather.shard = InOneRow(shard);
  gather.full = InOneRow(full);
  l.Push(gather, node, suffix);
}

// A value of each row of a data rank, of which each rank computes its own. Ranks that have other
// rows gather them: strip by strip those of a sequence, which then lie in their order, and along
// context rank by rank.
class RowValues {
 public:
  RowValues(Lowering& l, const Node& node, size_t output, const std::string& name)
      : node_(node),
        x_(l.graph().value(node.inputs[0])),
        axes_(x_.placement.Cut(0)),
        ranks_(l.graph().mesh.Size(axes_)),
        sequences_(l.graph().context() > 1),
        out_(l.storage().Write(node.outputs[output])),
        whole_(out_) {
    const int64_t rows = x_.dims[0];
    const auto column = [&](const std::string& of, int64_t n) {
      return l.storage().Temporary(of, DenseLayout(out_.layout.dtype, {n, 1}));
    };
    whole_.layout = DenseLayout(out_.layout.dtype, {rows * ranks_, 1});
    if (sequences_) whole_ = column(name + "_of_rank", rows * ranks_);
    own_ = axes_.empty() ? whole_ : column(name, rows);
  }

  // Of the rank's rows in `part`, in one row.
  View Of(const RowStrip& part) const { return InOneRow(Rows(own_, part.begin, part.rows)); }

  void PushGathers(Lowering& l, const std::string& suffix) const {
    if (!axes_.empty())
      for (const RowStrip& strip : StripsOf(l.graph(), x_))
        PushGather(l, node_, axes_, Rows(own_, strip.begin, strip.rows),
                   Rows(whole_, strip.begin * ranks_, strip.rows * ranks_),
                   fmt::format("{}:rows[{}]", suffix, strip.begin));
    if (sequences_) PushGather(l, node_, Axis::kContext, whole_, out_, suffix + ":sequences");
  }

 private:
  const Node& node_;
  const Value& x_;
  const AxisSet axes_;
  const int64_t ranks_;
  const bool sequences_;
  const View out_;
  View whole_, own_;
};

// SampleParams of `rows` rows whose bits are all 0: temperature 0, the likeliest token.
View ZeroParams(Lowering& l, const Node& node, int64_t rows) {
  const View params =
      l.storage().Temporary("head/params", DenseLayout(DType::kI64, {rows, kSampleWords}));
  ZeroRangesOp<View> zero;
  zero.flat = InOneRow(params);
  zero.ranges = std::make_shared<const std::vector<Range>>(1, Range{0, rows * kSampleWords});
  l.Push(zero, node, ":zero");
  return params;
}

// The sum goes nowhere.
void LowerTokenLosses(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const bool likeliest = node.outputs.size() > 1;
  Chunks chunks = ChunksOf(l, node);
  chunks.logits = LogitsOf(l, chunks, "head/logits");
  chunks.told = ToldOf(l, node, {});
  const View sum = storage.Temporary("head/sum", DenseLayout(DType::kF64, {1}));
  const RowValues losses(l, node, 0, "head/losses");
  std::optional<RowValues> tokens;
  View params, logprobs;
  if (likeliest) {
    tokens.emplace(l, node, 1, "head/likeliest");
    params = ZeroParams(l, node, chunks.rows);
    logprobs = storage.Temporary("head/logprobs", DenseLayout(DType::kF32, {chunks.rows}));
  }
  for (const RowStrip& part : chunks.parts) {
    CrossEntropyOp<View> entropy = PushLogits(l, node, chunks, part);
    entropy.loss_sum = sum;
    entropy.row_loss = losses.Of(part);
    l.Push(entropy, node, SuffixOf(part));
    if (!likeliest) continue;
    SampleOp<View> sample;
    sample.vocab = entropy.vocab;
    sample.logits = entropy.logits;
    sample.params = Rows(params, 0, part.rows);
    sample.token = tokens->Of(part);
    sample.logprob = logprobs;
    sample.logprob.layout.dims[0] = part.rows;
    l.Push(sample, node, ":likeliest" + SuffixOf(part));
  }
  losses.PushGathers(l, "");
  if (likeliest) tokens->PushGathers(l, ":likeliest");
}

void LowerLogits(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  View x = storage.Read(node.inputs[0]);
  if (const int64_t ranks = l.graph().context(); ranks > 1) {  // rank by rank: Engine::Run
    const auto [dims, dtype] = std::pair{x.layout.dims, x.layout.dtype};
    AllGatherOp<View> gather;
    gather.axes = Axis::kContext;
    gather.shard = x;
    gather.shard.layout = DenseLayout(dtype, {dims[0] * dims[1]});
    x = storage.Temporary("head/all_rows", DenseLayout(dtype, {ranks * dims[0], dims[1]}));
    gather.full = x;
    gather.full.layout = DenseLayout(dtype, {ranks * dims[0] * dims[1]});
    l.Push(gather, node, ":rows");
  }
  SelectRowOp<View> select;
  select.x = x;
  select.scalars = storage.Scalars();
  select.out = storage.Temporary("head/row", DenseLayout(x.layout.dtype, {1, x.layout.dims[1]}));
  l.Push(select, node, ":row");
  MatmulOp<View> product;
  product.a = select.out;
  product.b = Transposed(storage.Read(node.inputs[1]));
  product.out = storage.Write(node.outputs[0]);
  l.Push(product, node);  // f32, not rounded as a score's: plans with caches are those in order
}

// Whether another node of the forward reads the value, too.
bool IsShared(const SemanticGraph& graph, ValueId value) {
  int64_t readers = 0;
  for (const Node& node : graph.forward)
    readers += std::count(node.inputs.begin(), node.inputs.end(), value);
  return readers > 1;
}

// Of the rows of a head that ranks along tensor share, those of each: the last ranks may have less.
// All of them where each rank forms all logits.
int64_t RowsOfHead(Lowering& l, const Node& node, AxisSet axes) {
  constexpr int64_t kAlignment = 8;  // rows of bf16 logits begin at 16 bytes
  const int64_t rows = l.graph().value(node.inputs[1]).dims[0], ranks = l.graph().mesh.Size(axes);
  if (!IsShared(l.graph(), node.inputs[1])) return RoundUp(CeilDiv(rows, ranks), kAlignment);
  if (rows % ranks == 0) return rows / ranks;
  // The table is whole for its lookups, and equal parts would end behind it.
  l.Choose(fmt::format("{}: whole on each rank, {} ranks do not divide {} rows of a shared table",
                       node.label, ranks, rows));
  return rows;
}

// The rank forms columns of the logits, for its rows of the head, and all ranks gather them: a row
// of logits is short, and whoever has all of them draws as from any others. What an era keeps of
// the head is what is read here (schedule/step_builder.h).
void PushParts(Lowering& l, const Node& node, MatmulOp<View> product, AxisSet axes, int64_t part,
               const View& logits) {
  const DType dtype = product.a.layout.dtype;
  const int64_t rows = logits.layout.dims[0], ranks = l.graph().mesh.Size(axes),
                columns = logits.layout.dims[1];
  View own = Rows(Transposed(product.b), 0, part);
  own.rank_stride = part * own.layout.strides[0];
  own.rank_axes = axes;
  product.b = Transposed(own);
  if (product.like_rows > 0) {
    product.like_columns = columns;
    product.like_first = RankInt(0, part, axes);
  }
  product.out = l.storage().Temporary("head/part", DenseLayout(dtype, {rows, part}));
  l.Push(product, node, ":part");
  JoinColumnsOp<View> join;
  join.x = l.storage().Temporary("head/parts", DenseLayout(dtype, {ranks, rows, part}));
  PushGather(l, node, axes, product.out, join.x, ":parts");
  join.out = logits;
  l.Push(join, node);
}

// The loss sees logits in x's dtype.
void LowerNextLogits(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const View x = l.storage().Read(node.inputs[0]), logits = l.storage().Write(node.outputs[0]);
  const int64_t rows = logits.layout.dims[0];
  MatmulOp<View> product;
  product.a = Rows(x, x.layout.dims[0] - rows, rows);
  product.b = Transposed(l.storage().Read(node.inputs[1]));
  product.in_order = l.options().in_order;
  LikeTraining(l, rows, node.inputs[1], &product);
  const bool rounds = x.layout.dtype != logits.layout.dtype;
  product.out = rounds
                    ? l.storage().Temporary(
                          "head/logits", DenseLayout(x.layout.dtype, {rows, logits.layout.dims[1]}))
                    : logits;
  const AxisSet axes = l.graph().mesh.Wide(Axis::kTensor);
  const int64_t part = axes.empty() ? logits.layout.dims[1] : RowsOfHead(l, node, axes);
  if (part < logits.layout.dims[1])
    PushParts(l, node, product, axes, part, product.out);
  else
    l.Push(product, node);
  if (!rounds) return;
  CastOp<View> widen;
  widen.x = InOneRow(product.out);
  widen.out = InOneRow(logits);
  l.Push(widen, node, ":widen");
}

// Padded rows are not asked for.
FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const double flops = 2.0 * static_cast<double>(graph.vocab) *
                       static_cast<double>(graph.value(node.inputs[1]).dims[1]);
  return {flops, flops};
}

}  // namespace

const NodeDef kHeadLossNode{
    .name = "head_loss", .gradient = Gradient, .lower = LowerLoss, .flops = Flops};
const NodeDef kHeadLogitsNode{.name = "head_logits", .lower = LowerLogits};
const NodeDef kNextLogitsNode{.name = "next_logits", .lower = LowerNextLogits};
const NodeDef kTokenLossesNode{.name = "token_losses", .lower = LowerTokenLosses};

void Head(ForwardBuilder& b, ValueId x, const std::string& weight, HeadMode mode,
          const std::string& loss_name) {
  const bool logits_only = mode == HeadMode::kLogits || mode == HeadMode::kNextLogits;
  const std::string label = logits_only ? "head/logits" : "head/" + loss_name;
  // The row that generation asks for may be anybody's.
  if (mode == HeadMode::kLogits) x = GatherRows(b, x, b.value(x).placement.Cut(0), "head/rows");
  b.CheckRows(x, label);
  const int64_t width = b.Columns(x, label);
  const ValueId weight_value = b.Param(weight, label);
  const int64_t padded_vocab = b.RowsOfMatrix(weight_value, width, label);
  MR_CHECK_LE(b.graph().vocab, padded_vocab, "node {}: vocabulary against the stored rows of {}",
              label, weight);
  if (logits_only) {
    const bool next = mode == HeadMode::kNextLogits;
    const ValueId logits = b.NewValue("logits", ValueRole::kLogits, DType::kF32,
                                      {next ? b.cache()->logits : 1, padded_vocab});
    b.Push(next ? kNextLogitsNode : kHeadLogitsNode, {x, weight_value}, {logits}, {}, label);
    if (next)
      Sample(b, logits, SamplingState(b), std::min(kMaxSampleTop, b.graph().vocab), "head/sample");
    return;
  }
  const LossId id = b.Loss(loss_name, label);
  const LossSpec& spec = b.graph().loss(id);
  const auto optional = [&](const std::string& name) {
    return name.empty() ? ValueId{} : b.Input(name, label);
  };
  std::vector<ValueId> inputs = {x, weight_value, b.Input(spec.targets, label)};
  if (mode == HeadMode::kTokenLosses || mode == HeadMode::kTokenScores) {
    const int64_t all_rows = b.shape().rows() * b.mesh().Size(Axis::kContext);
    std::vector<ValueId> outputs = {
        b.NewValue("token_losses", ValueRole::kOutput, DType::kF64, {all_rows})};
    if (mode == HeadMode::kTokenScores)
      outputs.push_back(b.NewValue("likeliest", ValueRole::kOutput, DType::kI32, {all_rows}));
    return b.Push(kTokenLossesNode, inputs, std::move(outputs), {}, label);
  }
  if (!spec.weights.empty() || spec.policy) inputs.push_back(optional(spec.weights));
  if (spec.policy && mode == HeadMode::kTrainLoss)
    for (const std::string& name :
         {spec.policy->old_logprobs, spec.policy->advantages, spec.policy->reference_logprobs})
      inputs.push_back(optional(name));
  const ValueId loss = b.NewLoss(id, label);
  std::vector<ValueId> outputs = {loss, ValueId{}}, grads;
  if (mode == HeadMode::kTrainLoss) {
    outputs[1] = b.NewActivation(fmt::format("d({})", b.value(x).name), {b.RowsOf(x, label), width},
                                 b.value(x).placement);
    grads = {b.ParamGrad(weight_value)};
  }
  b.Push(kHeadLossNode, std::move(inputs), std::move(outputs), {}, label, std::move(grads));
}

}  // namespace millrace
