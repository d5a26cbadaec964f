#include "models/huggingface/field_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/convert.h"
#include "runtime/config/keys.h"

namespace millrace {
namespace {

// Infinity, which is no JSON, as transformers 5 writes it: published files of Nemotron-H have it
// bare. Lines stay where they are.
std::string WithInfinities(std::string_view text) {
  constexpr std::string_view kBare = "Infinity", kWritten = R"({"__float__":"Infinity"})";
  std::string written;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) written += text[i++];
    if (!quoted && text.substr(i).starts_with(kBare)) {
      written += kWritten;
      i += kBare.size() - 1;
    } else {
      written += text[i];
    }
  }
  return written;
}

}  // namespace

FieldReader::FieldReader(std::string_view text, std::string name)
    : text_(WithInfinities(text)), name_(std::move(name)) {
  for (const JsonTextProblem& problem : text_.problems())
    Add(fmt::format("line {}: {}", PositionOf(text_.text(), problem.offset).line, problem.text));
  if (problems_.empty() && !text_.root().is_object()) Add("must be an object");
  ThrowIfAny();
}

const FieldReader::Json* FieldReader::Find(const std::string& field) {
  known_.insert(field);
  const auto it = text_.root().find(field);
  return it == text_.root().end() ? nullptr : &*it;
}

int64_t FieldReader::Size(const std::string& field, std::optional<int64_t> otherwise) {
  known_.insert(field);
  return Size("", field, text_.root(), otherwise);
}

int64_t FieldReader::Size(const std::string& section, const std::string& field, const Json& object,
                          std::optional<int64_t> otherwise) {
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  const auto value = object.find(field);
  if (value == object.end() || value->is_null()) {
    if (!otherwise)
      Add(fmt::format("{}{} is missing", section.empty() ? "" : section + ".", field));
    return otherwise.value_or(1);
  }
  if (value->is_number_integer() && *value >= 1 && *value <= kLargest) return value->get<int64_t>();
  Problem(section, field, *value, fmt::format("must be a whole number from 1 to {}", kLargest));
  return 1;
}

double FieldReader::Number(const std::string& field, double otherwise) {
  const Json* value = Find(field);
  return value ? Number("", field, *value) : otherwise;
}

double FieldReader::Number(const std::string& section, const std::string& field,
                           const Json& value) {
  if (value.is_number() && value > 0) return value.get<double>();
  Problem(section, field, value, "must be a positive number");
  return 1;
}

double FieldReader::NumberFromZero(const std::string& field, double otherwise) {
  const Json* value = Find(field);
  return value && value->is_number() && *value == 0 ? 0 : Number(field, otherwise);
}

bool FieldReader::Flag(const std::string& field, bool otherwise) {
  const Json* value = Find(field);
  if (!value) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Problem("", field, *value, "must be true or false");
  return otherwise;
}

int64_t FieldReader::HeadDim(const ModelConfig& m, const char* width, const char* heads) {
  if (m.d_model % m.heads != 0)
    Add(fmt::format("{}, {}, must divide {}, {}", heads, m.heads, width, m.d_model));
  return std::max<int64_t>(1, m.d_model / m.heads);
}

int64_t FieldReader::MtpDepth() {
  const char* const field = "num_nextn_predict_layers";
  const Json* depth = Find(field);
  return !depth || depth->is_null() || *depth == 0 ? 0 : Size(field);
}

void FieldReader::CheckFixed(std::span<const FixedField> fields) {
  for (const FixedField& field : fields) {
    const Json* value = Find(std::string(field.name));
    const Json allowed = ParseJson(field.allowed);
    if (!value || std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) continue;
    std::vector<std::string> texts;
    for (const Json& one : allowed) texts.push_back(DumpJson(one));
    Problem("", std::string(field.name), *value,
            fmt::format("only {} can be honoured: {}", fmt::join(texts, " or "), field.reason));
  }
}

void FieldReader::CheckRanges(const ModelConfig& model) {
  static const Config kDefaults;
  Config config = kDefaults;
  config.model = model;
  for (const Key& key : Keys()) {
    const bool scaling = key.section() == "model.rope_scaling";
    if (scaling ? !model.rope_scaling : !key.path.starts_with("model.")) continue;
    const Json value = ToJson(key.get(config));
    if (value.is_number() && !key.range.Contains(value.get<double>()))
      Add(fmt::format("it makes {} {}, which must be {}", key.path, DumpJson(value), Allowed(key)));
  }
}

void FieldReader::Problem(const std::string& section, const std::string& field, const Json& value,
                          const std::string& text) {
  std::string shown = DumpJson(value, {.ascii = true, .replace = true});
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  const std::string parent = section.empty() ? "" : PointerTo("", section);
  const JsonMember* member = text_.Find(PointerTo(parent, field));
  const std::string place =
      member ? fmt::format("line {}: ", PositionOf(text_.text(), member->key).line) : "";
  Add(fmt::format("{}{}{}{} = {}: {}", place, section, section.empty() ? "" : ".", field, shown,
                  text));
}

void FieldReader::CheckUnknown() {
  for (const auto& [field, value] : text_.root().items())
    if (!known_.contains(field) && !IsHarmlessField(field))
      Problem("", field, value,
              "not a field that we know, so it cannot be honoured. Remove it if it does not "
              "change the model");
}

void FieldReader::ThrowIfAny() const {
  if (problems_.empty()) return;
  throw Error(ErrorCode::kData, fmt::format("{}: this model cannot be read as it is meant:\n  {}",
                                            name_, fmt::join(problems_, "\n  ")));
}

}  // namespace millrace
