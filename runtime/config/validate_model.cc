#include "runtime/config/validate_model.h"

#include <fmt/core.h>

#include <numeric>
#include <utility>

#include "runtime/config/enum_names.h"

namespace millrace {
namespace {

using Keys = std::vector<std::string>;

class ModelValidator {
 public:
  ModelValidator(const Config& config, std::vector<ConfigProblem>* problems)
      : config_(config), model_(config.model), traits_(model_.Traits()), problems_(problems) {}

  void Run() {
    Pattern();
    if (model_.Has('*')) Heads();
    if (traits_.one_attention) Gpt2();
    Positions();
    Activation();
    if (model_.Has('E')) Experts();
    if (model_.Has('M')) Mamba();
    if (model_.mtp.depth > 0) Mtp();
    Units();
    if (config_.parallel.ExpertRanks() > 1) ExpertAxis();
    if (config_.parallel.tensor > 1) Tensor();
  }

 private:
  template <typename... Args>
  void Require(bool holds, Keys keys, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds)
      problems_->push_back({std::move(keys), fmt::format(text, std::forward<Args>(args)...)});
  }

  void Pattern() {
    const Keys keys = {"model.pattern", "model.family"};
    if (!model_.pattern) {
      Require(traits_.block != ' ', keys,
              "{} is a pattern of blocks: a character each, M (Mamba-2), E (mixture of experts), * "
              "(attention) or - (MLP)",
              Name(model_.family));
      return;
    }
    if (traits_.blocks.size() == 1)
      return Require(false, keys, "the blocks of {} are all alike: leave it out, and set layers",
                     Name(model_.family));
    const size_t other = model_.pattern->find_first_not_of(traits_.blocks);
    Require(other == std::string::npos, keys, "character {} is '{}'; a block of {} is one of {}",
            other + 1, other == std::string::npos ? ' ' : (*model_.pattern)[other],
            Name(model_.family), traits_.blocks);
  }

  void Heads() {
    if (!model_.head_dim)
      Require(model_.d_model % model_.heads == 0, {"model.d_model", "model.heads"},
              "d_model must be a multiple of heads");
    Require(model_.heads % model_.KvHeads() == 0, {"model.kv_heads", "model.heads"},
            "kv_heads must divide heads");
  }

  void Gpt2() {
    Require(model_.KvHeads() == model_.heads, {"model.kv_heads", "model.heads", "model.family"},
            "gpt2 has no grouped-query attention: kv_heads must equal heads, or be null");
    Require(model_.HeadDim() * model_.heads == model_.d_model || !model_.head_dim,
            {"model.head_dim", "model.d_model", "model.heads", "model.family"},
            "gpt2's heads split d_model: head_dim must be d_model / heads, or null");
    const AttentionConfig& attention = model_.attention;
    Require(!attention.rope.value_or(false), {"model.attention.rope", "model.family"},
            "gpt2 has learned positions: leave it out, or false");
    Require(!attention.qk_norm.value_or(false), {"model.attention.qk_norm", "model.family"},
            "gpt2's attention has no norms: leave it out, or false");
    Require(!attention.window, {"model.attention.window", "model.family"},
            "gpt2's attention sees all before a token: leave it out");
  }

