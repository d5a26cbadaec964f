#include "tests/comm/nccl/device_backed.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace::testing {
namespace {

constexpr int64_t kArenaBytes = 4 << 20;

// Where operands lie that begin between multiples of 4 bytes.
enum class BetweenWords { kRegistered, kOutside };

class DeviceBacked final : public Communicator {
 public:
  DeviceBacked(GpuRank& rank, std::unique_ptr<Communicator> inner, BetweenWords between)
      : device_(rank.device),
        between_(between),
        inner_(std::move(inner)),
        arena_(rank, {inner_.get()}, kArenaBytes),
        base_(arena_.Take(DType::kU8, kArenaBytes).data),
        outside_(device_.Allocate(kArenaBytes, "operands outside windows")),
        stream_(device_.MakeStream(StreamRole::kCollectives)) {}

  int rank() const noexcept override { return inner_->rank(); }
  int world_size() const noexcept override { return inner_->world_size(); }
  bool RoundsInGathers() const noexcept override { return inner_->RoundsInGathers(); }

  void AllGather(const TensorView& shard, const TensorView& full, const TensorView&,
                 Stream&) override {
    Mirror mirror(*this, shard, full);
    inner_->AllGather(mirror.first(), mirror.second(), {}, *stream_);
    mirror.Return();
  }
  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView&,
                        Stream&) override {
    Mirror mirror(*this, full, shard);
    inner_->ReduceScatterSum(mirror.first(), mirror.second(), {}, *stream_);
    mirror.Return();
  }
  void AllReduceSum(const TensorView& buffer, const TensorView&, Stream&) override {
    Mirror mirror(*this, buffer, {});
    inner_->AllReduceSum(mirror.first(), {}, *stream_);
    mirror.Return();
  }
  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream&) override {
    MR_CHECK(!live.counts, "counts have no mirror");
    Mirror mirror(*this, sent, received);
    inner_->AllToAll(mirror.first(), mirror.second(), {}, *stream_);
    mirror.Return();
  }

  std::vector<std::string> HostAllGather(const std::string& payload) override {
    return inner_->HostAllGather(payload);
  }
  std::string HostBroadcast(const std::string& payload, int root) override {
    return inner_->HostBroadcast(payload, root);
  }
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    inner_->HostAllToAll(sent, received);
  }
  void Barrier() override { inner_->Barrier(); }
  const CommCounters& counters() const noexcept override { return inner_->counters(); }
  void Abort(const std::string& reason) noexcept override { inner_->Abort(reason); }

 private:
  // Two operands on the device, overlapping there as they do on the host, at offsets that depend on
  // sizes and on the host address modulo 16 only: the same on all ranks, as windows demand.
  class Mirror {
   public:
    Mirror(DeviceBacked& owner, const TensorView& first, const TensorView& second) : owner_(owner) {
      views_[0] = host_[0] = first;
      views_[1] = host_[1] = second;
      for (const TensorView& view : host_)
        if (owner_.between_ == BetweenWords::kOutside &&
            (reinterpret_cast<uintptr_t>(view.data) % 4 != 0 ||
             (second.data != nullptr && view.layout.span_bytes() % 4 != 0)))
          base_ = owner_.outside_->data();
      if (Overlapping()) {
        const std::byte* const low = std::min(first.data, second.data);
        for (int k = 0; k < 2; ++k) views_[k].data = Place(0, low) + (host_[k].data - low);
      } else {
        int64_t offset = 0;
        for (int k = 0; k < 2; ++k) {
          if (host_[k].data == nullptr) continue;
          views_[k].data = Place(offset, host_[k].data);
          offset += (host_[k].bytes() + 511) / 256 * 256;
        }
        MR_CHECK_LE(offset, kArenaBytes, "operands do not fit into the test's arena");
      }
      for (int k = 0; k < 2; ++k)
        if (host_[k].data != nullptr)
          owner_.device_.CopyFromHost(views_[k].data, host_[k].data, host_[k].layout.span_bytes(),
                                      *owner_.stream_);
    }
    const TensorView& first() const { return views_[0]; }
    const TensorView& second() const { return views_[1]; }

    void Return() {
      for (int k = 0; k < 2; ++k)
        if (host_[k].data != nullptr)
          owner_.device_.CopyToHost(host_[k].data, views_[k].data, host_[k].layout.span_bytes(),
                                    *owner_.stream_);
    }

   private:
    bool Overlapping() const {
      return host_[0].data != nullptr && host_[1].data != nullptr &&
             host_[0].data < host_[1].data + host_[1].bytes() &&
             host_[1].data < host_[0].data + host_[0].bytes();
    }
    std::byte* Place(int64_t offset, const std::byte* host) const {
      return base_ + offset + reinterpret_cast<uintptr_t>(host) % 16;
    }

    DeviceBacked& owner_;
    std::byte* base_ = owner_.base_;
    TensorView host_[2], views_[2];
  };

  CudaDevice& device_;
  const BetweenWords between_;
  const std::unique_ptr<Communicator> inner_;
  TestArena arena_;
  std::byte* const base_;
  const std::unique_ptr<DeviceBuffer> outside_;
  const std::unique_ptr<Stream> stream_;
};

class DeviceBackedFactory final : public CommFactory {
 public:
  explicit DeviceBackedFactory(GpuRank& rank) : rank_(rank) {}
  int rank() const noexcept override { return rank_.rank(); }
  int world_size() const noexcept override { return rank_.world(); }
  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    return std::make_unique<DeviceBacked>(rank_, rank_.nccl.Make(ranks, label),
                                          BetweenWords::kOutside);
  }

 private:
  GpuRank& rank_;
};

}  // namespace

std::unique_ptr<CommFactory> MakeDeviceBackedFactory(GpuRank& rank) {
  return std::make_unique<DeviceBackedFactory>(rank);
}

std::unique_ptr<Communicator> MakeDeviceBacked(GpuRank& rank, std::unique_ptr<Communicator> inner) {
  return std::make_unique<DeviceBacked>(rank, std::move(inner), BetweenWords::kRegistered);
}

}  // namespace millrace::testing
