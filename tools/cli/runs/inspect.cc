// millrace inspect: what a checkpoint, a safetensors file or a token file holds, and whether it is
// sound.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/input_file.h"
#include "runtime/data/safetensors/safetensors.h"
#include "runtime/data/tokens/token_source.h"
#include "tools/cli/terminal/console.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// A checkpoint as JSON; with "sound" false and no more than "problems" when its manifest cannot be
// read.
Json CheckpointJson(const std::string& folder) {
  try {
    const CheckpointManifest manifest = ReadManifest(folder);
    const std::vector<std::string> problems = VerifyCheckpoint(folder);
    const Json user = ParseOrderedJson(manifest.user);
    int64_t bytes = 0;
    for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
    return {{"kind", "checkpoint"},
            {"folder", folder},
            {"sound", problems.empty()},
            {"problems", problems},
            {"step", manifest.step},
            {"world", manifest.world},
            {"files", manifest.files.size()},
            {"bytes", bytes},
            {"model", user.value("model", "")},
            {"samples", user.value("samples", int64_t{0})},
            {"adam_t", user.value("adam_t", int64_t{0})},
            {"skipped", user.value("skipped", int64_t{0})},
            {"eval_loss", user.value("eval_loss", Json(nullptr))}};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) throw;
    return {{"kind", "checkpoint"},
            {"folder", folder},
            {"sound", false},
            {"problems", Json::array({std::string(error.what())})}};
  } catch (const Json::exception& error) {
    return {{"kind", "checkpoint"},
            {"folder", folder},
            {"sound", false},
            {"problems",
             Json::array({fmt::format("its manifest is of another version: {}", error.what())})}};
  }
}

// A line each, and behind the first ten how many more there are: `--json` has them all.
std::vector<std::string> ProblemLines(const Json& c) {
  constexpr size_t kShown = 10;
  const Json& problems = c["problems"];
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(problems.size(), kShown); ++i)
    lines.push_back("damaged: " + problems[i].get<std::string>());
  if (problems.size() > kShown)
    lines.push_back(fmt::format("damaged: {} more (--json lists all)", problems.size() - kShown));
  return lines;
}

std::string CheckpointText(const Json& c) {
  std::string text = c["folder"].get<std::string>() + "\n";
  if (c.contains("step"))
    text += fmt::format(
        "checkpoint of step {} by {}: {}, {}\nmodel: {}\nupdates applied {}, skipped {}\n",
        c["step"].get<int64_t>(), Counted(c["world"].get<int64_t>(), "rank"),
        Counted(c["files"].get<int64_t>(), "file"), HumanBytes(c["bytes"].get<int64_t>()),
        c["model"].get<std::string>(), c["adam_t"].get<int64_t>(), c["skipped"].get<int64_t>());
  if (c.contains("eval_loss") && c["eval_loss"].is_number())
    text += fmt::format("held-out loss {:.4f}\n", c["eval_loss"].get<double>());
  for (const std::string& line : ProblemLines(c)) text += line + "\n";
  return text + (c["sound"].get<bool>() ? "every checksum matches" : "do not use it");
}

std::string VerdictText(const Json& c) {
  const std::string folder = c["folder"].get<std::string>();
  if (c["sound"].get<bool>()) return folder + ": sound";
  std::vector<std::string> lines = ProblemLines(c);
  for (std::string& line : lines) line = folder + ": " + line;
  return fmt::format("{}", fmt::join(lines, "\n"));
}

int InspectCheckpoint(const std::string& folder, const InspectArguments& arguments) {
  const Json checkpoint = CheckpointJson(folder);
  std::cout << (arguments.json     ? DumpJson(checkpoint)
                : arguments.verify ? VerdictText(checkpoint)
                                   : CheckpointText(checkpoint))
            << std::endl;
  return checkpoint["sound"].get<bool>() ? 0 : ExitCode(ErrorCode::kCheckpoint);
}

// All checkpoints of a run's folder `root` of them, newest first; as JSON a line each.
int InspectRun(const std::string& root, const InspectArguments& arguments) {
  const std::vector<CheckpointEntry> entries = ListCheckpoints(root);
  MR_REQUIRE(ErrorCode::kCheckpoint, !entries.empty(), "{} holds no checkpoint", root);
  int worst = 0;
  for (const CheckpointEntry& entry : entries)
    worst = std::max(worst, InspectCheckpoint(entry.folder, arguments));
  return worst;
}

