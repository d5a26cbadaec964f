#include "runtime/run/generate/inference_plans.h"

#include <fmt/core.h>

#include <algorithm>
#include <variant>

#include "runtime/base/error.h"
#include "runtime/config/enum_names.h"

namespace millrace {
namespace {

template <class Branch>
bool Have(const std::vector<BlockShape>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockShape& block) {
    return block.template Find<Branch>() != nullptr;
  });
}
template <class Branch>
bool Has(const ModelShape& model) {
  return Have<Branch>(model.blocks);
}

bool IsExact(const Config& config, const ModelShape& model, Backend backend) {
  return config.inference.exact.value_or(backend == Backend::kCpu && !Has<MoeShape>(model));
}

// Of GPUs, which have kernels in order (kernels/cuda/matmul/in_order.h) for some models alone.
std::string WhyNotExactOnGpus(const Config& config, const ModelShape& model) {
  constexpr int64_t kMultiple = 8;  // of the products
  const auto text = [](const std::string& what, std::string_view allowed) {
    return fmt::format(
        "inference.exact is true, and {}; on GPUs it takes {}, or inference.exact=false", what,
        allowed);
  };
  if (config.precision.compute != PrecisionConfig::Format::kBf16)
    return text(fmt::format("precision.compute {}", Name(config.precision.compute)), "bf16");
  if (config.precision.linear != LinearEncoding::kCompute)
    return text(fmt::format("precision.linear {}", Name(config.precision.linear)), "compute");
  for (const auto& [key, ranks] :
       {std::pair{"tensor", config.parallel.tensor}, {"context", config.parallel.context}})
    if (ranks != 1) return text(fmt::format("parallel.{} {}", key, ranks), "1");
  if (config.data.MasksDocuments()) return text("data.document_mask true", "false");
  std::vector<BlockShape> blocks = model.blocks;  // all that training has in order
  if (model.mtp.depth > 0) blocks.push_back(model.mtp.block);
  if (Have<MoeShape>(blocks)) return text("the model has experts (model.moe.experts)", "none");
  if (Have<MambaShape>(blocks))
    return text("the model has Mamba-2 mixers (model.pattern)", "attention and MLPs alone");
  const auto not_multiple = [&](const char* key, int64_t value) {
    return value % kMultiple == 0
               ? ""
               : text(fmt::format("{} {}", key, value), fmt::format("multiples of {}", kMultiple));
  };
  if (const std::string why = not_multiple("model.d_model", model.d_model); !why.empty())
    return why;
  for (const BlockShape& block : blocks) {
    if (const auto* attention = block.Find<AttentionShape>()) {
      if (attention->head_dim != 64 && attention->head_dim != 128)
        return text(fmt::format("heads have {} elements (model.head_dim, or model.d_model / "
                                "model.heads)",
                                attention->head_dim),
                    "64 and 128");
      if (attention->window > 0)
        return text(fmt::format("model.attention.window {}", attention->window), "none");
    }
    if (const auto* mlp = block.Find<MlpShape>())
      if (const std::string why = not_multiple("model.ffn", mlp->width); !why.empty()) return why;
  }
  return "";
}

}  // namespace

std::string WhyNotExact(const Config& config, const ModelShape& model, Backend backend) {
  if (!config.inference.exact.value_or(false)) return "";
  if (backend != Backend::kCpu) return WhyNotExactOnGpus(config, model);
  if (Has<MoeShape>(model))
    return "inference.exact is true, but how many rows an expert has decides bits of its products "
           "(model.moe.experts); allowed is inference.exact=false";
  return "";
}

std::string WhyNoCaches(const Config& config, const ModelShape& model, Backend backend) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.context != 1)
    return fmt::format(
        "parallel.context is {}; generating with caches takes 1; ranks along shard, replicate, "
        "expert and tensor can",
        parallel.context);
  if (parallel.tensor != 1 && parallel.experts_over_tensor)
    return fmt::format(
        "parallel.experts_over_tensor is true and parallel.tensor {}; generating with caches takes "
        "experts that each rank along tensor has: false",
        parallel.tensor);
  if (config.precision.linear == LinearEncoding::kFp8Tensor)
    return "precision.linear is fp8_tensor, whose scales make a sequence depend on those beside "
           "it; generating with caches takes fp8_block or compute";
  if (config.precision.linear != LinearEncoding::kCompute && backend != Backend::kCpu)
    return fmt::format(
        "precision.linear is {}; generating with caches on GPUs takes compute: their products in "
        "FP8 have rows by sixteens",
        Name(config.precision.linear));
  if (config.precision.compute == PrecisionConfig::Format::kFp16 && backend != Backend::kCpu)
    return "precision.compute is fp16; generating with caches on GPUs takes bf16 or fp32";
  return WhyNotExact(config, model, backend);
}

std::string PrefillPlan(int64_t rows) { return fmt::format("prefill_{}", rows); }
std::string DecodePlan(int64_t rows) { return fmt::format("decode_{}", rows); }

std::vector<InferencePlan> InferencePlansOf(const Config& config, const ModelShape& model,
                                            Backend backend) {
  const InferenceConfig& inference = config.inference;
  const int64_t seq_len = config.model.seq_len;
  const std::string why_not = WhyNoCaches(config, model, backend);
  MR_REQUIRE(ErrorCode::kConfig, why_not.empty(), "{}", why_not);
  const bool exact = IsExact(config, model, backend);
  const std::vector<int64_t> prefill = inference.PrefillRows(seq_len),
                             decode = inference.DecodeRows();
  CacheShape cache;
  cache.slots = inference.slots;
  cache.pages = inference.Pages(seq_len);
  cache.page_tokens = inference.page_tokens;
  cache.pages_of_sequence = inference.PagesOfSequence(seq_len);
  cache.length = seq_len;
  cache.rows = std::max(prefill.back(), decode.back());
  if (exact && backend == Backend::kCpu) {
    cache.like_rows = config.train.micro_batch * seq_len / config.parallel.tensor_strips;
    cache.like_own_rows = cache.like_rows / config.parallel.tensor;
  }
  std::vector<InferencePlan> plans;
  for (const int64_t rows : prefill) {
    plans.push_back({PrefillPlan(rows), rows, cache});
    plans.back().cache.logits = 1;
    plans.back().cache.rows_from = RowsFrom::kOneSequence;
  }
  for (const int64_t rows : decode) {
    plans.push_back({DecodePlan(rows), rows, cache});
    plans.back().cache.logits = rows;
  }
  return plans;
}

}  // namespace millrace
