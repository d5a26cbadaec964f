// Writing a checkpoint (its format: checkpoint_manifest.h). Three phases, with barriers by the
// caller:
//
//   1. one rank   PrepareCheckpoint: the temporary folder exists.
//   2. each rank  CheckpointWriter: declare the blobs, write them, Finish: file and record are
//                 durable.
//   3. one rank   PublishCheckpoint: joins the records into the manifest, makes it durable, and
//                 renames the folder to its final name. Before that no reader sees anything, after
//                 it everything.
//
// A kill, a crash of the machine or a failed write at any point leaves earlier checkpoints as they
// were. After an error the caller calls AbandonCheckpoint, on one rank; what a killed run left goes
// with RemoveLeftovers.
//
// Errors   kIo from the machine (disk full, ...); kCheckpoint if a checkpoint of this step exists,
//          or if a record is missing or does not match its file; kInvalidArgument for wrong
//          declarations; kInternal for too much or too little data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/data/file_system.h"
#include "runtime/data/hash.h"

namespace millrace {

// Where a checkpoint goes; the same on every rank.
struct CheckpointPlace {
  std::string root;  // run.dir/checkpoints; made if missing
  int64_t step = 0;
  std::string id;  // of this attempt: letters, digits, '-' and '_'. Not used before in `root`

  std::string TemporaryFolder() const;
  std::string Folder() const;
};

void PrepareCheckpoint(const CheckpointPlace& place, FileSystem& files = FileSystem::Posix());

class CheckpointWriter {
 public:
  struct Blob {
    std::string name;
    DType dtype = DType::kF32;
    int64_t numel = 0;
  };

  CheckpointWriter(const CheckpointPlace& place, int64_t rank, const std::vector<Blob>& blobs,
                   FileSystem& files = FileSystem::Posix());

  // The next bytes of blobs[index], from front to back. Blobs may take turns.
  void Write(int64_t index, const void* data, int64_t bytes);

  // Every blob must be complete.
  void Finish();

 private:
  FileSystem& files_;
  std::string folder_;
  CheckpointFile record_;          // blobs by rising offset
  std::vector<size_t> position_;   // of blobs[index] in record_.blobs
  std::vector<int64_t> written_;   // bytes, by position
  std::vector<Hasher128> hashes_;  // by position
  std::unique_ptr<OutputFile> file_;
};

// `manifest` without files; its step is the place's. `ranks`: those that wrote, rising.
void PublishCheckpoint(const CheckpointPlace& place, CheckpointManifest manifest,
                       const std::vector<int64_t>& ranks, FileSystem& files = FileSystem::Posix());

// Removes what was written so far. Never throws: it runs on error paths.
void AbandonCheckpoint(const CheckpointPlace& place,
                       FileSystem& files = FileSystem::Posix()) noexcept;

}  // namespace millrace
