#include "runtime/text/tokenize/tokenize_state.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"
#include "runtime/data/tokens/loss_mask.h"
#include "runtime/data/tokens/made_folder.h"
#include "runtime/data/tokens/token_files.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostStateBytes = int64_t{64} << 20;
constexpr int kMostDepth = 4;
constexpr const char *kForm = "from", *kTemplate = "template", *kTargets = "targets";

std::string StatePath(const TokenizeOptions& options) {
  return options.folder + "/" + kMadeFolderState;
}

// An input as it is named and as it lies there: one that was written to since has another time.
Json InputIdentity(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  MR_REQUIRE(ErrorCode::kData, !error, "{}: {}", path, error.message());
  const auto modified = std::filesystem::last_write_time(path, error);
  MR_REQUIRE(ErrorCode::kData, !error, "{}: {}", path, error.message());
  const auto since_1970 = std::chrono::file_clock::to_sys(modified).time_since_epoch();
  return {{"path", path},
          {"bytes", bytes},
          {"modified_ns", std::chrono::nanoseconds(since_1970).count()}};
}

// What decides about the files' bytes; a job that differs in any of it is another.
Json Identity(const TokenStamp& stamp, const TokenizeOptions& options) {
  Json inputs = Json::array();
  for (const std::string& path : options.inputs) inputs.push_back(InputIdentity(path));
  const DocumentOptions& documents = options.documents;
  const bool messages = documents.form == DocumentForm::kMessages;
  return {{kForm, Name(documents.form)},
          {"tokenizer", stamp.tokenizer},
          {"vocab", stamp.vocab},
          {"field", documents.field.empty() ? Name(documents.form) : documents.field},
          {"separator", documents.separator ? Json(*documents.separator) : Json(nullptr)},
          {"special", documents.special == SpecialText::kToken},
          {kTemplate, messages ? Json(Name(documents.chat)) : Json(nullptr)},
          {"file_tokens", options.file_tokens},
          {"inputs", inputs}};
}

// What differs first, for people: of inputs the one that does. "": nothing.
std::string Difference(const nlohmann::json& saved, const Json& now, const JsonOrigin& origin) {
  const auto differs = [](const std::string& what, const nlohmann::json& there,
                          const nlohmann::json& here) {
    return fmt::format("{} differs ({} there, {} here)", what, DumpJson(there, {.replace = true}),
                       DumpJson(here, {.replace = true}));
  };
  for (const auto& [key, wanted] : now.items()) {
    // A folder of a version that knew text alone does not say so.
    const bool implied = !saved.contains(key) && (key == kForm || key == kTemplate);
    const nlohmann::json text = key == kForm ? Json(Name(DocumentForm::kText)) : Json(nullptr);
    const nlohmann::json& there = implied ? text : JsonField(saved, key, origin);
    const nlohmann::json here = wanted;
    if (there == here) continue;
    if (key != "inputs") return differs(key, there, here);
    MR_REQUIRE(ErrorCode::kData, there.is_array(), "{}: \"inputs\" is no array", origin.name);
    if (there.size() != here.size()) return differs("inputs' number", there.size(), here.size());
    const auto [first, with] = std::mismatch(there.begin(), there.end(), here.begin());
    return differs(fmt::format("inputs[{}]", first - there.begin()), *first, *with);
  }
  return "";
}

// The first token file in the folder, in no order; "": none.
std::string AnyTokenFile(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".bin") return entry.path().filename().string();
  return "";
}

// A file that ends earlier than its header says is found here, and not by a run weeks later.
void CheckFile(const TokenizeState::File& file, const TokenizeOptions& options) {
  const auto segments = OpenTokenFiles({options.folder + "/" + file.name}, TokenFileKind::kTokens);
  MR_REQUIRE(ErrorCode::kData, segments[0].count == file.tokens,
             "{}/{} has {} tokens, but tokens.json says {}", options.folder, file.name,
             segments[0].count, file.tokens);
  if (options.documents.form == DocumentForm::kMessages)
    LossMask(segments[0].file->path(), file.tokens);
}

