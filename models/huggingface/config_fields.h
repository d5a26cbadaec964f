// What the fields of a Hugging Face config.json mean to us, as tables. config_json.cc reads them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace millrace {

// A field that changes the model: absent, or one of these values.
struct FixedField {
  std::string_view name;
  std::string_view allowed;  // JSON: an array of the values that mean what we compute
  std::string_view reason;   // what we do, for the error
};

std::span<const FixedField> CommonFixedFields();
std::span<const FixedField> Gpt2FixedFields();
std::span<const FixedField> LlamaFixedFields();
std::span<const FixedField> Qwen3FixedFields();  // with experts as well
std::span<const FixedField> Qwen3HeadFields();
std::span<const FixedField> Qwen3MoeHeadFields();
std::span<const FixedField> NemotronHFixedFields();
// Of families whose attention sees the whole context.
std::span<const FixedField> NoWindowFields();
// Of families whose published folders come without code.
std::span<const FixedField> NoCodeFields();

// Fields that leave the weights' meaning alone, whatever they hold.
bool IsHarmlessField(std::string_view name);

}  // namespace millrace
