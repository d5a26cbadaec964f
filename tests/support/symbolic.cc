#include "tests/support/symbolic.h"

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/attention.h"
#include "runtime/plan/nodes/attention/head_norm.h"
#include "runtime/plan/nodes/attention/rope.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"

namespace millrace::test {
namespace {

constexpr Symbol kUndefined = 0;

Symbol Of(std::string_view op, std::initializer_list<Symbol> operands) {
  Symbol hash = 14695981039346656037ull;
  const auto mix = [&](uint64_t x) {
    hash ^= x + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    hash *= 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 29;
  };
  for (const char c : op) mix(static_cast<unsigned char>(c));
  for (const Symbol operand : operands) mix(operand);
  return hash | 1;
}

Symbol OfParam(ParamId id) { return Of("param", {static_cast<Symbol>(id.value)}); }
Symbol OfSum(Symbol a, Symbol b) { return a < b ? Of("add", {a, b}) : Of("add", {b, a}); }
Symbol OfProduct(Symbol a, bool a_transposed, Symbol b, bool b_transposed, Symbol bias) {
  return Of("matmul", {a, a_transposed, b, b_transposed, bias});
}
constexpr std::string_view kNormParts[] = {"norm.out", "norm.mean", "norm.rstd"};
constexpr std::string_view kNormSums[] = {"norm_sums.d_weight", "norm_sums.d_bias"};

class GraphEvaluator {
 public:
  explicit GraphEvaluator(const SemanticGraph& graph, int64_t chunks)
      : graph_(graph), chunks_(chunks), symbols_(graph.values.size()) {
    for (size_t i = 0; i < symbols_.size(); ++i) {
      const Value& value = graph.values[i];
      if (value.role == ValueRole::kParam) symbols_[i] = OfParam(value.param);
      if (value.role == ValueRole::kInput) {
        const InputSpec& input = graph.inputs[static_cast<size_t>(value.input.value)];
        symbols_[i] = Of(input.source, {static_cast<Symbol>(input.shift)});
      }
    }
  }

  Symbols Run() {
    for (const std::vector<Node>* nodes : {&graph_.prologue, &graph_.forward, &graph_.backward})
      for (const Node& node : *nodes) Evaluate(node);
    return result_;
  }

 private:
  Symbol In(const Node& node, size_t i) const {
    if (i >= node.inputs.size() || !node.inputs[i]) return kUndefined;
    const Symbol symbol = symbols_[static_cast<size_t>(node.inputs[i].value)];
    if (symbol == kUndefined) throw std::logic_error(node.label + " reads an undefined value");
    return symbol;
  }
  void Out(const Node& node, size_t i, Symbol symbol) {
    if (i < node.outputs.size() && node.outputs[i])
      symbols_[static_cast<size_t>(node.outputs[i].value)] = symbol;
  }
  void Grad(const Node& node, size_t i, Symbol symbol) {
    if (i < node.grads.size() && node.grads[i])
      result_.gradients[graph_.value(node.grads[i]).param].push_back(symbol);
  }

