// A Program as text: buffers, then one line per op with every operand, its access and, where it
// differs from its buffer's, its layout.
#include <fmt/core.h>

#include <type_traits>

#include "runtime/plan/lower/lower.h"

namespace millrace {
namespace {

std::string_view Name(ProgramRole role) {
  switch (role) {
    case ProgramRole::kActivation:
      return "activation";
    case ProgramRole::kParam:
      return "param";
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
  const Layout& whole = program.buffers[static_cast<size_t>(view.buffer.value)].layout;
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

// What the operands do not show.
std::string Attributes(const KernelOp& op) {
  return std::visit(
      [](const auto& typed) -> std::string {
        using Op = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<Op, NormOp<View>>) {
          return fmt::format(" {} eps {:.3g}", typed.kind == NormKind::kLayer ? "layer" : "rms",
                             typed.eps);
        } else if constexpr (std::is_same_v<Op, NormGradOp<View>>) {
          return typed.kind == NormKind::kLayer ? " layer" : " rms";
        } else if constexpr (std::is_same_v<Op, HeadNormOp<View>>) {
          return fmt::format(" {} + {} heads eps {:.3g}", typed.heads, typed.kv_heads, typed.eps);
        } else if constexpr (std::is_same_v<Op, MatmulOp<View>>) {
          switch (typed.epilogue) {
            case Epilogue::kNone:
              return typed.rounding == Rounding::kOnce ? " rounded once" : "";
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
        } else if constexpr (std::is_same_v<Op, RopeTableOp<View>>) {
          return fmt::format(" theta {} factor {} low {} high {} original {}", typed.theta,
                             typed.scaling.factor, typed.scaling.low_freq_factor,
                             typed.scaling.high_freq_factor,
                             typed.scaling.original_max_position_embeddings);
        } else if constexpr (std::is_same_v<Op, RopeOp<View>>) {
          return typed.direction == RopeDirection::kInverse ? " inverse" : "";
        } else if constexpr (std::is_same_v<Op, AttentionOp<View>>) {
          return fmt::format(" scale {}{}", typed.scale, WindowText(typed.window));
        } else if constexpr (std::is_same_v<Op, AttentionGradOp<View>>) {
          return fmt::format(" scale {}{}{}", typed.scale, WindowText(typed.window),
                             typed.deterministic ? "" : ", any order");
        } else if constexpr (std::is_same_v<Op, CachedAttentionOp<View>>) {
          return fmt::format(" scale {}{}", typed.scale, WindowText(typed.window));
        } else if constexpr (std::is_same_v<Op, ActivationOp<View>> ||
                             std::is_same_v<Op, ActivationGradOp<View>>) {
          return fmt::format(" {}", Name(typed.kind));
        } else if constexpr (std::is_same_v<Op, CrossEntropyOp<View>>) {
          return fmt::format(
              " rows from {}{}, vocab {}{}{}{}", typed.row_begin.base, OnRank(typed.row_begin),
              typed.vocab, typed.output == LossOutput::kLossOnly ? ", loss only" : "",
              typed.loss_weight == 1 ? "" : fmt::format(", weight {}", typed.loss_weight),
              !typed.advantages
                  ? ""
                  : fmt::format(", policy clipped by {} and {}, kl {}", typed.policy.clip_low,
                                typed.policy.clip_high, typed.policy.kl));
        } else if constexpr (std::is_same_v<Op, EmbedOp<View>> ||
                             std::is_same_v<Op, EmbedGradOp<View>>) {
          return typed.row_begin.stride == 0 ? "" : " rows from 0" + OnRank(typed.row_begin);
        } else if constexpr (requires { typed.axes; }) {
          return " over " + ToString(typed.axes);
        } else {
          return "";
        }
      },
      op);
}

}  // namespace

std::string ToString(const Program& program) {
  std::string text = "buffers\n";
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    text += fmt::format("  %{:<3} {:<10} {} {}\n", i, Name(buffer.role), ToString(buffer.layout),
                        buffer.name);
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
