#include "runtime/plan/lower/row_linears.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 8;  // elements of bf16 in 16 bytes

bool IsDense(const View& view) {
  return view.layout.contiguous() && view.layout.dtype == DType::kBF16 && view.rank_stride == 0 &&
         view.microbatch_stride == 0 && view.offset % kAlignment == 0;
}
bool IsSame(const View& a, const View& b) { return a.buffer == b.buffer && a.offset == b.offset; }

class RowLinears {
 public:
  explicit RowLinears(Program* program) : program_(*program), uses_(program->buffers.size(), 0) {
    for (const auto* ops : {&program->prologue, &program->forward, &program->backward})
      for (const ProgramOp& op : *ops)
        ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
          ++uses_[static_cast<size_t>(view.buffer.value)];
        });
  }

  void Run() {
    std::vector<ProgramOp> ops = std::exchange(program_.forward, {});
    for (size_t i = 0; i < ops.size();) {
      const auto* product = std::get_if<MatmulOp<View>>(&ops[i].op);
      std::optional<RowLinearOp<View>> row = product ? Begin(*product) : std::nullopt;
      if (!row) {
        done_.push_back(std::move(ops[i++]));
        continue;
      }
      ProgramOp joined = ops[i];
      std::string with;
      const View sum = TakeNorm(&*row, &with);
      if (row->in_order && row->norm == RowNorm::kNone) {
        done_.push_back(std::move(ops[i++]));
        continue;
      }
      const bool follows = ++i < ops.size() && TakeFinish(ops[i].op, *product, &*row);
      if (follows) with += (with.empty() ? "" : " and ") + ops[i++].label;
      if (!with.empty())
        program_.choices.push_back(fmt::format("{}: one kernel with {}", joined.label, with));
      joined.op = *row;
      done_.push_back(std::move(joined));
      if (row->sum) Rename(sum.buffer, row->sum.buffer, &ops, i);
    }
    program_.forward = std::move(done_);
  }

 private:
  // The op and the one whose result it reads use the buffer, and nobody else.
  bool BetweenTwo(const View& view) const {
    return uses_[static_cast<size_t>(view.buffer.value)] == 2 &&
           program_.buffer(view.buffer).role == ProgramRole::kActivation;
  }

  static std::optional<RowLinearOp<View>> Begin(const MatmulOp<View>& op) {
    const View weight = Transposed(op.b);
    if (op.a.layout.dims[0] != 1 || !IsDense(op.a) || !IsDense(weight) || !IsDense(op.out) ||
        (op.bias && !IsDense(op.bias)) || op.rounds_once() || op.scaling != Scaling::kNone ||
        op.like_rows > 0 || op.pre || op.magnitude || op.epilogue == Epilogue::kGeluGrad)
      return std::nullopt;
    RowLinearOp<View> row;
    row.in_order = op.in_order;
    row.x = op.a;
    row.weight = weight;
    row.bias = op.bias;
    row.out = op.out;
    if (op.epilogue == Epilogue::kGelu || op.epilogue == Epilogue::kBiasGelu)
      row.finish = RowFinish::kGelu;
    return row.in_order || Fits(row) ? std::optional(row) : std::nullopt;
  }

  static bool Fits(const RowLinearOp<View>& row) {
    return WhyUnsupported(ConvertOp<RowLinearOp, View, Shape>(
                              row,
                              [](const View& view) {
                                return Shape{view.layout, static_cast<bool>(view)};
                              }),
                          Backend::kCuda)
        .empty();
  }

  // The norm that was lowered last, if only this op reads what it makes. Returns the view of the
  // sum that it would have made: often in place, where blocks that share the norm would still read.
  View TakeNorm(RowLinearOp<View>* row, std::string* with) {
    const auto* norm = done_.empty() ? nullptr : std::get_if<NormOp<View>>(&done_.back().op);
    if (norm == nullptr || !IsSame(norm->out, row->x) || !BetweenTwo(norm->out)) return {};
    for (const View* view : {&norm->x, &norm->residual, &norm->sum, &norm->weight, &norm->bias})
      if (*view && !IsDense(*view)) return {};
    for (const View* view : {&norm->mean, &norm->rstd})
      if (*view && uses_[static_cast<size_t>(view->buffer.value)] != 1) return {};
    if (norm->magnitude ||
        (norm->sum && program_.buffer(norm->sum.buffer).role != ProgramRole::kActivation))
      return {};
    RowLinearOp<View> with_norm = *row;
    with_norm.norm = norm->kind == NormKind::kLayer ? RowNorm::kLayer : RowNorm::kRms;
    with_norm.eps = norm->eps;
    with_norm.x = norm->x;
    with_norm.residual = norm->residual;
    with_norm.norm_weight = norm->weight;
    with_norm.norm_bias = norm->bias;
    if (!Fits(with_norm)) return {};
    const View sum = norm->sum;
    if (sum) {
      with_norm.sum = sum;
      with_norm.sum.buffer = {static_cast<int32_t>(program_.buffers.size())};
      ProgramBuffer buffer = program_.buffer(sum.buffer);
      buffer.name = done_.back().label + ".sum";
      program_.buffers.push_back(std::move(buffer));
      uses_.push_back(0);
    }
    *row = with_norm;
    *with = done_.back().label;
    done_.pop_back();
    return sum;
  }

  // Whether `op`, which comes next, is done by the product as well.
  bool TakeFinish(const KernelOp& op, const MatmulOp<View>& product, RowLinearOp<View>* row) const {
    if (row->finish != RowFinish::kNone) return false;
    if (const auto* activation = std::get_if<ActivationOp<View>>(&op)) {
      if (activation->kind != ActivationKind::kSwiglu || activation->magnitude ||
          !IsSame(activation->x, product.out) || !BetweenTwo(product.out) ||
          !IsDense(activation->out) || row->in_order)
        return false;
      row->finish = RowFinish::kSwiglu;
      row->out = activation->out;
      return true;
    }
    if (const auto* turn = std::get_if<RopeRowsOp<View>>(&op)) {
      const int64_t columns = product.out.layout.dims[1], depth = turn->x.layout.dims[2];
      if (!IsSame(turn->x, product.out) || turn->x.layout.strides[1] != depth ||
          columns % depth != 0 || row->in_order)
        return false;
      row->finish = RowFinish::kRotate;
      row->turned = turn->x.layout.dims[1];
      row->at = turn->at;
      row->table = turn->table;
      return true;
    }
    if (const auto* cast = std::get_if<CastOp<View>>(&op)) {
      if (!IsSame(cast->x, product.out) || !BetweenTwo(product.out) ||
          cast->out.layout.dtype != DType::kF32 ||
          cast->out.layout.numel() != product.out.layout.numel())
        return false;
      row->out = cast->out;
      row->out.layout = DenseLayout(DType::kF32, {1, product.out.layout.dims[1]});
      return true;
    }
    return false;
  }

  // In ops from `begin` on.
  static void Rename(BufferId from, BufferId to, std::vector<ProgramOp>* ops, size_t begin) {
    for (size_t i = begin; i < ops->size(); ++i)
      ForEachView((*ops)[i].op, [&](View& view, Update*, std::string_view) {
        if (view.buffer == from) view.buffer = to;
      });
  }

  Program& program_;
  std::vector<int> uses_;  // by buffer, as the program was
  std::vector<ProgramOp> done_;
};

}  // namespace

void JoinRowLinears(const SemanticGraph& graph, const LowerOptions& options, Program* program) {
  if (options.backend != Backend::kCuda || !graph.cache || graph.shape.rows() != 1) return;
  RowLinears(program).Run();
}

}  // namespace millrace
