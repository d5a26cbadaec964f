// A run's folder of checkpoints: what is there, whether it is sound, and what may go. Format:
// checkpoint_manifest.h.
//
// One process at a time changes the folder (rank 0); listing and verifying may run anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/data/file_system.h"

namespace millrace {

struct CheckpointEntry {
  std::string folder;
  int64_t step = 0;
  std::optional<CheckpointManifest> manifest;  // absent: see `problem`
  std::string problem;  // why it cannot be used, "" if nothing is known against it

  bool usable() const { return problem.empty(); }
};

// The folders step_<n> in `root`, newest first; none if root is missing. Each one's manifest is
// read, and its files' sizes are compared; contents are not: VerifyCheckpoint does that.
std::vector<CheckpointEntry> ListCheckpoints(const std::string& root);

// Reads every byte and compares all checksums. One sentence per problem, naming
// file and blob; empty: sound.
std::vector<std::string> VerifyCheckpoint(const std::string& folder);

// The same for one file of it, so that ranks can share the work.
std::vector<std::string> VerifyCheckpointFile(const std::string& folder,
                                              const CheckpointFile& file);

// The file of it that this process is not let open, and why: permission, a limit on open files, a
// stale mount. Such a checkpoint may be sound. "": there is none, or it cannot be opened for a
// reason of its own.
std::string WhyUnreadable(const std::string& folder);

// Renames a folder to damaged.<name> (with a number if that exists), so that nobody takes it for a
// checkpoint and nothing is lost. Returns the new path.
std::string QuarantineCheckpoint(const std::string& folder,
                                 FileSystem& files = FileSystem::Posix());

// Which checkpoints stay when others go: those that any of the three wants.
struct Retention {
  int64_t newest = 1;                 // so many of the newest; at least 1
  std::optional<int64_t> every = {};  // steps that are multiples of it
  int64_t best = 0;                   // so many with the lowest score; of equal ones the newer
  // What `best` goes by. A checkpoint without one, or with a NaN, is not among them.
  std::function<std::optional<double>(const CheckpointManifest&)> score = {};
};

// Removes the usable checkpoints that `retention` does not want, but never the newest one that
// `is_sound` accepts: if none of the newest that stay passes, the newest older one that does stays
// as well. Unusable ones are neither counted nor removed. `is_sound` is asked newest first until it
// says yes, and only if something is to go. Returns the removed folders.
std::vector<std::string> ThinCheckpoints(
    const std::string& root, const Retention& retention,
    const std::function<bool(const CheckpointEntry&)>& is_sound,
    FileSystem& files = FileSystem::Posix());

// With VerifyCheckpoint as judge.
std::vector<std::string> ThinCheckpoints(const std::string& root, const Retention& retention,
                                         FileSystem& files = FileSystem::Posix());

// Removes the tmp.* folders that a killed run left. Only when no checkpoint is
// being written. Returns them.
std::vector<std::string> RemoveLeftovers(const std::string& root,
                                         FileSystem& files = FileSystem::Posix());

}  // namespace millrace
