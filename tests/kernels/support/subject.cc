#include "tests/kernels/support/subject.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

namespace millrace::test::internal {
namespace {

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

using Bytes = std::vector<std::byte>;

// What a run does with a block of operands. Flags are bytes: most of a contract test's time is
// spent on them.
struct Area {
  explicit Area(const Memory::Block& block)
      : before(block.data.get(), block.data.get() + block.bytes),
        writable(before.size()),
        garbage(before.size()) {}

  Bytes before, result;
  std::vector<uint8_t> writable;  // an operand that the op writes covers the byte
  std::vector<uint8_t> garbage;   // and none that it reads, so other garbage may lie there
  int64_t offset = 0;             // on the device, in one allocation for all blocks
};

// Sets the flags of all bytes of an operand that the op may touch.
void Mark(const Operand& operand, const Memory::Block& block, uint8_t value,
          std::vector<uint8_t>& flags) {
  const int64_t bytes = millrace::Bytes(operand.view->dtype());
  ForEach(operand.touched, [&](const Index& i) {
    const int64_t at = AddressOf(*operand.view, i) - block.data.get();
    std::fill_n(flags.begin() + at, bytes, value);
  });
}

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
  std::map<Memory::Block*, Area> areas;
  std::vector<TensorView> host;
  for (const Operand& operand : operands) {
    Memory::Block& block = memory_.BlockOf(*operand.view);
    Area& area = areas.try_emplace(&block, block).first->second;
    host.push_back(*operand.view);
    if (Writes(operand.access)) Mark(operand, block, 1, area.writable);
  }
  // Other garbage where the op only writes, unless it is also read (in place).
  for (auto& [block, area] : areas) area.garbage = area.writable;
  for (const Operand& operand : operands) {
    Memory::Block& block = memory_.BlockOf(*operand.view);
    if (Reads(operand.access)) Mark(operand, block, 0, areas.at(&block).garbage);
  }

  for (const int shift : {0, 1}) {
    const std::byte fill = shift == 0 ? std::byte{0xff} : std::byte{0x41};
    int64_t bytes = 0;
    for (auto& [block, area] : areas) {
      // The first element is aligned to kAlignment in the first run, and as little
      // as allowed in the second.
      area.offset = RoundUp(bytes, kAlignment) + kAlignment - Memory::kGuard +
                    shift * std::max(block->alignment, subject_.alignment);
      bytes = area.offset + block->bytes;
    }
    const GuardedScratch guarded(subject_, scratch_bytes_, fill);
    const auto buffer = subject_.device.Allocate(bytes, "kernel test");
    Bytes image(static_cast<size_t>(bytes), fill);
    for (const auto& [block, area] : areas) {
      std::byte* const there = image.data() + area.offset;
      for (size_t i = 0; i < area.before.size(); ++i)
        if (!area.garbage[i]) there[i] = area.before[i];
    }
    subject_.device.CopyFromHost(buffer->data(), image.data(), bytes, subject_.stream);
    for (size_t i = 0; i < operands.size(); ++i) {
      Memory::Block& block = memory_.BlockOf(host[i]);
      operands[i].view->data =
          buffer->data() + areas.at(&block).offset + (host[i].data - block.data.get());
    }
    if (scratch != nullptr) *scratch = guarded.view();
    call();
    subject_.stream.Sync();
    Bytes after(image.size());
    subject_.device.CopyToHost(after.data(), buffer->data(), bytes, subject_.stream);

    int64_t stray = 0;
    for (auto& [block, area] : areas) {
      const std::byte* const then = image.data() + area.offset;
      const std::byte* const now = after.data() + area.offset;
      for (size_t i = 0; i < area.before.size(); ++i)
        stray += !area.writable[i] && now[i] != then[i];
      if (shift == 0) {
        area.result.assign(now, now + area.before.size());
      } else {
        INFO("a second run, at other addresses and with other garbage in scratch and outputs");
        CHECK(std::equal(area.result.begin(), area.result.end(), now));
      }
    }
    stray += guarded.Stray();
    INFO("bytes changed that no written operand covers");
    CHECK(stray == 0);
  }
  for (const auto& [block, area] : areas)
    std::copy(area.result.begin(), area.result.end(), block->data.get());
}

}  // namespace millrace::test::internal
