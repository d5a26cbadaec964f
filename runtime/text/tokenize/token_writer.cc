#include "runtime/text/tokenize/token_writer.h"

#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 22;
constexpr const char *kIds = "bin", *kMask = "mask";

}  // namespace

TokenWriter::TokenWriter(FileSystem& files, std::string folder, const TokenStamp& stamp,
                         int64_t first)
    : files_(files),
      folder_(std::move(folder)),
      stamp_(stamp),
      bytes_per_token_(stamp.vocab <= 65536 ? 2 : 4),
      number_(first) {}

TokenWriter::~TokenWriter() = default;

std::string TokenWriter::Name(const char* ending) const {
  return fmt::format("tokens_{:06}.{}", number_, ending);
}

std::unique_ptr<OutputFile> TokenWriter::Open(const char* ending) const {
  return std::make_unique<OutputFile>(files_, folder_ + "/." + Name(ending) + ".part");
}

void TokenWriter::Append(std::span<const int32_t> ids, std::span<const uint8_t> mask) {
  MR_CHECK(mask.empty() || mask.size() == ids.size(), "a mask of {} for {} ids", mask.size(),
           ids.size());
  if (!file_) {
    file_ = Open(kIds);
    if (!mask.empty()) mask_file_ = Open(kMask);
    flushed_bytes_ = kTokenHeaderBytes;  // which is written last, when the count is known
  }
  MR_CHECK(ids.empty() || mask.empty() == (mask_file_ == nullptr),
           "ids with and without a mask in one file of {}", folder_);
  count_ += std::ssize(ids);
  for (const int32_t id : ids) {
    const size_t at = buffer_.size();
    buffer_.resize(at + static_cast<size_t>(bytes_per_token_));
    std::memcpy(&buffer_[at], &id, static_cast<size_t>(bytes_per_token_));  // little-endian
  }
  mask_buffer_.insert(mask_buffer_.end(), mask.begin(), mask.end());
  if (buffer_.size() >= kBufferBytes) Flush();
}

void TokenWriter::Flush() {
  file_->Write(flushed_bytes_, buffer_.data(), std::ssize(buffer_));
  flushed_bytes_ += std::ssize(buffer_);
  buffer_.clear();
  if (mask_file_)
    mask_file_->Write(count_ - std::ssize(mask_buffer_), mask_buffer_.data(),
                      std::ssize(mask_buffer_));
  mask_buffer_.clear();
}

void TokenWriter::Publish(OutputFile& file, const char* ending) const {
  file.SyncAndClose();
  Rename(files_, file.path(), folder_ + "/" + Name(ending));
}

TokenWriter::Written TokenWriter::Finish() {
  MR_CHECK(file_ && count_ > 0, "no token file is open in {}", folder_);
  Flush();
  const auto header = TokenFileHeader(bytes_per_token_, count_, stamp_);
  file_->Write(0, header.data(), std::ssize(header) * int64_t{sizeof(header[0])});
  if (mask_file_) Publish(*mask_file_, kMask);
  Publish(*file_, kIds);
  mask_file_.reset();
  file_.reset();
  const std::string name = Name(kIds);
  ++number_;
  return {name, std::exchange(count_, 0)};
}

}  // namespace millrace
