#include "tools/cli/use/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/strict_json.h"
#include "tools/cli/use/json_lines.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKeys[] = {"prompt", "max_tokens", "temperature", "top_k", "top_p",
                                      "min_p",  "seed",       "samples",     "stop",  "logprobs"};

Prompt FromWords(const GenerateArguments& arguments) {
  Prompt prompt;
  prompt.has_length = arguments.tokens.has_value();
  prompt.request.max_tokens = arguments.tokens.value_or(kDefaultTokens);
  prompt.request.samples = arguments.samples;
  Sampling& sampling = prompt.request.sampling;
  sampling.temperature = static_cast<float>(arguments.temperature);
  sampling.top_k = static_cast<int32_t>(arguments.top_k);
  sampling.top_p = static_cast<float>(arguments.top_p);
  sampling.min_p = static_cast<float>(arguments.min_p);
  sampling.seed = static_cast<uint64_t>(arguments.seed);
  sampling.top = static_cast<int32_t>(arguments.logprobs);
  prompt.stop = arguments.stop;
  return prompt;
}

// A line's fields over the command line's.
class Line {
 public:
  Line(std::string_view text, const std::string& where)
      : origin_{where, ErrorCode::kData}, object_(ParseStrictJson(text, 3, origin_)) {
    Require(object_.is_object(), "the line", "an object");
    for (const auto& [key, value] : object_.items())
      MR_REQUIRE(ErrorCode::kData,
                 std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys),
                 "{}: \"{}\" is not known; there are {}", where, key, fmt::join(kKeys, ", "));
  }

  bool Has(const char* key) const { return object_.contains(key); }
  void Read(const char* key, int64_t& value, int64_t most) const {
    if (!Has(key)) return;
    const Json& field = object_[key];
    Require(field.is_number_integer() && field >= 0 && field <= most, key,
            fmt::format("an integer from 0 to {}", most));
    value = field.get<int64_t>();
  }
  void Read(const char* key, int32_t& value) const {
    int64_t wide = value;
    Read(key, wide, 1 << 20);
    value = static_cast<int32_t>(wide);
  }
  void Read(const char* key, float& value) const {
    if (!Has(key)) return;
    Require(object_[key].is_number(), key, "a number");
    value = object_[key].get<float>();
  }
  void Read(const char* key, std::vector<std::string>& value) const {
    if (!Has(key)) return;
    const Json& field = object_[key];
    const bool several =
        field.is_array() && std::all_of(field.begin(), field.end(),
                                        [](const Json& s) { return s.is_string() && s != ""; });
    Require((field.is_string() && field != "") || several, key,
            "a text that is not empty, or several");
    value.clear();
    if (!several) return value.push_back(field.get<std::string>());
    for (const Json& each : field) value.push_back(each.get<std::string>());
  }
  void ReadPrompt(Prompt& prompt, const TextCodec& codec) const {
    const Json& field = JsonField(object_, "prompt", origin_);
    auto tokens = TokenList(field);
    Require(field.is_string() || tokens, "prompt", "a text, or a list of tokens");
    if (tokens) {
      prompt.request.prompt = *std::move(tokens);
      return;
    }
    prompt.text = field.get<std::string>();
    prompt.request.prompt = codec.Encode(prompt.text);
  }

 private:
  void Require(bool holds, std::string_view key, std::string_view what) const {
    MR_REQUIRE(ErrorCode::kData, holds, "{}: {} must be {}", origin_.name, key, what);
  }

  JsonOrigin origin_;
  Json object_;
};

Prompt FromLine(std::string_view text, const std::string& where, const GenerateArguments& arguments,
                const TextCodec& codec) {
  const Line line(text, where);
  Prompt prompt = FromWords(arguments);
  line.ReadPrompt(prompt, codec);
  line.Read("max_tokens", prompt.request.max_tokens, 1 << 20);
  prompt.has_length |= line.Has("max_tokens");
  line.Read("samples", prompt.request.samples, 1 << 20);
  Sampling& sampling = prompt.request.sampling;
  auto seed = static_cast<int64_t>(sampling.seed);
  line.Read("seed", seed, INT64_MAX);
  sampling.seed = static_cast<uint64_t>(seed);
  line.Read("temperature", sampling.temperature);
  line.Read("top_k", sampling.top_k);
  line.Read("top_p", sampling.top_p);
  line.Read("min_p", sampling.min_p);
  line.Read("logprobs", sampling.top);
  line.Read("stop", prompt.stop);
  return prompt;
}

}  // namespace

std::vector<Prompt> PromptsOf(const GenerateArguments& arguments, const TextCodec& codec) {
  std::vector<Prompt> prompts;
  std::vector<std::string> texts = arguments.prompts;
  if (texts.empty() && arguments.file.empty()) texts = {"The "};
  for (const std::string& text : texts) {
    MR_REQUIRE(ErrorCode::kConfig, !text.empty(),
               "--prompt is empty; generation goes on from at least one byte");
    Prompt& prompt = prompts.emplace_back(FromWords(arguments));
    prompt.text = text;
    prompt.request.prompt = codec.Encode(text);
  }
  if (arguments.file.empty()) return prompts;
  ForEachLine(arguments.file, [&](std::string_view line, const std::string& where) {
    prompts.push_back(FromLine(line, where, arguments, codec));
  });
  return prompts;
}

}  // namespace millrace
