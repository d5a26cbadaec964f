#include "runtime/plan/schedule/muon_pass.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <utility>

#include "runtime/plan/schedule/update.h"

namespace millrace {
namespace {

View Slice(View view, int64_t begin, std::initializer_list<int64_t> dims) {
  view.offset += begin;
  view.layout = DenseLayout(view.layout.dtype, dims);
  return view;
}

// The transposes of matrices [I,R,C].
View Turned(View view) {
  std::swap(view.layout.dims[1], view.layout.dims[2]);
  std::swap(view.layout.strides[1], view.layout.strides[2]);
  return view;
}

// Of a matrix with more rows than columns the products are from the right.
bool IsTall(const MuonShape& shape) { return shape.rows > shape.columns; }
// The side of the gram matrix.
int64_t SideOf(const MuonShape& shape) { return std::min(shape.rows, shape.columns); }

// What an orthogonal matrix is multiplied by, beside the learning rate.
double AdjustmentOf(MuonAdjust adjust, const MuonShape& shape) {
  const double rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  if (adjust == MuonAdjust::kOriginal) return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

MuonPass::MuonPass(StepBuilder& builder, const GradPass& grads)
    : b_(builder), grads_(grads), dtype_(builder.layout.precision.compute) {
  for (std::vector<MuonRound>& rounds : MuonBatchesOf(b_.layout, b_.options.muon.batch_numel)) {
    Batch& batch = batches_.emplace_back();
    batch.shapes = MuonShapesOf(rounds);
    batch.rounds = std::move(rounds);
    for (const MuonRound& round : batch.rounds) batch.numel += round.numel;
  }
}

void MuonPass::Emit() {
  if (batches_.empty()) return;
  AddWork();
  Collect(batches_.front());
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (i + 1 < batches_.size()) Collect(batches_[i + 1]);
    Orthogonalise(batches_[i]);
    SendBack(batches_[i]);
    if (i > 0) Update(batches_[i - 1]);
  }
  Update(batches_.back());
}

void MuonPass::AddWork() {
  int64_t numel = 0, squares = 0;
  for (const Batch& batch : batches_)
    for (const MuonShape& shape : batch.shapes) {
      const int64_t side = SideOf(shape);
      numel = std::max(numel, shape.matrices() * shape.rows * shape.columns);
      squares = std::max(squares, shape.matrices() * side * side);
    }
  const auto add = [&](const char* name, int64_t elements) {
    return b_.AddBuffer(fmt::format("muon_{}", name), elements * Bytes(dtype_),
                        BufferClass::kOptimizer, BufferScope::kStep);
  };
  x_ = add("normal", numel);
  if (b_.options.muon.steps > 1) y_ = add("stepped", numel);
  gram_ = add("gram", squares);
  polynomial_ = add("polynomial", squares);
}

View MuonPass::Work(BufferId buffer, int64_t matrices, int64_t rows, int64_t columns) const {
  return Slice(WholeView(buffer, dtype_, 0), 0, {matrices, rows, columns});
}

std::string MuonPass::Label(const char* what, const Batch& batch) const {
  return fmt::format("{}/{}", what, FlatOf(batch).name);
}

View MuonPass::NewBuffer(const char* what, const Batch& batch) {
  return WholeView(b_.AddBuffer(Label(what, batch), batch.numel * Bytes(dtype_),
                                BufferClass::kOptimizer, BufferScope::kStep),
                   dtype_, batch.numel);
}

template <class F>
void MuonPass::ForEachRound(const Batch& batch, F&& f) const {
  int64_t begin = 0;
  for (const MuonRound& round : batch.rounds) {
    f(round, begin);
    begin += round.numel;
  }
}

template <class F>
void MuonPass::ForEachShard(const Batch& batch, const View& shards, F&& f) const {
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    for (const FlatId id : round.flats) {
      const int64_t numel = b_.layout.flat(id).shard_numel;
      f(id, Slice(shards, begin, {numel}));
      begin += numel;
    }
  });
}