  void Evaluate(const Node& n) {
    const Symbol a = In(n, 0), b = In(n, 1), c = In(n, 2), d = In(n, 3), e = In(n, 4);
    if (n.kind == &kEmbeddingNode) return Out(n, 0, Of("embed", {a, b, c}));
    if (n.kind == &kNormNode) {
      for (size_t i = 0; i < 3; ++i)
        Out(n, i, Of(kNormParts[i], {a, i == 0 ? b : 0, i == 0 ? c : 0}));
      return;
    }
    if (n.kind == &kHeadNormNode) {
      Out(n, 0, Of("head_norm.out", {a, b, c}));
      return Out(n, 1, Of("head_norm.rstd", {a}));
    }
    if (n.kind == &kLinearNode) return Out(n, 0, OfProduct(a, false, b, true, c));
    if (n.kind == &kRopeNode) return Out(n, 0, Of("rope", {a, b, 0}));
    if (n.kind == &kRopeGradNode) return Out(n, 0, Of("rope", {a, b, 1}));
    if (n.kind == &kAttentionNode) {
      Out(n, 0, Of("attention.out", {a}));
      return Out(n, 1, Of("attention.lse", {a}));
    }
    if (n.kind == &kAddNode) return Out(n, 0, OfSum(a, b));
    if (n.kind == &kActivationNode)
      return Out(n, 0, Of("activation", {a, static_cast<Symbol>(Attrs<ActivationAttrs>(n).kind)}));
    if (n.kind == &kHeadLossNode) {
      const bool gradient = static_cast<bool>(n.outputs[1]);
      const Symbol logits = OfProduct(a, false, b, true, 0),
                   d_logits = Of("cross_entropy.d_logits", {logits, c});
      Symbol loss = 0;
      for (int64_t i = 0; i < chunks_; ++i) {
        loss = Of("cross_entropy.loss", {logits, c, loss});
        if (gradient) Grad(n, 0, OfProduct(d_logits, true, a, false, 0));
      }
      result_.loss = loss;
      return Out(n, 1, OfProduct(d_logits, false, b, false, 0));
    }
    if (n.kind == &kHeadLogitsNode) {
      result_.logits = OfProduct(Of("select_row", {a}), false, b, true, 0);
      return;
    }
    if (n.kind == &kRopeTableNode) return Out(n, 0, Of("rope_table", {}));
    if (n.kind == &kEmbeddingGradNode) {
      Grad(n, 0, Of("embed_grad.table", {a, b}));
      return Grad(n, 1, Of("embed_grad.positions", {a, b}));
    }
    if (n.kind == &kNormGradNode) {
      Out(n, 0, Of("norm_grad.d_x", {a, b, c, d, e}));
      const Symbol partials = Of("norm_grad.partials", {a, b, d, e});
      for (size_t i = 0; i < 2; ++i) Grad(n, i, Of(kNormSums[i], {partials}));
      return;
    }
    if (n.kind == &kHeadNormGradNode) {
      Out(n, 0, Of("head_norm_grad.d_x", {a, b, c, d, e}));
      Grad(n, 0, Of("head_norm_grad.d_q_weight", {a, b, e}));
      return Grad(n, 1, Of("head_norm_grad.d_k_weight", {a, b, e}));
    }
    if (n.kind == &kLinearGradInputNode) return Out(n, 0, OfProduct(a, false, b, false, 0));
    if (n.kind == &kLinearGradWeightNode) return Grad(n, 0, OfProduct(a, true, b, false, 0));
    if (n.kind == &kBiasGradNode) return Grad(n, 0, Of("column_sum", {a}));
    if (n.kind == &kAttentionGradNode) return Out(n, 0, Of("attention_grad", {a, b, c, d}));
    if (n.kind == &kActivationGradNode)
      return Out(
          n, 0, Of("activation_grad", {a, b, static_cast<Symbol>(Attrs<ActivationAttrs>(n).kind)}));
    throw std::logic_error(n.label + ": a node of a kind without symbols");
  }

  const SemanticGraph& graph_;
  int64_t chunks_;
  std::vector<Symbol> symbols_;
  Symbols result_;
};

bool IsTransposed(const View& view) { return view.layout.strides[1] != 1; }

class ProgramExecutor {
 public:
  explicit ProgramExecutor(const Program& program) : program_(program) {
    for (const ProgramBuffer& buffer : program.buffers) {
      const auto rows = static_cast<size_t>(buffer.layout.rank > 0 ? buffer.layout.dims[0] : 1);
      Symbol initial = kUndefined;
      if (buffer.role == ProgramRole::kParam) initial = OfParam(buffer.param);
      rows_.emplace_back(rows, initial);
    }
  }

