#include "runtime/exec/arena/host_copies.h"

#include <cstring>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {

void HostCopies::Write(int32_t key, const TensorView& to, std::span<const std::byte> bytes) {
  Staged& staged = staged_[key];
  if (!staged.buffer)
    staged.buffer = device_.AllocateHost(to.bytes(), "what the host writes of a state");
  MR_CHECK_EQ(static_cast<int64_t>(bytes.size()), to.bytes(), "bytes of what the host writes");
  if (staged.copying) stream_.Sync();
  std::memcpy(staged.buffer->data(), bytes.data(), bytes.size());
  device_.EnqueueFromHost(to.data, staged.buffer->data(), to.bytes(), stream_);
  staged.copying = true;
}

void HostCopies::Wait(std::span<const Read> reads) {
  constexpr int64_t kAlignment = 256;
  int64_t bytes = 0;
  for (const Read& read : reads) bytes += RoundUp(read.bytes, kAlignment);
  if (bytes > 0 && (!arrived_ || arrived_->bytes() < bytes))
    arrived_ = device_.AllocateHost(bytes, "outputs that are read back");
  int64_t at = 0;
  for (const Read& read : reads) {
    device_.EnqueueToHost(arrived_->data() + at, read.from, read.bytes, stream_);
    at += RoundUp(read.bytes, kAlignment);
  }
  stream_.Sync();
  for (auto& [key, staged] : staged_) staged.copying = false;
  at = 0;
  for (const Read& read : reads) {
    std::memcpy(read.to, arrived_->data() + at, static_cast<size_t>(read.bytes));
    at += RoundUp(read.bytes, kAlignment);
  }
}

}  // namespace millrace
