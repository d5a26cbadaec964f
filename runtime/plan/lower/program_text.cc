// A Program as text: buffers, then one line per op with every operand, its access and, where it
// differs from its buffer's, its layout.
#include <fmt/core.h>

#include "runtime/plan/lower/lower.h"

namespace millrace {
namespace {

std::string_view Name(ProgramRole role) {
  switch (role) {
    case ProgramRole::kActivation:
      return "activation";
    case ProgramRole::kParam:
      return "param";
    case ProgramRole::kParamScales:
      return "param_scales";
    case ProgramRole::kParamGrad:
      return "param_grad";
    case ProgramRole::kInput:
      return "input";
    case ProgramRole::kConstant:
      return "constant";
    case ProgramRole::kLoss:
      return "loss";
    case ProgramRole::kLogits:
      return "logits";
    case ProgramRole::kHostState:
      return "host_state";
    case ProgramRole::kCache:
      return "cache";
    case ProgramRole::kOutput:
      return "output";
    case ProgramRole::kScalars:
      return "scalars";
    case ProgramRole::kTally:
      return "tally";
    case ProgramRole::kOverflow:
      return "overflow";
  }
  return "?";
}

std::string Operand(const Program& program, const View& view, Access access,
                    std::string_view name) {
  const char* const sign = access == Access::kRead         ? "="
                           : access == Access::kWrite      ? ":="
                           : access == Access::kAccumulate ? "+="
                                                           : "~";
  const Layout& whole = program.buffer(view.buffer).layout;
  std::string text = fmt::format(" {}{}%{}", name, sign, view.buffer.value);
  if (view.offset != 0) text += fmt::format("+{}", view.offset);
  if (view.layout != whole) text += " " + ToString(view.layout);
  return text;
}

// What is added on each rank to the base: "", or " + tensor rank * 16".
std::string OnRank(const RankInt& integer) {
  if (integer.stride == 0) return "";
  return fmt::format(" + {} rank * {}", ToString(integer.axes), integer.stride);
}

// "": all keys before a query.
std::string WindowText(int64_t window) {
  return window > 0 ? fmt::format(" window {}", window) : "";
}

// What the operands of an op do not show: of most nothing, of a collective its axes.
template <class Op>
std::string Shown(const Op& op) {
  if constexpr (requires { op.axes; }) return " over " + ToString(op.axes);
  return "";
}
std::string Shown(const NormOp<View>& op) {
  return fmt::format(" {} eps {:.3g}", op.kind == NormKind::kLayer ? "layer" : "rms", op.eps);
}
std::string Shown(const NormGradOp<View>& op) {
  return op.kind == NormKind::kLayer ? " layer" : " rms";
}
std::string Shown(const HeadNormOp<View>& op) {
  return fmt::format(" {} + {} heads eps {:.3g}", op.heads, op.kv_heads, op.eps);
}
std::string Shown(const MatmulOp<View>& op) {
  switch (op.epilogue) {
    case Epilogue::kNone:
      return op.rounding == Rounding::kOnce ? " rounded once" : "";
    case Epilogue::kBias:
      return " bias";
    case Epilogue::kBiasGelu:
      return " bias+gelu";
    case Epilogue::kGelu:
      return " gelu";
    case Epilogue::kGeluGrad:
      return " gelu gradient";
  }
  return "";
}
std::string Shown(const RopeTableOp<View>& op) {
  return fmt::format(" theta {} factor {} low {} high {} original {}", op.theta, op.scaling.factor,
                     op.scaling.low_freq_factor, op.scaling.high_freq_factor,
                     op.scaling.original_max_position_embeddings);
}
std::string Shown(const RopeOp<View>& op) {
  return op.direction == RopeDirection::kInverse ? " inverse" : "";
}
std::string Shown(const AttentionOp<View>& op) {
  return fmt::format(" scale {}{}", op.scale, WindowText(op.window));
}
std::string Shown(const AttentionGradOp<View>& op) {
  return fmt::format(" scale {}{}{}", op.scale, WindowText(op.window),
                     op.deterministic ? "" : ", any order");
}
std::string Shown(const CachedAttentionOp<View>& op) {
  return fmt::format(" scale {}{}{}", op.scale, WindowText(op.window),
                     op.rows_from == RowsFrom::kOneSequence ? ", of one sequence" : "");
}
std::string Shown(const ActivationOp<View>& op) { return fmt::format(" {}", Name(op.kind)); }
std::string Shown(const ActivationGradOp<View>& op) { return fmt::format(" {}", Name(op.kind)); }
std::string Shown(const CrossEntropyOp<View>& op) {
  std::string text =
      fmt::format(" rows from {}{}, vocab {}", op.row_begin.base, OnRank(op.row_begin), op.vocab);
  if (op.output == LossOutput::kLossOnly) text += ", loss only";
  if (op.loss_weight != 1) text += fmt::format(", weight {}", op.loss_weight);
  if (op.advantages)
    text += fmt::format(", policy clipped by {} and {}, kl {}", op.policy.clip_low,
                        op.policy.clip_high, op.policy.kl);
  return text;
}
std::string RowsText(const RankInt& begin) {
  return begin.stride == 0 ? "" : " rows from 0" + OnRank(begin);
}
std::string Shown(const EmbedOp<View>& op) { return RowsText(op.row_begin); }
std::string Shown(const EmbedGradOp<View>& op) { return RowsText(op.row_begin); }

std::string Attributes(const KernelOp& op) {
  return std::visit([](const auto& typed) { return Shown(typed); }, op);
}

}  // namespace

std::string ToString(const Program& program) {
  std::string text = "buffers\n";
  for (const BufferId id : program.buffer_ids()) {
    const ProgramBuffer& buffer = program.buffer(id);
    text += fmt::format("  %{:<3} {:<10} {} {}\n", id.value, Name(buffer.role),
                        ToString(buffer.layout), buffer.name);
  }
  const auto section = [&](const char* title, const std::vector<ProgramOp>& ops) {
    if (ops.empty()) return;
    text += fmt::format("{}\n", title);
    for (const ProgramOp& op : ops) {
      text += fmt::format("  {} | {}{}:", op.label, OpName(op.op), Attributes(op.op));
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view name) {
        text += Operand(program, view, access, name);
      });
      text += "\n";
    }
  };
  section("prologue", program.prologue);
  section("forward", program.forward);
  section("backward", program.backward);
  if (!program.choices.empty()) text += "choices\n";
  for (const std::string& choice : program.choices) text += "  " + choice + "\n";
  return text;
}

}  // namespace millrace
