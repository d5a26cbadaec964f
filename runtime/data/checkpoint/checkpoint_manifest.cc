#include "runtime/data/checkpoint/checkpoint_manifest.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/hash.h"
#include "runtime/data/input_file.h"
#include "runtime/data/safetensors/safetensors.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr ErrorCode kManifestError = ErrorCode::kCheckpoint;
constexpr int64_t kLargestManifest = int64_t{1} << 30;
constexpr int kDepth = 64;  // the writer's own JSON may nest

// {"format":"millrace-checkpoint","version":1,"xxh3":"<32 digits>","content":
// <content>
// }
constexpr std::string_view kFormat = "{\"format\":\"millrace-checkpoint\",\"version\":";
constexpr std::string_view kVersion = "1,\"xxh3\":\"";
constexpr std::string_view kContent = "\",\"content\":\n";
constexpr std::string_view kEnd = "\n}\n";
constexpr size_t kHashDigits = 32;
constexpr size_t kContentStart = kFormat.size() + kVersion.size() + kHashDigits + kContent.size();

std::string Seal(const ordered_json& content) {
  std::string text;
  try {
    text = DumpJson(content, {.indent = 1});
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a name or text in the checkpoint is not UTF-8: {}", error.what()));
  }
  return fmt::format("{}{}{}{}{}{}", kFormat, kVersion, Hash128(text), kContent, text, kEnd);
}

std::string_view Unseal(std::string_view text, const std::string& origin) {
  MR_REQUIRE(kManifestError, text.substr(0, kFormat.size()) == kFormat,
             "{} is damaged, or not a file of a checkpoint", origin);
  MR_REQUIRE(kManifestError, text.substr(kFormat.size(), kVersion.size()) == kVersion,
             "{} is damaged, or of another version; this program reads version 1", origin);
  const bool framed = text.size() >= kContentStart + kEnd.size() &&
                      text.substr(kContentStart - kContent.size(), kContent.size()) == kContent &&
                      text.substr(text.size() - kEnd.size()) == kEnd;
  MR_REQUIRE(kManifestError, framed, "{} is damaged: cut off or altered", origin);
  const std::string_view content =
      text.substr(kContentStart, text.size() - kContentStart - kEnd.size());
  const std::string_view stored = text.substr(kFormat.size() + kVersion.size(), kHashDigits);
  const std::string found = Hash128(content);
  MR_REQUIRE(kManifestError, stored == found,
             "{} is damaged: its content has the XXH3-128 {}, not {}", origin, found, stored);
  return content;
}

ordered_json ToJson(const CheckpointFile& file) {
  ordered_json blobs = ordered_json::array();
  for (const CheckpointBlob& blob : file.blobs)
    blobs.push_back({{"name", blob.name},
                     {"dtype", blob.dtype},
                     {"numel", blob.numel},
                     {"offset", blob.offset},
                     {"bytes", blob.bytes},
                     {"xxh3", blob.xxh3}});
  return {{"rank", file.rank},
          {"bytes", file.bytes},
          {"header_xxh3", file.header_xxh3},
          {"blobs", std::move(blobs)}};
}

CheckpointFile FileFromJson(const nlohmann::json& json, const JsonOrigin& origin) {
  CheckpointFile file{.rank = JsonCount(json, "rank", origin),
                      .bytes = JsonCount(json, "bytes", origin),
                      .header_xxh3 = JsonString(json, "header_xxh3", origin),
                      .blobs = {}};
  const nlohmann::json& blobs = JsonField(json, "blobs", origin);
  MR_REQUIRE(kManifestError, blobs.is_array(), "{}: blobs must be an array", origin.name);
  int64_t end = -1;
  for (const nlohmann::json& entry : blobs) {
    CheckpointBlob blob{.name = JsonString(entry, "name", origin),
                        .dtype = JsonString(entry, "dtype", origin),
                        .numel = JsonCount(entry, "numel", origin),
                        .offset = JsonCount(entry, "offset", origin),
                        .bytes = JsonCount(entry, "bytes", origin),
                        .xxh3 = JsonString(entry, "xxh3", origin)};
    int64_t bytes = 0;
    MR_REQUIRE(kManifestError,
               !__builtin_mul_overflow(blob.numel, SafetensorsElementBytes(blob.dtype), &bytes) &&
                   bytes == blob.bytes && blob.offset <= file.bytes &&
                   blob.bytes <= file.bytes - blob.offset && (end < 0 || blob.offset == end),
               "{}: blob \"{}\" ({} {}, {} bytes at {}) does not fit into its place", origin.name,
               blob.name, blob.numel, blob.dtype, blob.bytes, blob.offset);
    end = blob.offset + blob.bytes;
    file.blobs.push_back(std::move(blob));
  }
  MR_REQUIRE(kManifestError, end < 0 || end == file.bytes,
             "{}: the blobs of rank {} end at {} of {} bytes", origin.name, file.rank, end,
             file.bytes);
  return file;
}

}  // namespace

std::string CheckpointFileName(int64_t rank) {
  return fmt::format("rank_{:05d}.safetensors", rank);
}
std::string CheckpointRecordName(int64_t rank) { return fmt::format("rank_{:05d}.json", rank); }
std::string CheckpointFolderName(int64_t step) { return fmt::format("step_{:08d}", step); }

std::string PrintRecord(const CheckpointFile& file) { return Seal(ToJson(file)); }

CheckpointFile ParseRecord(std::string_view text, const std::string& origin) {
  const JsonOrigin where{origin, kManifestError};
  return FileFromJson(ParseStrictJson(Unseal(text, origin), kDepth, where), where);
}

std::string PrintManifest(const CheckpointManifest& manifest) {
  ordered_json files = ordered_json::array();
  for (const CheckpointFile& file : manifest.files) files.push_back(ToJson(file));
  ordered_json user = TryParseOrderedJson(manifest.user);
  MR_REQUIRE(ErrorCode::kInvalidArgument, user.is_object(),
             "a checkpoint's user data must be a JSON object");
  return Seal({{"step", manifest.step},
               {"world", manifest.world},
               {"identity", manifest.identity},
               {"user", std::move(user)},
               {"files", std::move(files)}});
}

CheckpointManifest ParseManifest(std::string_view text, const std::string& origin) {
  const JsonOrigin where{origin, kManifestError};
  const nlohmann::json json = ParseStrictJson(Unseal(text, origin), kDepth, where);
  CheckpointManifest manifest{.step = JsonCount(json, "step", where),
                              .world = JsonCount(json, "world", where),
                              .identity = JsonString(json, "identity", where),
                              .user = DumpJson(JsonField(json, "user", where)),
                              .files = {}};
  MR_REQUIRE(kManifestError, JsonField(json, "user", where).is_object(),
             "{}: user must be an object", origin);
  const nlohmann::json& files = JsonField(json, "files", where);
  MR_REQUIRE(kManifestError, files.is_array() && !files.empty(),
             "{}: files must be a non-empty array", origin);
  int64_t previous = -1;
  for (const nlohmann::json& entry : files) {
    manifest.files.push_back(FileFromJson(entry, where));
    const int64_t rank = manifest.files.back().rank;
    MR_REQUIRE(kManifestError, rank > previous && rank < manifest.world,
               "{}: rank {} after rank {} in a world of {}", origin, rank, previous,
               manifest.world);
    previous = rank;
  }
  return manifest;
}

CheckpointManifest ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  return ParseManifest(ReadWholeFile(path, kLargestManifest, kManifestError), path);
}

}  // namespace millrace
