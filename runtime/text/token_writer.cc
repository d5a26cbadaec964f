#include "runtime/text/token_writer.h"

#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 22;

}  // namespace

TokenWriter::TokenWriter(FileSystem& files, std::string folder, const TokenStamp& stamp,
                         int64_t first)
    : files_(files),
      folder_(std::move(folder)),
      stamp_(stamp),
      bytes_per_token_(stamp.vocab <= 65536 ? 2 : 4),
      number_(first) {}

TokenWriter::~TokenWriter() = default;

std::string TokenWriter::Name() const { return fmt::format("tokens_{:06}.bin", number_); }

void TokenWriter::Append(std::span<const int32_t> ids) {
  if (!file_) {
    file_ = std::make_unique<OutputFile>(files_, folder_ + "/." + Name() + ".part");
    flushed_bytes_ = kTokenHeaderBytes;  // which is written last, when the count is known
  }
  count_ += std::ssize(ids);
  for (const int32_t id : ids) {
    const size_t at = buffer_.size();
    buffer_.resize(at + static_cast<size_t>(bytes_per_token_));
    std::memcpy(&buffer_[at], &id, static_cast<size_t>(bytes_per_token_));  // little-endian
  }
  if (buffer_.size() >= kBufferBytes) Flush();
}

void TokenWriter::Flush() {
  file_->Write(flushed_bytes_, buffer_.data(), std::ssize(buffer_));
  flushed_bytes_ += std::ssize(buffer_);
  buffer_.clear();
}

TokenWriter::Written TokenWriter::Finish() {
  MR_CHECK(file_ && count_ > 0, "no token file is open in {}", folder_);
  Flush();
  const auto header = TokenFileHeader(bytes_per_token_, count_, stamp_);
  file_->Write(0, header.data(), std::ssize(header) * int64_t{sizeof(header[0])});
  file_->SyncAndClose();
  Rename(files_, file_->path(), folder_ + "/" + Name());
  file_.reset();
  return {fmt::format("tokens_{:06}.bin", number_++), std::exchange(count_, 0)};
}

}  // namespace millrace
