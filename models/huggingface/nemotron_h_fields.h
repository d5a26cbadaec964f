// The fields of NemotronHForCausalLM: published files and those of transformers 5.
#pragma once

#include "models/huggingface/field_reader.h"

namespace millrace {

ModelConfig ReadNemotronH(FieldReader& f);

}  // namespace millrace
