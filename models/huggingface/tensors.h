// Which Hugging Face tensors hold which of our parameters, for GPT2LMHeadModel and
// LlamaForCausalLM.
//
// Layout   Ours are [out, in]. GPT-2's linear weights are stored [in, out] (transformers' Conv1D),
//          so they are transposed; everything else is stored as ours. Llama's q, k and v are row
//          ranges of our fused qkv, its gate and up of our gate_up.
//          Of blocks that predict further, e_proj and h_proj are the left and the right columns of
//          one stored matrix, eh_proj. Nemotron's have a layer of mtp.layers for each branch, those
//          of others are layers behind the trunk's, as DeepSeek-V3's, without copies of embedding
//          and head.
// Padding  Neither side's tensors contain the padded rows of a vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/layout/model_spec.h"

namespace millrace {

// One stored tensor: rows [first_row, first_row + rows) of our parameter. A parameter of experts
// [E, out, in] has the rows of all experts, end to end.
struct HuggingFaceTensor {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as stored
  std::string param;           // "h.0.attn.qkv.weight"
  int64_t first_row = 0;
  int64_t columns = 1;  // of the parameter
  bool transposed = false;
  // Of a stored matrix that several of our parameters share, side by side: its columns, and the
  // first of this one's. 0: it is this parameter's alone.
  int64_t stored_columns = 0, first_column = 0;

  int64_t numel() const {
    int64_t numel = 1;
    for (const int64_t dim : shape) numel *= dim;
    return numel;
  }
  bool operator==(const HuggingFaceTensor&) const = default;
};

// In the order of the model's parameters; together they cover each parameter exactly. A tensor that
// several parameters share is listed for each, one behind the other.
// A tied head has no tensor.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& spec);

// What a folder's tensors are to the model.
struct TensorMatch {
  std::vector<HuggingFaceTensor> tensors;  // under the names that the folder uses
  std::optional<std::string> tied_head;  // "lm_head.weight" of a tied model: must repeat `tied_to`
  std::string tied_to;                   // our parameter
};

// A folder saved from the bare model lacks the prefix "transformer." or "model."; buffers that
// older versions saved are left aside. Error(kData) naming `folder` and all tensors that are
// missing or have no place.
TensorMatch MatchTensors(const ModelSpec& spec, const std::set<std::string>& names,
                         const std::string& folder);

// param[...] = stored elements [begin, begin + stored.size()) of the tensor. `param` is the whole
// parameter [rows, columns].
void CopyToParam(const HuggingFaceTensor& tensor, int64_t begin, std::span<const float> stored,
                 std::span<float> param);

// The stored tensor [numel] out of the whole parameter; zero where it is another's.
std::vector<float> TakeFromParam(const HuggingFaceTensor& tensor, std::span<const float> param);

}  // namespace millrace
