// config.json of a Hugging Face folder <-> the model.* keys, for GPT2LMHeadModel and LlamaForCausalLM, as transformers 4 and 5 write it.
//
// Fields   Each field of the file is read, or must have the one value that we compute with, or is known to leave the model as it is (token
//          ids, generation defaults, bookkeeping). Every other field is an error: what it changes would be guessed.
// Dropout  Must be 0. A folder trained with dropout has the same weights and logits, but training it further without would be another
//          training than the file asks for; who wants that writes 0 into config.json, and it is said.
// Units    Sizes are elements. model.seq_len is n_positions or max_position_embeddings.
#pragma once

#include <string>
#include <string_view>

#include "runtime/config/config.h"

namespace millrace {

// All model keys that the file determines, resolved (no null that stands for a default); init_from stays empty. `name` is the file's, for
// messages. Error(kData): everything wrong at once, each with the field, its line and value, and what is allowed.
ModelConfig ModelFromHuggingFace(std::string_view text, const std::string& name);

// The file that both transformers 4 and 5 load as this model, float32. Token ids are null: the model's vocabulary has no special tokens.
std::string HuggingFaceConfigText(const ModelConfig& model);

// generation_config.json: nothing but the absent token ids.
std::string HuggingFaceGenerationText();

}  // namespace millrace
