#include "runtime/config/nearest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/config/keys.h"

namespace millrace {
namespace {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`; `limit`,
// where it takes as many or more.
int64_t EditDistance(std::string_view a, std::string_view b, int64_t limit) {
  if (std::abs(std::ssize(a) - std::ssize(b)) >= limit) return limit;
  std::vector<int64_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  int64_t least = 0;  // of the last row; no later one is less than the least of two
  for (size_t i = 1; i <= a.size(); ++i) {
    const int64_t least_before = std::exchange(least, static_cast<int64_t>(i));
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
      least = std::min(least, row[j]);
    }
    if (std::min(least, least_before) >= limit) return limit;
    before = std::exchange(last, row);
  }
  return std::min(last[b.size()], limit);
}

// What nanoGPT, Hugging Face and torchtitan call the same things.
constexpr std::array<std::pair<std::string_view, std::string_view>, 33> kForeignNames = {{
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_embd", "model.d_model"},
    {"dim", "model.d_model"},
    {"hidden_size", "model.d_model"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"intermediate_size", "model.ffn"},
    {"n_inner", "model.ffn"},
    {"vocab_size", "model.vocab"},
    {"block_size", "model.seq_len"},
    {"max_position_embeddings", "model.seq_len"},
    {"tie_word_embeddings", "model.tied"},
    {"hidden_act", "model.activation"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layer_norm_epsilon", "model.norm_eps"},
    {"initializer_range", "model.init_std"},
    {"max_iters", "train.steps"},
    {"max_steps", "train.steps"},
    {"batch_size", "train.micro_batch"},
    {"gradient_accumulation_steps", "train.accumulate"},
    {"eval_interval", "train.eval_every"},
    {"learning_rate", "optimizer.lr"},
    {"grad_clip", "optimizer.clip"},
    {"max_norm", "optimizer.clip"},
    {"param_groups", "optimizer.groups"},
    {"warmup_steps", "optimizer.schedule.warmup"},
    {"out_dir", "run.dir"},
    {"output_dir", "run.dir"},
}};

std::string_view Leaf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// A third of the letters may be wrong, and at least two: below that a guess
// confuses more than it helps.
int64_t Tolerance(std::string_view word) {
  return std::max<int64_t>(2, static_cast<int64_t>(word.size()) / 3);
}

}  // namespace

std::string NearestName(std::string_view word, std::span<const std::string_view> names) {
  std::string_view best;
  int64_t best_distance = Tolerance(word) + 1;
  for (const std::string_view name : names) {
    const int64_t distance = EditDistance(word, name, best_distance);
    if (distance < best_distance) std::tie(best, best_distance) = std::pair(name, distance);
  }
  return std::string(best);
}

std::string NearestKey(std::string_view path) {
  for (const auto& [foreign, known] : kForeignNames)
    if (Leaf(path) == foreign) return std::string(known);

  std::vector<std::string> candidates;
  for (const Key& key : Keys()) {
    for (std::string_view section = key.section();;
         section = section.substr(0, section.rfind('.'))) {
      if (candidates.empty() ||
          std::find(candidates.begin(), candidates.end(), section) == candidates.end())
        candidates.emplace_back(section);
      if (section.find('.') == section.npos) break;
    }
    candidates.push_back(key.path);
  }
  std::string best;
  // Two units to a slip make room for "the right name in the wrong section": more than one slip in
  // the right section (model.moe.expert is no parallel.expert), less than two.
  int64_t best_distance = 2 * Tolerance(Leaf(path)) + 1;
  for (const std::string& known : candidates) {
    const int64_t limit = CeilDiv(best_distance, 2);  // in slips
    const int64_t whole = 2 * EditDistance(path, known, limit);
    const int64_t leaf = 2 * EditDistance(Leaf(path), Leaf(known), limit) + 3;
    const int64_t distance = std::min(whole, leaf);
    if (distance < best_distance) std::tie(best, best_distance) = std::pair(known, distance);
  }
  return best;
}

}  // namespace millrace
