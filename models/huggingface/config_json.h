// config.json of a Hugging Face folder <-> the model.* keys, as transformers 4 and 5 write it, for
// GPT2LMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, NemotronHForCausalLM.
//
// Fields   Each is read, or must have the one value that we compute with, or is known to change
//          nothing (token ids, generation defaults, bookkeeping). Any other is an error: we would
//          have to guess.
// Dropout  Must be 0. Weights and logits do not depend on it, but training on without it is not
//          what the file asks for; who wants that writes 0 into config.json, and the error says so.
// Units    Sizes are elements. model.seq_len is n_positions or max_position_embeddings.
#pragma once

#include <string>
#include <string_view>

#include "runtime/config/config.h"

namespace millrace {

// All model keys that the file determines, resolved (no null that stands for a default); init_from
// stays empty. `name` is the file's, for messages. Error(kData): everything wrong at once, each
// with the field, its line and value, and what is allowed.
ModelConfig ModelFromHuggingFace(std::string_view text, const std::string& name);

// The file that both transformers 4 and 5 load as this model, float32. Token ids are null: the
// model's vocabulary has no special tokens. Error(kConfig): an option that no field of the family's
// file says.
std::string HuggingFaceConfigText(const ModelConfig& model);

// generation_config.json: nothing but the absent token ids.
std::string HuggingFaceGenerationText();

}  // namespace millrace
