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

// f(piece among `parts`, its place in the packed matrices from `first` on): all pieces of the
// matrices of a run that ranks have in parts.
template <class F>
void ForEachPiece(const MuonShape& shape, const MuonRun& run, int64_t first, const View& parts,
                  const View& packed, F&& f) {
  const int64_t whole = shape.rows * shape.columns, part = whole / run.parts;
  for (int64_t i = 0; i < run.count; ++i, first += run.matrices)
    for (int64_t p = 0; p < run.parts; ++p) {
      int64_t from = run.begin + i * run.apart + p * run.part_apart, to = first * whole;
      for (const int64_t block : run.blocks) {
        // Of each matrix's rows, or of one of its columns' blocks: lines end to end.
        const int64_t piece = block / run.parts;
        const bool by_rows = run.dim == 0;
        const int64_t lines = by_rows ? run.matrices : run.matrices * shape.rows,
                      length = by_rows ? piece * shape.columns : piece;
        View of_part = Slice(parts, from, {lines, length});
        of_part.layout.strides[0] = by_rows ? part : shape.columns / run.parts;
        View of_whole = Slice(packed, to + p * length, {lines, length});
        of_whole.layout.strides[0] = by_rows ? whole : shape.columns;
        f(of_part, of_whole);
        from += length;
        to += length * run.parts;
      }
    }
}

}  // namespace

MuonPass::MuonPass(StepBuilder& builder, const GradPass& grads)
    : b_(builder), grads_(grads), dtype_(builder.layout.precision.compute) {
  const int64_t numel = b_.options.muon.batch_numel;
  for (std::vector<MuonRound>& rounds : MuonBatchesOf(b_.layout, numel)) {
    Batch& batch = batches_.emplace_back();
    // A round may have more than a batch should, and what the work needs is not to grow with that.
    for (const MuonShape& shape : MuonShapesOf(rounds))
      for (MuonShape& slice : MuonSlicesOf(shape, numel)) batch.shapes.push_back(std::move(slice));
    batch.rounds = std::move(rounds);
    for (const MuonRound& round : batch.rounds) batch.numel += round.numel();
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
  const auto parts = [](const Batch& batch) { return batch.like().turns > 1; };
  if (b_.options.muon.steps > 1 || std::any_of(batches_.begin(), batches_.end(), parts))
    y_ = add("stepped", numel);
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
    begin += round.numel();
  }
}

template <class F>
void MuonPass::ForEachShard(const Batch& batch, const View& shards, F&& f) const {
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    for (int64_t i = 0; i < std::ssize(round.flats); ++i) {
      const FlatId id = round.flats[static_cast<size_t>(i)];
      const int64_t numel = b_.layout.flat(id).shard_numel;
      f(id, Slice(shards, begin + i / round.places * round.turn_numel + i % round.places * numel,
                  {numel}));
    }
  });
}

void MuonPass::Collect(Batch& batch) {
  const bool shards = batch.like().places > 1, parts = batch.like().turns > 1;
  batch.followed = NewBuffer("muon_followed", batch);
  Follow(batch);
  ZeroIdlePlaces(batch);
  batch.x = batch.followed;
  const auto exchange = [&](const char* what, auto over) {
    const View received = NewBuffer(what, batch);
    (this->*over)(what, batch, batch.x, received);
    batch.x = received;
  };
  if (shards) exchange("muon_collect", &MuonPass::ExchangeShards);
  ZeroIdleTurns(batch);
  if (parts) exchange("muon_join", &MuonPass::ExchangeParts);
}

AxisSet MuonPass::FirstExchange(const Batch& batch) const {
  return batch.like().places > 1 ? FlatOf(batch).shard : batch.like().split;
}

void MuonPass::Follow(const Batch& batch) {
  ForEachShard(batch, batch.followed, [&](FlatId id, const View& shard) {
    const FlatParam& flat = b_.layout.flat(id);
    MuonMomentumOp<View> op;
    op.grad = grads_.final_grad(id);
    op.scalars = b_.State("scalars");
    op.m = b_.Slot("muon_m", id);
    op.out = shard;
    op.momentum = b_.options.muon.momentum;
    op.nesterov = b_.options.muon.nesterov;
    op.shard_axes = flat.shard;
    op.split_axes = batch.like().split;
    op.exchange_axes = FirstExchange(batch);
    b_.Emit(op, StreamId::kCompute, "muon_momentum/" + flat.name, flat.key.unit);
  });
}

void MuonPass::Zero(const char* what, const Batch& batch, const View& in,
                    std::vector<Range> ranges) {
  if (ranges.empty()) return;
  ZeroRangesOp<View> zero;
  zero.flat = in;
  zero.ranges = std::make_shared<const std::vector<Range>>(std::move(ranges));
  b_.Emit(zero, StreamId::kCompute, Label(what, batch), UnitOf(batch));
}

// Of turns that have flats.
void MuonPass::ZeroIdlePlaces(const Batch& batch) {
  std::vector<Range> idle;
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    const int64_t used = std::ssize(round.flats) % round.places,
                  turn = begin + std::ssize(round.flats) / round.places * round.turn_numel;
    if (used > 0)
      idle.push_back({turn + used * (round.turn_numel / round.places), turn + round.turn_numel});
  });
  Zero("muon_idle", batch, batch.followed, std::move(idle));
}

