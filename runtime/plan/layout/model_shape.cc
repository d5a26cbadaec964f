#include "runtime/plan/layout/model_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

// " without rope qk_norm window 4096"; "" of plain attention.
std::string OptionWords(const AttentionShape& a) {
  std::string words;
  if (!a.rope) words += " without rope";
  if (a.qk_norm) words += " qk_norm";
  if (a.window > 0) words += fmt::format(" window {}", a.window);
  return words;
}

std::string Text(const AttentionShape& a) {
  return fmt::format("attention {} heads ({} kv) of {}{}", a.heads, a.kv_heads, a.head_dim,
                     OptionWords(a));
}
std::string Text(const MlpShape& m) {
  return fmt::format("mlp {} {}", m.width, Name(m.activation));
}
std::string Text(const MoeShape& m) {
  std::string text = fmt::format("moe {} of {} experts of {} {} by {}", m.top_k, m.experts, m.width,
                                 Name(m.activation), Name(m.router));
  if (m.bias) text += fmt::format(" bias {}", m.bias_rate);
  if (m.groups > 1) text += fmt::format(" groups {} of {}", m.top_groups, m.groups);
  if (!m.normalise) text += " unnormalised";
  if (m.scaling != 1) text += fmt::format(" scaled {}", m.scaling);
  if (m.shared_width > 0) text += fmt::format(" shared {}", m.shared_width);
  if (m.gate != GateKind::kRouter) text += fmt::format(" gate {}", Name(m.gate));
  if (m.aux_loss != AuxLossKind::kNone)
    text += fmt::format(" aux {} {}", Name(m.aux_loss), m.aux_coefficient);
  return text;
}
std::string Text(const MambaShape& m) {
  std::string text = fmt::format("mamba {} heads of {} groups {} state {} conv {} chunk {}",
                                 m.heads, m.head_dim, m.groups, m.state, m.conv, m.chunk);
  if (m.dt_min > 0 || std::isfinite(m.dt_max))
    text += fmt::format(" dt {} to {}", m.dt_min, m.dt_max);
  return text;
}

// Of what was added to a section later, a value that it always had is left out: identities stay.
nlohmann::json Json(const AttentionShape& a) {
  nlohmann::json json = {{"kind", "attention"},
                         {"heads", a.heads},
                         {"kv_heads", a.kv_heads},
                         {"head_dim", a.head_dim}};
  if (!a.rope) json["rope"] = false;
  if (a.qk_norm) json["qk_norm"] = true;
  if (a.window > 0) json["window"] = a.window;
  return json;
}
nlohmann::json Json(const MlpShape& m) {
  return {{"kind", "mlp"}, {"width", m.width}, {"activation", Name(m.activation)}};
}
nlohmann::json Json(const MoeShape& m) {
  nlohmann::json json = {{"kind", "moe"},
                         {"experts", m.experts},
                         {"top_k", m.top_k},
                         {"width", m.width},
                         {"activation", Name(m.activation)},
                         {"router", Name(m.router)},
                         {"bias", m.bias},
                         {"groups", m.groups},
                         {"top_groups", m.top_groups},
                         {"normalise", m.normalise},
                         {"scaling", m.scaling},
                         {"shared_width", m.shared_width},
                         {"aux_loss", Name(m.aux_loss)},
                         {"aux_coefficient", m.aux_coefficient},
                         {"bias_rate", m.bias_rate}};
  if (m.gate != GateKind::kRouter) json["gate"] = Name(m.gate);
  return json;
}
nlohmann::json Json(const MambaShape& m) {
  return {{"kind", "mamba"},
          {"heads", m.heads},
          {"head_dim", m.head_dim},
          {"groups", m.groups},
          {"state", m.state},
          {"conv", m.conv},
          {"chunk", m.chunk},
          {"dt_min", m.dt_min},
          {"dt_max", std::isfinite(m.dt_max) ? nlohmann::json(m.dt_max) : nlohmann::json()}};
}

nlohmann::json Branches(const BlockShape& block) {
  nlohmann::json branches = nlohmann::json::array();
  for (const Branch& branch : block.branches)
    branches.push_back(std::visit([](const auto& typed) { return Json(typed); }, branch));
  return branches;
}

