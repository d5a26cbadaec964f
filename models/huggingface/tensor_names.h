// Whose tensors are called what, by family: a parameter of ours beside its Hugging Face name.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/policies.h"
#include "runtime/plan/layout/model_spec.h"

namespace millrace::names {

// Of a fused parameter.
enum class Rows { kAll, kQuery, kKey, kValue, kGate, kUp };
// How rows are stored: as they are; [in, out]; with a dim of 1 between (a depthwise convolution);
// as a tensor for each expert, whose number stands for {}.
enum class Form { kPlain, kTransposed, kDepthwise, kExperts };

struct Entry {
  std::string_view ours, theirs;  // in a block: behind "h.<i>." and behind the block's prefix
  Rows rows = Rows::kAll;
  Form form = Form::kPlain;
};
using Entries = std::vector<Entry>;

struct FamilyTable {
  ModelFamily family;
  // Of everything but the head: absent in folders saved from the bare model.
  std::string_view prefix;
  std::string_view block_prefix;  // before the block's number
  Entries block;
  Entries outside;  // without the head
};

// Error(kInternal): the family has no Hugging Face names.
const FamilyTable& TableOf(const ModelSpec& spec);

// Buffers that older versions of transformers saved beside the parameters: causal masks, and RoPE
// frequencies, which follow from config.json.
bool IsBuffer(std::string_view name, const FamilyTable& table);

}  // namespace millrace::names
