// Rotary positions in config.json, in the forms of transformers 4 and 5.
#pragma once

#include "models/huggingface/field_reader.h"

namespace millrace {

// Sets rope_theta and rope_scaling. transformers 4 has rope_theta beside rope_scaling;
// transformers 5 has rope_parameters, which holds both. A file may have both forms, which must then
// agree.
void ReadRope(FieldReader& f, ModelConfig* m);

}  // namespace millrace
