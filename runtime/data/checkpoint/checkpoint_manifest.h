// What a checkpoint folder holds. The store knows files, blobs and checksums; what a blob means is
// its writer's business.
//
//   <root>/step_00000123/            root is run.dir/checkpoints
//     rank_00000.safetensors         one per writing rank: its blobs as one-dimensional tensors
//     manifest.json                  everything below, written last
//   <root>/tmp.<step>.<id>/          a checkpoint being written, or what a
//   killed run left; never read
//   <root>/damaged.step_00000123/    put aside by QuarantineCheckpoint
//
// A checkpoint exists when its folder has its final name: the rename happens after every byte in it
// is durable. manifest.json begins with a fixed line that carries the XXH3-128 of the rest, so no
// byte of a checkpoint is without a checksum: blobs and each file's header have theirs in the
// manifest, the manifest in itself.
//
// Errors   kCheckpoint naming folder, file and blob; kIo when the machine fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct CheckpointBlob {
  std::string name;
  std::string dtype;  // safetensors' name: "F32"
  int64_t numel = 0;
  int64_t offset = 0;  // of its first byte, from the start of the file
  int64_t bytes = 0;
  std::string xxh3;  // XXH3-128 of the bytes
  bool operator==(const CheckpointBlob&) const = default;
};

struct CheckpointFile {
  int64_t rank = 0;  // that wrote it; its name is CheckpointFileName(rank)
  int64_t bytes = 0;
  std::string header_xxh3;  // of everything before the first blob
  // In the order of their offsets; they cover the rest of the file.
  std::vector<CheckpointBlob> blobs;
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  int64_t step = 0;
  int64_t world = 0;  // ranks of the run that wrote it
  // Of model and configuration, as the writer defines it: a resume compares it.
  std::string identity;
  std::string user = "{}";  // the writer's own JSON object, as text
  // By rising rank; ranks that had nothing of their own to save have none.
  std::vector<CheckpointFile> files;
  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr const char* kManifestName = "manifest.json";

std::string CheckpointFileName(int64_t rank);  // rank_00000.safetensors
std::string CheckpointRecordName(
    int64_t rank);  // rank_00000.json: that file's part of the manifest, on its way there
std::string CheckpointFolderName(int64_t step);  // step_00000123

// Text and back. Parse checks the checksum, then that the content makes sense (blobs inside the
// file, rising ranks below world, ...); `origin` is the file that errors name.
std::string PrintManifest(const CheckpointManifest& manifest);
CheckpointManifest ParseManifest(std::string_view text, const std::string& origin);
std::string PrintRecord(const CheckpointFile& file);
CheckpointFile ParseRecord(std::string_view text, const std::string& origin);

// The manifest of a checkpoint folder.
CheckpointManifest ReadManifest(const std::string& folder);

}  // namespace millrace