void MuonPass::Collect(Batch& batch) {
  batch.x = NewBuffer("muon_x", batch);
  batch.sent = batch.exchanged() ? NewBuffer("muon_sent", batch) : batch.x;
  ForEachShard(batch, batch.sent, [&](FlatId id, const View& shard) {
    const FlatParam& flat = b_.layout.flat(id);
    MuonMomentumOp<View> op;
    op.grad = grads_.final_grad(id);
    op.scalars = b_.State("scalars");
    op.m = b_.Slot("muon_m", id);
    op.out = shard;
    op.momentum = b_.options.muon.momentum;
    op.nesterov = b_.options.muon.nesterov;
    op.shard_axes = flat.shard;
    b_.Emit(op, StreamId::kCompute, "muon_momentum/" + flat.name, flat.key.unit);
  });
  if (!batch.exchanged()) return;
  std::vector<Range> idle;
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    const int64_t used = std::ssize(round.flats) * b_.layout.flat(round.flats.front()).shard_numel;
    if (used < round.numel) idle.push_back({begin + used, begin + round.numel});
  });
  if (!idle.empty()) {
    ZeroRangesOp<View> zero;
    zero.flat = batch.sent;
    zero.ranges = std::make_shared<const std::vector<Range>>(std::move(idle));
    b_.Emit(zero, StreamId::kCompute, Label("muon_idle", batch), UnitOf(batch));
  }
  Exchange("muon_collect", batch, batch.sent, batch.x);
}

void MuonPass::Orthogonalise(Batch& batch) {
  batch.home = NewBuffer("muon_home", batch);
  ZeroGaps(batch);
  for (const MuonShape& shape : batch.shapes) Orthogonalise(batch, shape);
}

// What no matrix covers of the results, which weights follow.
void MuonPass::ZeroGaps(const Batch& batch) {
  std::vector<Range> gaps;
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    for (const Range& gap : round.gaps) gaps.push_back({begin + gap.begin, begin + gap.end});
  });
  if (gaps.empty()) return;
  ZeroRangesOp<View> zero;
  zero.flat = batch.home;
  zero.ranges = std::make_shared<const std::vector<Range>>(std::move(gaps));
  b_.Emit(zero, StreamId::kCompute, Label("muon_gaps", batch), UnitOf(batch));
}

// A step is X = a X + (b G + c G G) X, G = X X^T; of a matrix with more rows than columns the same
// from the right, with the smaller X^T X.
void MuonPass::Orthogonalise(const Batch& batch, const MuonShape& shape) {
  const MuonHyper& muon = b_.options.muon;
  Normalise(batch, shape);
  const auto work = [&](BufferId buffer) {
    return Work(buffer, shape.matrices(), shape.rows, shape.columns);
  };
  View from = work(x_);
  for (int step = 0; step + 1 < muon.steps; ++step) {
    const View polynomial = PolynomialOf(batch, shape, from, 1),
               to = work(from.buffer == x_ ? y_ : x_);
    EmitProduct("muon_step", batch, IsTall(shape) ? from : polynomial,
                IsTall(shape) ? polynomial : from, to, 1, from, muon.coefficients[0]);
    from = to;
  }
  const double scale = AdjustmentOf(muon.adjust, shape);
  StoreProducts(batch, shape, from, PolynomialOf(batch, shape, from, scale), scale);
}

void MuonPass::Normalise(const Batch& batch, const MuonShape& shape) {
  const int64_t numel = shape.rows * shape.columns;
  int64_t first = 0;
  for (const MuonRun& run : shape.runs) {
    MuonNormaliseOp<View> op;
    op.x = Slice(batch.x, run.begin, {run.count, run.matrices, numel});
    if (run.count > 1) op.x.layout.strides[0] = run.apart;
    op.out = Slice(WholeView(x_, dtype_, 0), first * numel, {run.size(), numel});
    op.eps = b_.options.muon.eps;
    b_.Emit(op, StreamId::kCompute, Label("muon_normalise", batch), UnitOf(batch));
    first += run.size();
  }
}