  Symbols Run() {
    for (const std::vector<ProgramOp>* ops :
         {&program_.prologue, &program_.forward, &program_.backward})
      for (const ProgramOp& op : *ops) {
        op_ = &op;
        CheckAliasing();
        std::visit([&](const auto& typed) { Execute(typed); }, op.op);
      }
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].role == ProgramRole::kLoss) result_.loss = rows_[i][0];
      if (program_.buffers[i].role == ProgramRole::kLogits) result_.logits = rows_[i][0];
    }
    return result_;
  }

 private:
  [[noreturn]] void Fail(std::string_view what, const View& view) const {
    throw std::logic_error(op_->label + ": " + std::string(what) + " %" +
                           std::to_string(view.buffer.value));
  }
  const ProgramBuffer& BufferOf(const View& view) const {
    return program_.buffers[static_cast<size_t>(view.buffer.value)];
  }

  // Rows of its buffer that a view touches, [first, second).
  std::pair<size_t, size_t> RowsOf(const View& view) const {
    const Layout& whole = BufferOf(view).layout;
    const int64_t row = whole.rank > 0 ? whole.strides[0] : 1;
    const int64_t end = view.offset + view.layout.span_bytes() / Bytes(view.layout.dtype);
    if (end > whole.numel()) Fail("a view ends beyond", view);
    return {static_cast<size_t>(view.offset / row), static_cast<size_t>((end + row - 1) / row)};
  }

  Symbol Read(const View& view) const {
    if (!view) return kUndefined;
    if (BufferOf(view).role == ProgramRole::kInput)
      return Of(BufferOf(view).name, {static_cast<Symbol>(view.offset)});
    const std::vector<Symbol>& content = rows_[static_cast<size_t>(view.buffer.value)];
    const auto [first, last] = RowsOf(view);
    for (size_t row = first; row < last; ++row) {
      if (content[row] == kUndefined) Fail("reads what nobody has written in", view);
      if (content[row] != content[first]) Fail("reads a mixture of values in", view);
    }
    return content[first];
  }

  void Write(const View& view, Symbol symbol) {
    if (!view) return;
    const auto [first, last] = RowsOf(view);
    for (size_t row = first; row < last; ++row)
      rows_[static_cast<size_t>(view.buffer.value)][row] = symbol;
  }

  void Contribute(const View& view, Update update, Symbol symbol) {
    if (!view) return;
    if (BufferOf(view).role != ProgramRole::kParamGrad) {
      if (update == Update::kAccumulate) Fail("accumulates into", view);
      return Write(view, symbol);
    }
    if (view.layout.numel() != BufferOf(view).layout.numel()) Fail("does not cover", view);
    std::vector<Symbol>& contributions = result_.gradients[BufferOf(view).param];
    if (contributions.empty() != (update == Update::kOverwrite)) Fail("wrong update of", view);
    contributions.push_back(symbol);
  }

  // An output overlaps an input of the same op only where model_ops.h allows it.
  void CheckAliasing() const {
    const std::map<std::string, std::string> allowed = {
        {"norm", " sum/x sum/residual "},         {"norm_grad", " d_x/d_bypass d_x/d_out "},
        {"head_norm_grad", " d_x/d_out "},        {"add", " out/a out/b "},
        {"activation_grad", " d_x/x d_x/d_out "},
    };
    struct Use {
      View view;
      std::string name;
    };
    std::vector<Use> inputs, outputs;
    ForEachUse(op_->op, [&](const View& view, Access access, std::string_view name) {
      (access == Access::kRead ? inputs : outputs).push_back({view, std::string(name)});
    });
    const auto found = allowed.find(std::string(OpName(op_->op)));
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Use& out = outputs[o];
      for (const Use& in : inputs)
        if (Overlap(out.view, in.view) &&
            (found == allowed.end() ||
             found->second.find(" " + out.name + "/" + in.name + " ") == std::string::npos))
          Fail(out.name + " overlaps " + in.name + " in", out.view);
      const bool interleaved =
          OpName(op_->op) == "attention_grad";  // d_q, d_k, d_v: columns of the same rows
      for (size_t p = 0; p < o && !interleaved; ++p)
        if (Overlap(out.view, outputs[p].view))
          Fail(out.name + " overlaps " + outputs[p].name + " in", out.view);
    }
  }
  bool Overlap(const View& a, const View& b) const {
    if (a.buffer != b.buffer) return false;
    const auto [a_first, a_last] = RowsOf(a);
    const auto [b_first, b_last] = RowsOf(b);
    return a_first < b_last && b_first < a_last;
  }

  void Execute(const EmbedOp<View>& op) {
    Write(op.out, Of("embed", {Read(op.tokens), Read(op.table), Read(op.positions)}));
  }
  void Execute(const EmbedGradOp<View>& op) {
    const Symbol tokens = Read(op.tokens), d_out = Read(op.d_out);
    Contribute(op.d_table, op.table_update, Of("embed_grad.table", {tokens, d_out}));
    Contribute(op.d_positions, op.positions_update, Of("embed_grad.positions", {tokens, d_out}));
  }
  void Execute(const NormOp<View>& op) {
    const Symbol sum = op.residual ? OfSum(Read(op.x), Read(op.residual)) : Read(op.x);
    const Symbol weight = Read(op.weight), bias = Read(op.bias);
    Write(op.sum, sum);
    Write(op.out, Of(kNormParts[0], {sum, weight, bias}));
    Write(op.mean, Of(kNormParts[1], {sum, 0, 0}));
    Write(op.rstd, Of(kNormParts[2], {sum, 0, 0}));
  }
  void Execute(const NormGradOp<View>& op) {
    const Symbol a = Read(op.d_out), b = Read(op.x), c = Read(op.weight), d = Read(op.mean),
                 e = Read(op.rstd), own = Of("norm_grad.d_x", {a, b, c, d, e});
    Write(op.d_x, op.d_bypass ? OfSum(own, Read(op.d_bypass)) : own);
    Write(op.partials, Of("norm_grad.partials", {a, b, d, e}));
  }
  void Execute(const NormSumsOp<View>& op) {
    const Symbol partials = Read(op.partials);
    Contribute(op.d_weight, op.weight_update, Of(kNormSums[0], {partials}));
    Contribute(op.d_bias, op.bias_update, Of(kNormSums[1], {partials}));
  }
  void Execute(const HeadNormOp<View>& op) {
    const Symbol x = Read(op.x);
    Write(op.out, Of("head_norm.out", {x, Read(op.q_weight), Read(op.k_weight)}));
    Write(op.rstd, Of("head_norm.rstd", {x}));
  }
  void Execute(const HeadNormGradOp<View>& op) {
    const Symbol d_out = Read(op.d_out), x = Read(op.x), rstd = Read(op.rstd);
    Write(op.d_x, Of("head_norm_grad.d_x", {d_out, x, Read(op.q_weight), Read(op.k_weight), rstd}));
    Contribute(op.d_q_weight, op.q_update, Of("head_norm_grad.d_q_weight", {d_out, x, rstd}));
    Contribute(op.d_k_weight, op.k_update, Of("head_norm_grad.d_k_weight", {d_out, x, rstd}));
  }
  void Execute(const MatmulOp<View>& op) {
    const Symbol product =
        OfProduct(Read(op.a), IsTransposed(op.a), Read(op.b), IsTransposed(op.b), Read(op.bias));
    if ((op.epilogue == Epilogue::kBias || op.epilogue == Epilogue::kBiasGelu) !=
        static_cast<bool>(op.bias))
      Fail("epilogue and bias disagree in", op.out);
    if (op.epilogue == Epilogue::kGeluGrad)
      return Contribute(op.out, op.update,
                        Of("activation_grad",
                           {Read(op.pre), product, static_cast<Symbol>(ActivationKind::kGelu)}));
    if (op.epilogue != Epilogue::kGelu && op.epilogue != Epilogue::kBiasGelu)
      return Contribute(op.out, op.update, product);
    Write(op.pre, product);
    Contribute(op.out, op.update,
               Of("activation", {product, static_cast<Symbol>(ActivationKind::kGelu)}));
  }
  void Execute(const ColumnSumOp<View>& op) {
    Contribute(op.out, op.update, Of("column_sum", {Read(op.x)}));
  }
  void Execute(const RopeTableOp<View>& op) { Write(op.table, Of("rope_table", {})); }
  void Execute(const RopeOp<View>& op) {
    Write(op.x, Of("rope", {Read(op.x), Read(op.table), op.direction == RopeDirection::kInverse}));
  }
  void Execute(const AttentionOp<View>& op) {
    const Symbol qkv = Read(op.q);
    if (Read(op.k) != qkv || Read(op.v) != qkv)
      Fail("q, k and v come from different values in", op.q);
    Write(op.out, Of("attention.out", {qkv}));
    Write(op.lse, Of("attention.lse", {qkv}));
  }
  void Execute(const AttentionGradOp<View>& op) {
    const Symbol qkv = Read(op.q);
    if (Read(op.k) != qkv || Read(op.v) != qkv)
      Fail("q, k and v come from different values in", op.q);
    const Symbol d_qkv = Of("attention_grad", {qkv, Read(op.out), Read(op.lse), Read(op.d_out)});
    for (const View* view : {&op.d_q, &op.d_k, &op.d_v}) Write(*view, d_qkv);
  }
  void Execute(const AddOp<View>& op) { Write(op.out, OfSum(Read(op.a), Read(op.b))); }
  void Execute(const CopyRowsOp<View>& op) { Write(op.out, Of("copy_rows", {Read(op.x)})); }
  void Execute(const AddBiasOp<View>& op) {
    Write(op.out, Of("add_bias", {Read(op.x), Read(op.bias)}));
  }
  void Execute(const ActivationOp<View>& op) {
    Write(op.out, Of("activation", {Read(op.x), static_cast<Symbol>(op.kind)}));
  }
  void Execute(const ActivationGradOp<View>& op) {
    if (IsGated(op.kind) && Overlap(op.d_x, op.d_out))
      Fail("swiglu: d_x overlaps d_out in", op.d_x);
    Write(op.d_x,
          Of("activation_grad", {Read(op.x), Read(op.d_out), static_cast<Symbol>(op.kind)}));
  }
  void Execute(const CrossEntropyOp<View>& op) {
    const Symbol logits = Read(op.logits), targets = Read(op.targets);
    const Symbol before = op.loss_update == Update::kAccumulate ? Read(op.loss_sum) : kUndefined;
    Write(op.loss_sum, Of("cross_entropy.loss", {logits, targets, before}));
    if (op.output == LossOutput::kLossAndGradient)
      Write(op.logits, Of("cross_entropy.d_logits", {logits, targets}));
  }
  void Execute(const SelectRowOp<View>& op) { Write(op.out, Of("select_row", {Read(op.x)})); }
  template <class Other>
  void Execute(const Other&) {
    throw std::logic_error(op_->label + ": not an op of a model");
  }

  const Program& program_;
  const ProgramOp* op_ = nullptr;
  std::vector<std::vector<Symbol>> rows_;  // by buffer: the symbol of each row (of dims[0])
  Symbols result_;
};

}  // namespace

Symbols Evaluate(const SemanticGraph& graph, int64_t loss_chunks) {
  return GraphEvaluator(graph, loss_chunks).Run();
}

Symbols Execute(const Program& program) { return ProgramExecutor(program).Run(); }

}  // namespace millrace::test
