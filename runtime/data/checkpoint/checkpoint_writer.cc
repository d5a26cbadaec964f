#include "runtime/data/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/data/safetensors/safetensors.h"

namespace millrace {
namespace {

void RequireNew(const CheckpointPlace& place) {
  std::error_code ignored;
  MR_REQUIRE(ErrorCode::kCheckpoint,
             !std::filesystem::exists(std::filesystem::symlink_status(place.Folder(), ignored)),
             "{} exists already", place.Folder());
}

}  // namespace

std::string CheckpointPlace::TemporaryFolder() const {
  const bool plain = !id.empty() && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  MR_REQUIRE(ErrorCode::kInvalidArgument, plain && step >= 0,
             "checkpoint step {} with id \"{}\": a step from 0, and letters, digits, '-' and '_'",
             step, id);
  return fmt::format("{}/tmp.{}.{}", root, step, id);
}

std::string CheckpointPlace::Folder() const {
  return fmt::format("{}/{}", root, CheckpointFolderName(step));
}

void PrepareCheckpoint(const CheckpointPlace& place, FileSystem& files) {
  RequireNew(place);
  MakeFolder(files, place.TemporaryFolder());
}

CheckpointWriter::CheckpointWriter(const CheckpointPlace& place, int64_t rank,
                                   const std::vector<Blob>& blobs, FileSystem& files)
    : files_(files),
      folder_(place.TemporaryFolder()),
      position_(blobs.size()),
      written_(blobs.size(), 0) {
  std::vector<TensorSpec> specs;
  for (const Blob& blob : blobs)
    specs.push_back(
        {.name = blob.name, .dtype = SafetensorsName(blob.dtype), .shape = {blob.numel}});
  const SafetensorsLayout layout = PlanSafetensors(specs, {{"format", "millrace-checkpoint"}});

  std::vector<size_t> order(
      blobs.size());  // by offset; an empty blob comes before what starts at the same place
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(layout.tensors[a].offset, layout.tensors[a].bytes) <
           std::pair(layout.tensors[b].offset, layout.tensors[b].bytes);
  });
  record_.rank = rank;
  record_.bytes = layout.file_bytes;
  record_.header_xxh3 = Hash128(layout.header);
  for (size_t position = 0; position < order.size(); ++position) {
    const TensorInfo& tensor = layout.tensors[order[position]];
    position_[order[position]] = position;
    record_.blobs.push_back({.name = tensor.spec.name,
                             .dtype = tensor.spec.dtype,
                             .numel = tensor.numel,
                             .offset = tensor.offset,
                             .bytes = tensor.bytes,
                             .xxh3 = ""});
  }
  hashes_.resize(blobs.size());
  file_ = std::make_unique<OutputFile>(files_, folder_ + "/" + CheckpointFileName(rank));
  file_->Reserve(layout.file_bytes);
  file_->Write(0, layout.header.data(), static_cast<int64_t>(layout.header.size()));
}

void CheckpointWriter::Write(int64_t index, const void* data, int64_t bytes) {
  MR_CHECK(file_ != nullptr && index >= 0 && index < int64_t(position_.size()),
           "blob {} of {} in {}", index, position_.size(), folder_);
  const size_t position = position_[static_cast<size_t>(index)];
  const CheckpointBlob& blob = record_.blobs[position];
  MR_CHECK(bytes >= 0 && bytes <= blob.bytes - written_[position],
           "blob \"{}\" has {} bytes; {} more after {} are too many", blob.name, blob.bytes, bytes,
           written_[position]);
  // In pieces that stay in the cache between hashing and writing.
  constexpr int64_t kPiece = int64_t{1} << 20;
  const char* cursor = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes; done += kPiece) {
    const int64_t length = std::min(kPiece, bytes - done);
    hashes_[position].Update(cursor + done, length);
    file_->Write(blob.offset + written_[position], cursor + done, length);
    written_[position] += length;
  }
}

void CheckpointWriter::Finish() {
  MR_CHECK(file_ != nullptr, "the checkpoint of rank {} is finished already", record_.rank);
  for (size_t i = 0; i < record_.blobs.size(); ++i) {
    MR_CHECK_EQ(written_[i], record_.blobs[i].bytes, "blob \"{}\" is not complete",
                record_.blobs[i].name);
    record_.blobs[i].xxh3 = hashes_[i].Hex();
  }
  file_->SyncAndClose();
  file_.reset();
  // Its rename also syncs the folder, and with it the name of the data file.
  WriteFileAtomically(files_, folder_ + "/" + CheckpointRecordName(record_.rank),
                      PrintRecord(record_));
}

void PublishCheckpoint(const CheckpointPlace& place, CheckpointManifest manifest,
                       const std::vector<int64_t>& ranks, FileSystem& files) {
  const std::string folder = place.TemporaryFolder();
  manifest.step = place.step;
  manifest.files.clear();
  for (const int64_t rank : ranks) {
    const std::string record_path = folder + "/" + CheckpointRecordName(rank);
    constexpr int64_t kLargestRecord = int64_t{1} << 28;
    manifest.files.push_back(ParseRecord(
        ReadWholeFile(record_path, kLargestRecord, ErrorCode::kCheckpoint), record_path));
    const CheckpointFile& record = manifest.files.back();
    const InputFile file(folder + "/" + CheckpointFileName(rank), ErrorCode::kCheckpoint);
    MR_REQUIRE(ErrorCode::kCheckpoint, record.rank == rank && file.size() == record.bytes,
               "{} describes rank {} and {} bytes; {} has {} bytes", record_path, record.rank,
               record.bytes, file.path(), file.size());
  }
  const std::string text = PrintManifest(manifest);
  ParseManifest(text,
                folder + "/" + kManifestName);  // what could not be read back must not be published
  WriteFileAtomically(files, folder + "/" + kManifestName, text);
  for (const int64_t rank : ranks) RemoveTree(files, folder + "/" + CheckpointRecordName(rank));
  SyncFolder(files, folder);
  RequireNew(place);
  Rename(files, folder, place.Folder());
}

void AbandonCheckpoint(const CheckpointPlace& place, FileSystem& files) noexcept {
  try {
    RemoveTree(files, place.TemporaryFolder());
  } catch (const std::exception&) {
    // What is left is a tmp.* folder, which RemoveLeftovers removes when the run next starts.
  }
}

}  // namespace millrace
