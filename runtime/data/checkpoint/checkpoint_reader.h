// Random access to the blobs of a checkpoint, by the rank that wrote them: a resume at the
// same world reads its own, another world size reads the slices that it needs from
// whichever ranks had them.
//
// Contents are not verified here (VerifyCheckpoint); names, sizes and ranges are.
// Errors   kCheckpoint naming file and blob; kIo.      Threads  as one object: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/data/input_file.h"

namespace millrace {

class CheckpointReader {
 public:
  explicit CheckpointReader(std::string folder);

  const std::string& folder() const noexcept { return folder_; }
  const CheckpointManifest& manifest() const noexcept { return manifest_; }

  bool Has(int64_t rank, const std::string& name) const;
  const CheckpointBlob& Blob(int64_t rank, const std::string& name) const;

  // out[0, bytes) = the blob's bytes [begin, begin + bytes). Files are opened when first needed.
  void Read(int64_t rank, const std::string& name, int64_t begin, void* out, int64_t bytes);

 private:
  struct RankFile {
    const CheckpointFile* file = nullptr;
    std::map<std::string, const CheckpointBlob*> blobs;
    std::unique_ptr<InputFile> input;
  };

  std::string folder_;
  CheckpointManifest manifest_;
  std::map<int64_t, RankFile> ranks_;
};

}  // namespace millrace
