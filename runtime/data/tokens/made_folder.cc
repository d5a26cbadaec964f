#include "runtime/data/tokens/made_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"

namespace millrace {

void RequireWholeFolder(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  constexpr int kMostDepth = 4;
  const std::string state = path + "/" + kMadeFolderState;
  if (std::error_code error; !std::filesystem::is_regular_file(state, error)) return;
  const nlohmann::json said = ParseStrictJson(ReadWholeFile(state, kMostBytes, ErrorCode::kData),
                                              kMostDepth, {state, ErrorCode::kData});
  const auto done = said.find(kMadeFolderDone);
  MR_REQUIRE(ErrorCode::kData, done == said.end() || *done != false,
             "{}: \"{}\" is false: `millrace tokenize` has not ended, and the files are a part of "
             "its text. The same command again makes the rest; name the files one by one to train "
             "on what is there",
             state, kMadeFolderDone);
}

}  // namespace millrace