// `scale` times b G + c G G of each of the matrices.
View MuonPass::PolynomialOf(const Batch& batch, const MuonShape& shape, const View& x,
                            double scale) {
  const std::array<double, 3>& by = b_.options.muon.coefficients;
  const int64_t side = SideOf(shape);
  const View gram = Work(gram_, shape.matrices(), side, side),
             polynomial = Work(polynomial_, shape.matrices(), side, side);
  EmitProduct("muon_gram", batch, IsTall(shape) ? Turned(x) : x, IsTall(shape) ? x : Turned(x),
              gram);
  EmitProduct("muon_polynomial", batch, gram, gram, polynomial, scale * by[2], gram, scale * by[1]);
  return polynomial;
}

// The last step: its results go where the matrices came from.
void MuonPass::StoreProducts(const Batch& batch, const MuonShape& shape, const View& x,
                             const View& polynomial, double scale) {
  const int64_t rows = shape.rows, columns = shape.columns, side = SideOf(shape);
  int64_t first = 0;
  for (const MuonRun& run : shape.runs)
    for (int64_t i = 0; i < run.count; ++i) {
      const View from = Slice(x, first * rows * columns, {run.matrices, rows, columns}),
                 by = Slice(polynomial, first * side * side, {run.matrices, side, side});
      EmitProduct("muon_last", batch, IsTall(shape) ? from : by, IsTall(shape) ? by : from,
                  Slice(batch.home, run.begin + i * run.apart, {run.matrices, rows, columns}), 1,
                  from, scale * b_.options.muon.coefficients[0]);
      first += run.matrices;
    }
}

void MuonPass::EmitProduct(const char* what, const Batch& batch, const View& a, const View& b,
                           const View& out, double scale_ab, const View& c, double scale_c) {
  BatchedMatmulOp<View> op;
  op.alpha = scale_ab;
  op.beta = scale_c;
  op.a = a;
  op.b = b;
  op.c = c;
  op.out = out;
  b_.Emit(op, StreamId::kCompute, Label(what, batch), UnitOf(batch));
}

void MuonPass::Exchange(const char* what, const Batch& batch, const View& sent,
                        const View& received) {
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    const FlatParam& flat = b_.layout.flat(round.flats.front());
    AllToAllOp<View> op;
    op.sent = Slice(sent, begin, {round.numel});
    op.received = Slice(received, begin, {round.numel});
    op.axes = flat.shard;
    b_.Emit(op, StreamId::kReduce, fmt::format("{}/{}", what, flat.name), flat.key.unit);
  });
}

void MuonPass::SendBack(Batch& batch) {
  batch.back = batch.home;
  if (!batch.exchanged()) return;
  batch.back = NewBuffer("muon_back", batch);
  Exchange("muon_return", batch, batch.home, batch.back);
}

void MuonPass::Update(const Batch& batch) {
  ForEachShard(batch, batch.back, [&](FlatId id, const View& shard) {
    const FlatParam& flat = b_.layout.flat(id);
    MuonUpdateOp<View> op;
    op.ortho = shard;
    op.scalars = b_.State("scalars");
    op.master = b_.Master(id);
    op.compute = b_.Compute(id);
    op.lr_scale = b_.options.muon.lr_scale;
    op.weight_decay = b_.options.muon.weight_decay;
    op.segments = SegmentsOf(b_, id);
    if (op.segments) op.flat_begin = RankInt(0, flat.shard_numel, flat.shard);
    op.shard_axes = flat.shard;
    b_.Emit(op, StreamId::kCompute, "muon_update/" + flat.name, flat.key.unit);
  });
}

}  // namespace millrace
