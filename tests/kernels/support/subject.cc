#include "tests/kernels/support/subject.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

namespace millrace::test::internal {
namespace {

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

using Bytes = std::vector<std::byte>;

// Where each host block lies on the device, in one allocation.
struct Placement {
  std::map<Memory::Block*, int64_t> offsets;
  int64_t bytes = 0;
};

// Scratch in an allocation of its own, between guards. It may be large, so only
// the guards are looked at.
class GuardedScratch {
 public:
  GuardedScratch(const Subject& subject, int64_t bytes, std::byte fill)
      : subject_(subject),
        bytes_(bytes),
        fill_(fill),
        buffer_(subject.device.Allocate(kAlignment + bytes + Memory::kGuard,
                                        "scratch of a kernel test")) {
    subject.device.EnqueueFill(buffer_->data(), fill, buffer_->bytes(), subject.stream);
  }

  TensorView view() const {
    if (bytes_ == 0) return {};
    return {buffer_->data() + kAlignment, DenseLayout(DType::kU8, {bytes_})};
  }
  // Bytes of the guards that were changed.
  int64_t Stray() const {
    int64_t stray = 0;
    for (const int64_t guard : {kAlignment - Memory::kGuard, kAlignment + bytes_}) {
      std::byte now[Memory::kGuard];
      subject_.device.CopyToHost(now, buffer_->data() + guard, Memory::kGuard, subject_.stream);
      for (const std::byte byte : now) stray += byte != fill_;
    }
    return stray;
  }

 private:
  const Subject& subject_;
  int64_t bytes_;
  std::byte fill_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

}  // namespace

void Runner::Run(const std::vector<Operand>& operands, TensorView* scratch,
                 const std::function<void()>& call) {
  std::map<Memory::Block*, Bytes> before, results;
  std::map<Memory::Block*, std::vector<bool>> writable;
  std::vector<TensorView> host;
  for (const Operand& operand : operands) {
    Memory::Block& block = memory_.BlockOf(*operand.view);
    before.try_emplace(&block, block.data.get(), block.data.get() + block.bytes);
    writable.try_emplace(&block, block.bytes, false);
    host.push_back(*operand.view);
    if (!Writes(operand.access)) continue;
    ForEach(operand.touched, [&](const Index& i) {
      const int64_t at = AddressOf(*operand.view, i) - block.data.get();
      for (int64_t b = 0; b < millrace::Bytes(operand.view->dtype()); ++b)
        writable[&block][at + b] = true;
    });
  }
  // Other garbage where the op only writes, unless it is also read (in place).
  std::map<Memory::Block*, std::vector<bool>> garbage = writable;
  for (const Operand& operand : operands) {
    if (!Reads(operand.access)) continue;
    Memory::Block& block = memory_.BlockOf(*operand.view);
    ForEach(operand.touched, [&](const Index& i) {
      const int64_t at = AddressOf(*operand.view, i) - block.data.get();
      for (int64_t b = 0; b < millrace::Bytes(operand.view->dtype()); ++b)
        garbage[&block][at + b] = false;
    });
  }

  for (const int shift : {0, 1}) {
    const std::byte fill = shift == 0 ? std::byte{0xff} : std::byte{0x41};
    Placement place;
    for (const auto& [block, bytes] : before) {
      // The first element is aligned to kAlignment in the first run, and as little
      // as allowed in the second.
      place.offsets[block] = RoundUp(place.bytes, kAlignment) + kAlignment - Memory::kGuard +
                             shift * std::max(block->alignment, subject_.alignment);
      place.bytes = place.offsets[block] + block->bytes;
    }
    const GuardedScratch guarded(subject_, scratch_bytes_, fill);
    const auto buffer = subject_.device.Allocate(place.bytes, "kernel test");
    Bytes image(static_cast<size_t>(place.bytes), fill);
    for (const auto& [block, bytes] : before) {
      for (int64_t i = 0; i < block->bytes; ++i)
        image[place.offsets[block] + i] = garbage[block][i] ? fill : bytes[i];
    }
    subject_.device.CopyFromHost(buffer->data(), image.data(), place.bytes, subject_.stream);
    for (size_t i = 0; i < operands.size(); ++i) {
      Memory::Block& block = memory_.BlockOf(host[i]);
      operands[i].view->data =
          buffer->data() + place.offsets[&block] + (host[i].data - block.data.get());
    }
    if (scratch != nullptr) *scratch = guarded.view();
    call();
    subject_.stream.Sync();
    Bytes after(image.size());
    subject_.device.CopyToHost(after.data(), buffer->data(), place.bytes, subject_.stream);

    int64_t stray = 0;
    for (const auto& [block, offset] : place.offsets) {
      for (int64_t i = 0; i < block->bytes; ++i)
        stray += !writable[block][i] && after[offset + i] != image[offset + i];
      Bytes now(after.begin() + offset, after.begin() + offset + block->bytes);
      if (shift == 0) {
        results[block] = std::move(now);
      } else {
        INFO("a second run, at other addresses and with other garbage in scratch and outputs");
        CHECK((results[block] == now));
      }
    }
    stray += guarded.Stray();
    INFO("bytes changed that no written operand covers");
    CHECK(stray == 0);
  }
  for (const auto& [block, bytes] : results)
    std::copy(bytes.begin(), bytes.end(), block->data.get());
}

}  // namespace millrace::test::internal