// One word.
std::string Joined(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

std::string PatternText(const std::vector<BlockShape>& blocks) {
  std::vector<std::string> runs;
  for (const BlockRun& run : RunsOf(blocks))
    runs.push_back(
        fmt::format("{}x({})", run.count, ToString(blocks[static_cast<size_t>(run.first)])));
  return fmt::format("{}", fmt::join(runs, " "));
}

}  // namespace

std::vector<BlockShape> EqualBlocks(int64_t n, const AttentionShape& attention,
                                    const MlpShape& mlp) {
  return std::vector<BlockShape>(static_cast<size_t>(std::max<int64_t>(0, n)),
                                 BlockShape{{attention, mlp}});
}

EqualBlock EqualBlockOf(const ModelShape& shape) {
  if (RunsOf(shape.blocks).size() != 1) return {};
  const BlockShape& block = shape.blocks.front();
  const EqualBlock equal{block.Find<AttentionShape>(), block.Find<MlpShape>()};
  const bool both = block.branches.size() == 2 && equal.attention != nullptr &&
                    equal.mlp != nullptr && block.branches.front().index() == 0 &&
                    OptionWords(*equal.attention).empty();
  return both ? equal : EqualBlock{};
}

std::vector<BlockRun> RunsOf(const std::vector<BlockShape>& blocks) {
  std::vector<BlockRun> runs;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i == 0 || blocks[i] != blocks[i - 1]) runs.push_back({static_cast<int64_t>(i), 0});
    ++runs.back().count;
  }
  return runs;
}

std::string ToString(const BlockShape& block) {
  std::vector<std::string> texts;
  for (const Branch& branch : block.branches)
    texts.push_back(std::visit([](const auto& typed) { return Text(typed); }, branch));
  return fmt::format("{}", fmt::join(texts, " + "));
}

std::string Words(const ModelShape& s) {
  const EqualBlock equal = EqualBlockOf(s);
  const std::string before =
      equal ? fmt::format("heads={} kv_heads={} head_dim={} ffn={} ", equal.attention->heads,
                          equal.attention->kv_heads, equal.attention->head_dim, equal.mlp->width)
            : "";
  const std::string behind =
      equal ? fmt::format("activation={} ", Name(equal.mlp->activation)) : "";
  std::string words = fmt::format(
      "family={} layers={} d_model={} {}vocab={} seq_len={} tied={} {}norm_eps={} rope_theta={} "
      "rope_scaling={}/{}/{}/{}",
      s.family, s.layers(), s.d_model, before, s.vocab, s.seq_len, s.tied, behind, s.norm_eps,
      s.rope_theta, s.rope_scaling.factor, s.rope_scaling.low_freq_factor,
      s.rope_scaling.high_freq_factor, s.rope_scaling.original_max_position_embeddings);
  if (!equal) words += " blocks=" + Joined(PatternText(s.blocks));
  if (s.mtp.depth > 0)
    words += fmt::format(" mtp={}x({})_scaled_{}", s.mtp.depth, Joined(ToString(s.mtp.block)),
                         s.mtp.loss_scale);
  return words;
}

std::string Identity(const ModelShape& s) {
  nlohmann::json blocks = nlohmann::json::array();
  for (const BlockRun& run : RunsOf(s.blocks))
    blocks.push_back(
        {{"count", run.count}, {"branches", Branches(s.blocks[static_cast<size_t>(run.first)])}});
  nlohmann::json json = {
      {"family", s.family},
      {"vocab", s.vocab},
      {"seq_len", s.seq_len},
      {"d_model", s.d_model},
      {"tied", s.tied},
      {"norm_eps", s.norm_eps},
      {"rope_theta", s.rope_theta},
      {"rope_scaling",
       {{"factor", s.rope_scaling.factor},
        {"low_freq_factor", s.rope_scaling.low_freq_factor},
        {"high_freq_factor", s.rope_scaling.high_freq_factor},
        {"original_max_position_embeddings", s.rope_scaling.original_max_position_embeddings}}},
      {"blocks", std::move(blocks)}};
  if (s.mtp.depth > 0)  // older identities stay
    json["mtp"] = {{"depth", s.mtp.depth},
                   {"loss_scale", s.mtp.loss_scale},
                   {"branches", Branches(s.mtp.block)}};
  return DumpJson(json);
}

}  // namespace millrace
