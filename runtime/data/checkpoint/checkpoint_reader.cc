#include "runtime/data/checkpoint/checkpoint_reader.h"

#include <utility>

#include "runtime/base/error.h"

namespace millrace {

CheckpointReader::CheckpointReader(std::string folder)
    : folder_(std::move(folder)), manifest_(ReadManifest(folder_)) {
  for (const CheckpointFile& file : manifest_.files) {
    RankFile& rank = ranks_[file.rank];
    rank.file = &file;
    for (const CheckpointBlob& blob : file.blobs) rank.blobs[blob.name] = &blob;
  }
}

bool CheckpointReader::Has(int64_t rank, const std::string& name) const {
  const auto found = ranks_.find(rank);
  return found != ranks_.end() && found->second.blobs.count(name) != 0;
}

const CheckpointBlob& CheckpointReader::Blob(int64_t rank, const std::string& name) const {
  MR_REQUIRE(ErrorCode::kCheckpoint, Has(rank, name),
             "the checkpoint {} has no blob \"{}\" of rank {}", folder_, name, rank);
  return *ranks_.at(rank).blobs.at(name);
}

void CheckpointReader::Read(int64_t rank, const std::string& name, int64_t begin, void* out,
                            int64_t bytes) {
  const CheckpointBlob& blob = Blob(rank, name);
  MR_CHECK(begin >= 0 && bytes >= 0 && begin <= blob.bytes && bytes <= blob.bytes - begin,
           "bytes {} to {} of the {} of \"{}\"", begin, begin + bytes, blob.bytes, name);
  RankFile& file = ranks_.at(rank);
  if (file.input == nullptr) {
    file.input = std::make_unique<InputFile>(folder_ + "/" + CheckpointFileName(rank),
                                             ErrorCode::kCheckpoint);
    MR_REQUIRE(ErrorCode::kCheckpoint, file.input->size() == file.file->bytes,
               "{} has {} bytes, the manifest says {}: truncated, or changed since",
               file.input->path(), file.input->size(), file.file->bytes);
  }
  file.input->Read(blob.offset + begin, out, bytes);
}

}  // namespace millrace