  void Positions() {
    if (!model_.Has('*') || !model_.Rope()) return;
    if (model_.head_dim || model_.d_model % model_.heads == 0)
      Require(model_.HeadDim() % 2 == 0, {"model.head_dim", "model.d_model", "model.heads"},
              "rotary positions need an even head_dim (here {})", model_.HeadDim());
    if (model_.rope_scaling)
      Require(model_.rope_scaling->low_freq_factor < model_.rope_scaling->high_freq_factor,
              {"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
              "low_freq_factor must be less than high_freq_factor");
  }

  void Activation() {
    Require(!traits_.one_activation || model_.ActivationKind() == traits_.activation,
            {"model.activation", "model.family"}, "{}'s activation is {}; leave it out, or null",
            Name(model_.family), Name(traits_.activation));
  }

  void Experts() {
    const MoeConfig& moe = model_.moe;
    const bool divides = moe.experts % moe.groups == 0;
    Require(divides, {"model.moe.groups", "model.moe.experts"}, "groups must divide experts");
    Require(moe.top_groups <= moe.groups, {"model.moe.top_groups", "model.moe.groups"},
            "no more than all groups can be chosen from");
    if (divides && moe.top_groups <= moe.groups)
      Require(moe.top_k <= moe.experts / moe.groups * moe.top_groups,
              {"model.moe.top_k", "model.moe.experts", "model.moe.groups", "model.moe.top_groups"},
              "a token can have at most {} experts", moe.experts / moe.groups * moe.top_groups);
    Require(!divides || moe.groups == 1 || moe.experts / moe.groups > 1,
            {"model.moe.groups", "model.moe.experts"},
            "a group is scored by its two best experts, so it needs two");
    Require(ActivationOfExperts(), {"model.activation"}, "experts have swiglu or relu2, not {}",
            Name(model_.ActivationKind()));
  }
  void ExpertAxis() {
    const ParallelConfig& parallel = config_.parallel;
    const int64_t ranks = parallel.ExpertRanks(), experts = model_.moe.experts;
    if (!model_.Has('E'))
      return Require(parallel.expert == 1,
                     {"parallel.expert", model_.pattern ? "model.pattern" : "model.family"},
                     "the model has no experts to split over ranks, so expert must be 1");
    if (experts % ranks == 0) return;
    std::string possible;
    for (int64_t n = 1; n <= experts; ++n)
      if (experts % n == 0) possible += fmt::format("{}{}", possible.empty() ? "" : ", ", n);
    std::vector<std::string> keys = {"parallel.expert", "model.moe.experts"};
    const char* what = "expert";
    if (ranks > parallel.expert) {
      keys.insert(keys.end(), {"parallel.tensor", "parallel.experts_over_tensor"});
      what = "expert * tensor";
    }
    Require(false, keys, "{} ranks do not divide {} experts; with this model {} can be {}", ranks,
            experts, what, possible);
  }
  bool ActivationOfExperts() const { return model_.ActivationKind() != ActivationKind::kGelu; }

  void Mamba() {
    const MambaConfig& mamba = model_.mamba;
    Require(mamba.heads % mamba.groups == 0, {"model.mamba.groups", "model.mamba.heads"},
            "groups must divide heads");
    Require(!mamba.dt_max || mamba.dt_min < *mamba.dt_max,
            {"model.mamba.dt_min", "model.mamba.dt_max"}, "dt_min must be less than dt_max");
    Require(config_.parallel.context == 1, {"parallel.context", "model.pattern"},
            "a Mamba-2 mixer scans whole sequences, so with M in the pattern context must be 1");
  }

  void Mtp() {
    Require(!traits_.one_attention, {"model.mtp.depth", "model.family"},
            "{} has no blocks that predict further tokens", Name(model_.family));
    Require(model_.seq_len > model_.mtp.depth, {"model.mtp.depth", "model.seq_len"},
            "a sequence needs more tokens than that");
    if (!model_.mtp.pattern && traits_.block == ' ')
      return Require(false, {"model.mtp.pattern", "model.family"},
                     "{} needs the branches of the block, such as *E", Name(model_.family));
    const std::string branches = model_.MtpBranches();
    Require(branches.find_first_not_of(traits_.blocks) == std::string::npos &&
                (traits_.branch_per_block || branches.size() == 1),
            {"model.mtp.pattern", "model.family"}, "a block of {} has {} of {}",
            Name(model_.family), traits_.branch_per_block ? "branches" : "one", traits_.blocks);
  }

  void Units() {
    const Keys keys = {"sharding.blocks_per_unit",
                       model_.pattern ? "model.pattern" : "model.layers"};
    const int64_t layers = model_.Layers();
    if (const auto* list = std::get_if<std::vector<int64_t>>(&config_.sharding.blocks_per_unit)) {
      const int64_t sum = std::accumulate(list->begin(), list->end(), int64_t{0});
      Require(sum == layers, keys,
              "the units hold {} blocks, but the model has {}: a list must add up to the blocks",
              sum, layers);
    } else {
      Require(std::get<int64_t>(config_.sharding.blocks_per_unit) <= layers, keys,
              "a unit cannot hold more blocks than the model has");
    }
  }

  // Why the blocks cannot be split over so many ranks; "": they can.
  std::string WhyNotSplit(int64_t ranks) const {
    const auto divides = [&](const char* key, int64_t value) {
      return value % ranks == 0 ? "" : fmt::format("{} {}, ", key, value);
    };
    std::string why;
    if (model_.Has('*')) {
      // More ranks than key and value heads: several share one.
      const bool shared = ranks % model_.KvHeads() == 0;
      why += divides("model.heads", model_.heads);
      if (!shared) why += divides("model.kv_heads", model_.KvHeads());
    }
    if (model_.Has('-')) why += divides("model.ffn", model_.Ffn());
    if (model_.Has('M')) {
      why += divides("model.mamba.heads", model_.mamba.heads);
      why += divides("model.mamba.groups", model_.mamba.groups);
    }
    if (model_.Has('E') && model_.moe.shared_ffn)
      why += divides("model.moe.shared_ffn", *model_.moe.shared_ffn);
    const int64_t context = config_.parallel.context, strips = config_.parallel.tensor_strips;
    // What context does not divide is told by itself.
    const int64_t rows = model_.seq_len % context == 0 ? model_.seq_len / context : 0;
    if (ranks > 1 && rows % (ranks * strips) != 0)
      why += fmt::format("model.seq_len {}{}{}, ", model_.seq_len,
                         context > 1 ? fmt::format(" over {} ranks of context", context) : "",
                         strips > 1 ? fmt::format(" in {} strips", strips) : "");
    return why;
  }

  void Tensor() {
    const int64_t ranks = config_.parallel.tensor;
    const int64_t batch = config_.train.micro_batch, strips = config_.parallel.tensor_strips;
    if (model_.Has('E') && ranks > 1)
      Require(model_.moe.aux_loss != AuxLossKind::kSequence || batch % (ranks * strips) == 0 ||
                  strips % batch == 0,
              {"model.moe.aux_loss", "parallel.tensor", "train.micro_batch"},
              "ranks of tensor would have parts of different sequences: micro_batch can "
              "be a multiple of {} or a divisor of tensor_strips, or aux_loss switch or "
              "pooled",
              ranks * strips);
    const std::string why = WhyNotSplit(ranks);
    if (why.empty()) return;
    std::string possible;
    const int64_t most = std::max(model_.heads, model_.mamba.heads);
    for (int64_t n = 1; n <= most; ++n)
      if (WhyNotSplit(n).empty()) possible += fmt::format("{}{}", possible.empty() ? "" : ", ", n);
    Keys keys = {"parallel.tensor"};
    if (model_.Has('*')) keys.insert(keys.end(), {"model.heads", "model.kv_heads"});
    if (model_.Has('-')) keys.push_back("model.ffn");
    if (model_.Has('M')) keys.insert(keys.end(), {"model.mamba.heads", "model.mamba.groups"});
    if (model_.Has('E') && model_.moe.shared_ffn) keys.push_back("model.moe.shared_ffn");
    keys.push_back("model.seq_len");
    if (config_.parallel.tensor_strips > 1) keys.push_back("parallel.tensor_strips");
    if (config_.parallel.context > 1) keys.push_back("parallel.context");
    Require(false, std::move(keys),
            "heads, hidden columns and rows are split over {} ranks, which do not divide {}; with "
            "this model tensor can be {}",
            ranks, why.substr(0, why.size() - 2), possible);
  }

  const Config& config_;
  const ModelConfig& model_;
  const FamilyTraits& traits_;
  std::vector<ConfigProblem>* problems_;
};

}  // namespace

void ValidateModel(const Config& config, std::vector<ConfigProblem>* problems) {
  ModelValidator(config, problems).Run();
}

}  // namespace millrace
