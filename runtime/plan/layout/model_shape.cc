#include "runtime/plan/layout/model_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {
namespace {

std::string Text(const AttentionShape& a) {
  return fmt::format("attention {} heads ({} kv) of {}", a.heads, a.kv_heads, a.head_dim);
}
std::string Text(const MlpShape& m) {
  return fmt::format("mlp {} {}", m.width, Name(m.activation));
}

nlohmann::json Json(const AttentionShape& a) {
  return {{"kind", "attention"},
          {"heads", a.heads},
          {"kv_heads", a.kv_heads},
          {"head_dim", a.head_dim}};
}
nlohmann::json Json(const MlpShape& m) {
  return {{"kind", "mlp"}, {"width", m.width}, {"activation", Name(m.activation)}};
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
                    equal.mlp != nullptr && block.branches.front().index() == 0;
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
  if (!equal) {
    std::string pattern = PatternText(s.blocks);  // one word
    std::replace(pattern.begin(), pattern.end(), ' ', '_');
    words += " blocks=" + pattern;
  }
  return words;
}

std::string Identity(const ModelShape& s) {
  nlohmann::json blocks = nlohmann::json::array();
  for (const BlockRun& run : RunsOf(s.blocks)) {
    nlohmann::json branches = nlohmann::json::array();
    for (const Branch& branch : s.blocks[static_cast<size_t>(run.first)].branches)
      branches.push_back(std::visit([](const auto& typed) { return Json(typed); }, branch));
    blocks.push_back({{"count", run.count}, {"branches", std::move(branches)}});
  }
  return DumpJson(nlohmann::json{
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
      {"blocks", std::move(blocks)}});
}

}  // namespace millrace
