#include "runtime/plan/schedule/muon_pass.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "runtime/plan/schedule/update.h"

namespace millrace {
namespace {

View MatrixView(const View& flat, const MuonMatrix& matrix) {
  View view = flat;
  view.offset += matrix.begin;
  view.layout = DenseLayout(flat.layout.dtype, {matrix.rows, matrix.columns});
  return view;
}

View Elements(const View& flat, const MuonMatrix& matrix) {
  View view = MatrixView(flat, matrix);
  view.layout = DenseLayout(flat.layout.dtype, {matrix.numel()});
  return view;
}

View SquareView(BufferId buffer, DType dtype, int64_t rows) {
  View view = WholeView(buffer, dtype, rows * rows);
  view.layout = DenseLayout(dtype, {rows, rows});
  return view;
}

View Turned(View view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// The side of the gram matrix.
int64_t SideOf(const MuonMatrix& matrix) { return std::min(matrix.rows, matrix.columns); }

// What an orthogonal matrix is multiplied by, beside the learning rate.
double AdjustmentOf(MuonAdjust adjust, const MuonMatrix& matrix) {
  const double rows = static_cast<double>(matrix.rows),
               columns = static_cast<double>(matrix.columns);
  if (adjust == MuonAdjust::kOriginal) return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

MuonPass::MuonPass(StepBuilder& builder, const GradPass& grads)
    : b_(builder), grads_(grads), dtype_(builder.layout.precision.compute) {
  for (MuonRound& round : MuonRoundsOf(b_.layout))
    rounds_.push_back({std::move(round), {}, {}, {}, {}});
}

void MuonPass::Emit() {
  if (rounds_.empty()) return;
  AddWork();
  Collect(rounds_.front());
  for (size_t r = 0; r < rounds_.size(); ++r) {
    if (r + 1 < rounds_.size()) Collect(rounds_[r + 1]);
    Orthogonalise(rounds_[r]);
    SendBack(rounds_[r]);
    if (r > 0) Update(rounds_[r - 1]);
  }
  Update(rounds_.back());
}

void MuonPass::AddWork() {
  int64_t side = 0;
  for (const Round& round : rounds_)
    for (const MuonMatrix& matrix : round.of.matrices) side = std::max(side, SideOf(matrix));
  const auto add = [&](const char* name, int64_t bytes) {
    return b_.AddBuffer(fmt::format("muon_{}", name), bytes, BufferClass::kOptimizer,
                        BufferScope::kStep);
  };
  gram_ = add("gram", side * side * Bytes(dtype_));
  square_ = add("square", side * side * Bytes(DType::kF32));
  polynomial_ = add("polynomial", side * side * Bytes(dtype_));
  sum_ = add("sum_squares", Bytes(DType::kF64));
}

std::string MuonPass::Label(const char* what, const Round& round) const {
  return fmt::format("{}/{}", what, FlatOf(round).name);
}

View MuonPass::NewFlat(const char* what, const Round& round) {
  const int64_t numel = FlatOf(round).padded_numel;
  return WholeView(b_.AddBuffer(Label(what, round), numel * Bytes(dtype_), BufferClass::kOptimizer,
                                BufferScope::kStep),
                   dtype_, numel);
}

View MuonPass::ShardOf(const View& shards, size_t place, const Round& round) const {
  View shard = shards;
  shard.offset = static_cast<int64_t>(place) * FlatOf(round).shard_numel;
  shard.layout = DenseLayout(dtype_, {FlatOf(round).shard_numel});
  return shard;
}

void MuonPass::Collect(Round& round) {
  const FlatParam& flat = FlatOf(round);
  const bool exchanges = b_.Shards(round.of.flats[0]) > 1;
  round.x = NewFlat("muon_x", round);
  round.sent = exchanges ? NewFlat("muon_sent", round) : round.x;
  for (size_t i = 0; i < round.of.flats.size(); ++i) {
    const FlatId id = round.of.flats[i];
    MuonMomentumOp<View> op;
    op.grad = grads_.final_grad(id);
    op.scalars = b_.State("scalars");
    op.m = b_.Slot("muon_m", id);
    op.out = ShardOf(round.sent, i, round);
    op.momentum = b_.options.muon.momentum;
    op.nesterov = b_.options.muon.nesterov;
    op.shard_axes = flat.shard;
    b_.Emit(op, StreamId::kCompute, "muon_momentum/" + b_.layout.flat(id).name,
            b_.layout.flat(id).key.unit);
  }
  if (!exchanges) return;
  const int64_t used = static_cast<int64_t>(round.of.flats.size()) * flat.shard_numel;
  if (used < flat.padded_numel) {
    ZeroRangesOp<View> zero;
    zero.flat = round.sent;
    zero.ranges =
        std::make_shared<const std::vector<Range>>(std::vector<Range>{{used, flat.padded_numel}});
    b_.Emit(zero, StreamId::kCompute, Label("muon_idle", round), flat.key.unit);
  }
  Exchange("muon_collect", round, round.sent, round.x);
}

void MuonPass::Orthogonalise(Round& round) {
  const FlatParam& flat = FlatOf(round);
  const MuonHyper& muon = b_.options.muon;
  round.y = NewFlat("muon_y", round);
  // Where the last step writes y, nobody has written its gaps; those of x came with the shards.
  if (muon.steps % 2 == 1 && !flat.gaps.empty()) {
    ZeroRangesOp<View> zero;
    zero.flat = round.y;
    zero.ranges = std::make_shared<const std::vector<Range>>(flat.gaps);
    b_.Emit(zero, StreamId::kCompute, Label("muon_gaps", round), flat.key.unit);
  }
  for (const MuonMatrix& matrix : round.of.matrices) {
    SumSquaresOp<View> sum;
    sum.x = Elements(round.x, matrix);
    sum.out = WholeView(sum_, DType::kF64, 1);
    b_.Emit(sum, StreamId::kCompute, Label("muon_norm", round), flat.key.unit);
    MuonNormaliseOp<View> normalise;
    normalise.sum_squares = sum.out;
    normalise.x = sum.x;
    normalise.eps = muon.eps;
    b_.Emit(normalise, StreamId::kCompute, Label("muon_normalise", round), flat.key.unit);
    for (int step = 0; step < muon.steps; ++step) {
      const bool last = step + 1 == muon.steps;
      Step(round, matrix, step % 2 == 0 ? round.x : round.y, step % 2 == 0 ? round.y : round.x,
           last ? AdjustmentOf(muon.adjust, matrix) : 1);
    }
  }
  if (muon.steps % 2 == 1) std::swap(round.x, round.y);
}

// to = scale * (a X + b G X + c G G X), X the matrix in `from`, G = X X^T; of a matrix with more
// rows than columns the same from the right, with the smaller X^T X.
void MuonPass::Step(const Round& round, const MuonMatrix& matrix, const View& from, const View& to,
                    double scale) {
  const UnitId unit = FlatOf(round).key.unit;
  const View x = MatrixView(from, matrix);
  const bool tall = matrix.rows > matrix.columns;
  const int64_t side = SideOf(matrix);
  MatmulOp<View> gram;
  gram.a = tall ? Turned(x) : x;
  gram.b = tall ? x : Turned(x);
  gram.out = SquareView(gram_, dtype_, side);
  b_.Emit(gram, StreamId::kCompute, Label("muon_gram", round), unit);
  MatmulOp<View> square;
  square.a = square.b = gram.out;
  square.out = SquareView(square_, DType::kF32, side);
  b_.Emit(square, StreamId::kCompute, Label("muon_square", round), unit);
  MuonPolynomialOp<View> polynomial;
  polynomial.gram = gram.out;
  polynomial.square = square.out;
  polynomial.out = SquareView(polynomial_, dtype_, side);
  polynomial.coefficients = b_.options.muon.coefficients;
  for (double& coefficient : polynomial.coefficients) coefficient *= scale;
  b_.Emit(polynomial, StreamId::kCompute, Label("muon_polynomial", round), unit);
  MatmulOp<View> product;
  product.a = tall ? x : polynomial.out;
  product.b = tall ? polynomial.out : x;
  product.out = MatrixView(to, matrix);
  b_.Emit(product, StreamId::kCompute, Label("muon_step", round), unit);
}

void MuonPass::Exchange(const char* what, const Round& round, const View& sent,
                        const View& received) {
  AllToAllOp<View> op;
  op.sent = sent;
  op.received = received;
  op.axes = FlatOf(round).shard;
  b_.Emit(op, StreamId::kReduce, Label(what, round), FlatOf(round).key.unit);
}

void MuonPass::SendBack(Round& round) {
  round.back = round.x;
  if (b_.Shards(round.of.flats[0]) == 1) return;
  round.back = NewFlat("muon_back", round);
  Exchange("muon_return", round, round.x, round.back);
}

void MuonPass::Update(const Round& round) {
  for (size_t i = 0; i < round.of.flats.size(); ++i) {
    const FlatId id = round.of.flats[i];
    const FlatParam& flat = b_.layout.flat(id);
    MuonUpdateOp<View> op;
    op.ortho = ShardOf(round.back, i, round);
    op.scalars = b_.State("scalars");
    op.master = b_.Master(id);
    op.compute = b_.Compute(id);
    op.lr_scale = b_.options.muon.lr_scale;
    op.weight_decay = b_.options.muon.weight_decay;
    op.segments = SegmentsOf(b_, id);
    if (op.segments) op.flat_begin = RankInt(0, flat.shard_numel, flat.shard);
    op.shard_axes = flat.shard;
    b_.Emit(op, StreamId::kCompute, "muon_update/" + flat.name, flat.key.unit);
  }
}

}  // namespace millrace