// Nobody sends shards of these.
void MuonPass::ZeroIdleTurns(const Batch& batch) {
  std::vector<Range> idle;
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    if (round.used_turns() < round.turns)
      idle.push_back({begin + round.used_turns() * round.turn_numel, begin + round.numel()});
  });
  Zero("muon_idle_turns", batch, batch.x, std::move(idle));
}

void MuonPass::Orthogonalise(Batch& batch) {
  batch.ortho = NewBuffer("muon_ortho", batch);
  ZeroGaps(batch);
  for (const MuonShape& shape : batch.shapes) Orthogonalise(batch, shape);
}

// What no matrix covers of the results, which weights follow.
void MuonPass::ZeroGaps(const Batch& batch) {
  std::vector<Range> gaps;
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    for (int64_t turn = 0; turn < round.turns; ++turn, begin += round.turn_numel)
      for (const Range& gap : round.gaps) gaps.push_back({begin + gap.begin, begin + gap.end});
  });
  Zero("muon_gaps", batch, batch.ortho, std::move(gaps));
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
    if (run.parts > 1) {
      ForEachPiece(
          shape, run, first, batch.x, WholeView(x_, dtype_, 0),
          [&](const View& part, const View& whole) { Copy("muon_assemble", batch, part, whole); });
      op.x = op.out = Slice(WholeView(x_, dtype_, 0), first * numel, {1, run.size(), numel});
    } else {
      op.x = Slice(batch.x, run.begin, {run.count, run.matrices, numel});
      if (run.count > 1) op.x.layout.strides[0] = run.apart;
      op.out = Slice(WholeView(x_, dtype_, 0), first * numel, {run.count, run.matrices, numel});
    }
    op.eps = b_.options.muon.eps;
    b_.Emit(op, StreamId::kCompute, Label("muon_normalise", batch), UnitOf(batch));
    first += run.size();
  }
}

void MuonPass::Copy(const char* what, const Batch& batch, const View& x, const View& out) {
  CopyRowsOp<View> op;
  op.x = x;
  op.out = out;
  b_.Emit(op, StreamId::kCompute, Label(what, batch), UnitOf(batch));
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

// The last step: its results go where the matrices came from, those with parts by way of the buffer
// that the step does not read.
void MuonPass::StoreProducts(const Batch& batch, const MuonShape& shape, const View& x,
                             const View& polynomial, double scale) {
  const int64_t rows = shape.rows, columns = shape.columns, side = SideOf(shape);
  const double own = scale * b_.options.muon.coefficients[0];
  const View packed = WholeView(x.buffer == x_ ? y_ : x_, dtype_, 0);
  const auto store = [&](int64_t first, int64_t matrices, const View& out) {
    const View from = Slice(x, first * rows * columns, {matrices, rows, columns}),
               by = Slice(polynomial, first * side * side, {matrices, side, side});
    EmitProduct("muon_last", batch, IsTall(shape) ? from : by, IsTall(shape) ? by : from, out, 1,
                from, own);
  };
  int64_t first = 0;
  for (const MuonRun& run : shape.runs) {
    if (run.parts > 1) {
      store(first, run.size(), Slice(packed, first * rows * columns, {run.size(), rows, columns}));
      ForEachPiece(shape, run, first, batch.ortho, packed,
                   [&](const View& part, const View& whole) {
                     Copy("muon_take_apart", batch, whole, part);
                   });
    } else {
      for (int64_t i = 0; i < run.count; ++i)
        store(first + i * run.matrices, run.matrices,
              Slice(batch.ortho, run.begin + i * run.apart, {run.matrices, rows, columns}));
    }
    first += run.size();
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

void MuonPass::ExchangeShards(const char* what, const Batch& batch, const View& sent,
                              const View& received) {
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    for (int64_t turn = 0; turn < round.used_turns(); ++turn, begin += round.turn_numel)
      Exchange(what, batch, Slice(sent, begin, {round.turn_numel}),
               Slice(received, begin, {round.turn_numel}), FlatOf(batch).shard);
  });
}

void MuonPass::ExchangeParts(const char* what, const Batch& batch, const View& sent,
                             const View& received) {
  ForEachRound(batch, [&](const MuonRound& round, int64_t begin) {
    Exchange(what, batch, Slice(sent, begin, {round.numel()}),
             Slice(received, begin, {round.numel()}), round.split);
  });
}

void MuonPass::Exchange(const char* what, const Batch& batch, const View& sent,
                        const View& received, AxisSet axes) {
  AllToAllOp<View> op;
  op.sent = sent;
  op.received = received;
  op.axes = axes;
  b_.Emit(op, StreamId::kReduce, Label(what, batch), UnitOf(batch));
}

void MuonPass::SendBack(Batch& batch) {
  batch.steps = batch.ortho;
  const auto exchange = [&](const char* what, auto over) {
    const View received = NewBuffer(what, batch);
    (this->*over)(what, batch, batch.steps, received);
    batch.steps = received;
  };
  if (batch.like().turns > 1) exchange("muon_part", &MuonPass::ExchangeParts);
  if (batch.like().places > 1) exchange("muon_return", &MuonPass::ExchangeShards);
}

void MuonPass::Update(const Batch& batch) {
  ForEachShard(batch, batch.steps, [&](FlatId id, const View& shard) {
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
    op.split_axes = batch.like().split;
    op.exchange_axes = FirstExchange(batch);
    b_.Emit(op, StreamId::kCompute, "muon_update/" + flat.name, flat.key.unit);
  });
}

}  // namespace millrace
