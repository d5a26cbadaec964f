// millrace score: log-probabilities of texts, as JSON lines.
#include "runtime/run/eval/score.h"

#include <fmt/core.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/strict_json.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"
#include "tools/cli/use/json_lines.h"
#include "tools/cli/use/tokenizer_codec.h"
#include "tools/cli/use/use.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::vector<int32_t> TokensOfLine(std::string_view line, const std::string& where,
                                  const TextCodec& codec) {
  const JsonOrigin origin{where, ErrorCode::kData};
  const nlohmann::json object = ParseStrictJson(line, 3, origin);
  MR_REQUIRE(ErrorCode::kData,
             object.is_object() && object.size() == 1 &&
                 (object.contains("text") || object.contains("tokens")),
             "{}: the line must be an object with \"text\" or \"tokens\"", where);
  if (object.contains("text")) return codec.Encode(JsonString(object, "text", origin));
  auto tokens = TokenList(object["tokens"]);
  MR_REQUIRE(ErrorCode::kData, tokens.has_value(), "{}: tokens must be a list of tokens", where);
  return *std::move(tokens);
}

std::vector<std::vector<int32_t>> TextsOf(const std::string& path, const TextCodec& codec) {
  std::vector<std::vector<int32_t>> texts;
  if (path.ends_with(".jsonl")) {
    ForEachLine(path, [&](std::string_view line, const std::string& where) {
      texts.push_back(TokensOfLine(line, where, codec));
    });
    return texts;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  MR_REQUIRE(ErrorCode::kData, file.good() && !text.empty(), "{}: cannot be read, or is empty",
             path);
  texts.push_back(codec.Encode(text));
  return texts;
}

Json LineOf(size_t index, const std::vector<int32_t>& text, const std::vector<double>& scores) {
  Json logprobs = Json::array({nullptr});  // nothing is ahead of the first token
  double sum = 0;
  for (const double score : scores) {
    sum += score;
    logprobs.push_back(static_cast<float>(score));
  }
  return {{"index", index}, {"tokens", text}, {"logprobs", std::move(logprobs)}, {"sum", sum}};
}

}  // namespace

int ScoreVerb(const ScoreArguments& arguments) {
  const PlanSelection plans{"score"};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    const std::vector<std::vector<int32_t>> texts =
        TextsOf(arguments.input, *CodecOf(context.config.config));
    const ModelConfig& model = context.config.config.model;
    MR_REQUIRE(ErrorCode::kConfig, arguments.stride <= model.seq_len,
               "--stride is {}; allowed is 0 to model.seq_len = {}", arguments.stride,
               model.seq_len);
    Session session(context.config.config, context.environment, {plans, false});
    LoadWeights(context, session, arguments.checkpoint);
    const ScoreOptions options{arguments.stride};
    const std::vector<std::vector<double>> scores = Score(session, texts, options);
    bool refused = false;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto refusal = RefusalOf(texts[i], model, options);
      refused |= refusal.has_value();
      if (!context.leader()) continue;
      const Json line =
          refusal
              ? Json{{"index", i},
                     {"error", {{"reason", Name(refusal->reason)}, {"message", refusal->message}}}}
              : LineOf(i, texts[i], scores[i]);
      std::cout << DumpJson(line) << "\n";
    }
    std::cout << std::flush;
    return refused ? ExitCode(ErrorCode::kConfig) : 0;
  });
}

}  // namespace millrace