// One that TextBlocks can go on from: in an input, or behind the last one. An offset behind an
// input's end is found when it is read.
TextPlace PlaceOf(const nlohmann::json& saved, bool done, const TokenizeOptions& options,
                  const JsonOrigin& origin) {
  const nlohmann::json& next = JsonField(saved, "next", origin);
  const TextPlace place = {.file = JsonCount(next, "file", origin),
                           .offset = JsonCount(next, "offset", origin),
                           .line = JsonCount(next, "line", origin)};
  const int64_t inputs = std::ssize(options.inputs);
  MR_REQUIRE(ErrorCode::kData, place.file < inputs || place == TextPlace{.file = inputs},
             "{}: \"next\" is {}, but there are {} inputs", origin.name,
             DumpJson(next, {.replace = true}), inputs);
  MR_REQUIRE(ErrorCode::kData, !done || place.file == inputs,
             "{}: \"done\" is true, but \"next\" is {}, before the end of the {} inputs",
             origin.name, DumpJson(next, {.replace = true}), inputs);
  return place;
}

}  // namespace

int64_t TokenizeState::Tokens() const {
  int64_t tokens = 0;
  for (const File& file : files) tokens += file.tokens;
  return tokens;
}

TokenizeState LoadTokenizeState(const TokenStamp& stamp, const TokenizeOptions& options) {
  const std::string path = StatePath(options);
  const std::string token_file = AnyTokenFile(options.folder);
  if (!std::filesystem::exists(path)) {
    MR_REQUIRE(ErrorCode::kConfig, token_file.empty(),
               "{} has {}, but no tokens.json: name a folder without token files", options.folder,
               token_file);
    return {};
  }
  const JsonOrigin origin{path, ErrorCode::kData};
  const nlohmann::json saved =
      ParseStrictJson(ReadWholeFile(path, kMostStateBytes, ErrorCode::kData), kMostDepth, origin);
  const std::string difference = Difference(saved, Identity(stamp, options), origin);
  if (!difference.empty() && JsonField(saved, "files", origin).empty() && token_file.empty())
    return {};  // it ended before its first file: nothing of it is here
  MR_REQUIRE(ErrorCode::kConfig, difference.empty(), "{} is another job's: {}; name another folder",
             path, difference);
  TokenizeState state;
  state.documents = JsonCount(saved, "documents", origin);
  state.text_bytes = JsonCount(saved, "text_bytes", origin);
  if (saved.contains(kTargets)) state.targets = JsonCount(saved, kTargets, origin);
  const nlohmann::json& done = JsonField(saved, kMadeFolderDone, origin);
  MR_REQUIRE(ErrorCode::kData, done.is_boolean(), "{}: \"done\" is {}, not true or false", path,
             DumpJson(done, {.replace = true}));
  state.done = done.get<bool>();
  state.next = PlaceOf(saved, state.done, options, origin);
  const nlohmann::json& files = JsonField(saved, "files", origin);
  MR_REQUIRE(ErrorCode::kData, files.is_array(), "{}: \"files\" is no array", path);
  for (const nlohmann::json& file : files) {
    state.files.push_back({JsonString(file, "name", origin), JsonCount(file, "tokens", origin)});
    CheckFile(state.files.back(), options);
  }
  const int64_t tokens = JsonCount(saved, "tokens", origin);
  MR_REQUIRE(ErrorCode::kData, state.Tokens() == tokens,
             "{}: \"tokens\" is {}, but the {} files in \"files\" have {}", path, tokens,
             state.files.size(), state.Tokens());
  return state;
}

void SaveTokenizeState(const TokenStamp& stamp, const TokenizeOptions& options,
                       const TokenizeState& state, FileSystem& files) {
  Json document = Identity(stamp, options);
  document[kMadeFolderDone] = state.done;
  document["documents"] = state.documents;
  document["text_bytes"] = state.text_bytes;
  document[kTargets] = state.targets;
  document["tokens"] = state.Tokens();
  document["next"] = {
      {"file", state.next.file}, {"offset", state.next.offset}, {"line", state.next.line}};
  document["files"] = Json::array();
  for (const TokenizeState::File& file : state.files)
    document["files"].push_back({{"name", file.name}, {"tokens", file.tokens}});
  WriteFileAtomically(files, StatePath(options), DumpJson(document, {.indent = 1}) + "\n");
}

}  // namespace millrace