// A folder of a checkpoint, whatever its name and whatever is missing from it.
bool IsCheckpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / kManifestName)) return true;
  return std::filesystem::exists(path / CheckpointFileName(0));
}

int InspectSafetensors(const std::string& path, bool json) {
  const SafetensorsFile file(path);
  Json tensors = Json::array();
  for (const TensorInfo& tensor : file.tensors())
    tensors.push_back(
        {{"name", tensor.spec.name}, {"dtype", tensor.spec.dtype}, {"shape", tensor.spec.shape}});
  if (json) {
    std::cout << DumpJson(Json{{"kind", "safetensors"}, {"tensors", tensors}}) << std::endl;
    return 0;
  }
  for (const Json& tensor : tensors)
    std::cout << fmt::format("{:<48} {:<5} {}", tensor["name"].get<std::string>(),
                             tensor["dtype"].get<std::string>(), DumpJson(tensor["shape"]))
              << "\n";
  std::cout << fmt::format("{} tensors", tensors.size()) << std::endl;
  return 0;
}

constexpr char kTakes[] =
    "inspect takes a checkpoint, the folder of a run or of its checkpoints, a file *.safetensors, "
    "and a file or folder of tokens (raw uint16, llm.c's, Megatron's)";

// Whether a file that is not called *.bin, as files of tokens are, begins with nothing but text.
// Raw tokens do not: they are uint16, of which the upper bytes are 0 or as seldom printable as the
// lower ones. Of Megatron's with a byte per token the name says it.
bool IsText(const std::string& path) {
  if (std::filesystem::path(path).extension() == ".bin") return false;
  const InputFile file(path, ErrorCode::kData);
  std::array<unsigned char, 256> start{};
  const auto bytes = std::min<int64_t>(file.size(), start.size());
  file.Read(0, start.data(), bytes);
  return bytes > 0 && std::all_of(start.begin(), start.begin() + bytes, [](unsigned char c) {
           return c >= ' ' || c == '\n' || c == '\r' || c == '\t';
         });
}

std::shared_ptr<const TokenSource> OpenTokens(const std::string& path) {
  TokenSourceOptions options;
  options.kind = TokenSourceOptions::Kind::kTokens;
  options.path = path;
  options.seq_len = 1;
  options.vocab = int64_t{1} << 31;
  try {
    return OpenTokenSource(options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kData) throw;
    throw Error(ErrorCode::kData, fmt::format("{} is no checkpoint, and cannot be read as tokens: "
                                              "{}. {}",
                                              path, error.what(), kTakes));
  }
}

int InspectTokens(const std::string& path, bool json) {
  MR_REQUIRE(ErrorCode::kData, std::filesystem::is_directory(path) || !IsText(path),
             "{} is no checkpoint: it is a file of text. {}", path, kTakes);
  const auto source = OpenTokens(path);
  if (json)
    std::cout << DumpJson(Json{{"kind", "tokens"},
                               {"tokens", source->windows() + 1},
                               {"description", source->Describe()}})
              << std::endl;
  else
    std::cout << source->Describe() << std::endl;
  return 0;
}

}  // namespace

int InspectVerb(const InspectArguments& arguments) {
  namespace fs = std::filesystem;
  const std::string& path = arguments.path;
  MR_REQUIRE(ErrorCode::kData, fs::exists(path), "{} does not exist", path);
  if (fs::is_directory(path) && IsCheckpoint(path)) return InspectCheckpoint(path, arguments);
  if (fs::is_directory(path) && fs::is_directory(fs::path(path) / "checkpoints"))
    return InspectRun(path + "/checkpoints", arguments);
  if (fs::is_directory(path) && (arguments.verify || !ListCheckpoints(path).empty()))
    return InspectRun(path, arguments);
  MR_REQUIRE(ErrorCode::kConfig, !arguments.verify,
             "--verify: {} is neither a checkpoint nor a folder of some, and nothing else carries "
             "checksums",
             path);
  if (fs::path(path).extension() == ".safetensors") return InspectSafetensors(path, arguments.json);
  return InspectTokens(path, arguments.json);
}

}  // namespace millrace
