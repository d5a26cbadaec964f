// A GPU as a device: device memory, non-blocking streams, captured graphs.
//
// Threads  The device becomes the current one of the thread that makes it; a rank uses its device
//          from one thread. Several devices, and several CudaDevice objects of one GPU, may live in
//          one process.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <vector>

#include "runtime/base/device.h"

namespace millrace {

class CudaDevice;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(bool timed = false);
  ~CudaEvent() override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, StreamRole role);
  ~CudaStream() override;
  void Record(Event& event) override;
  void Wait(const Event& event) override;
  void Sync() override;

  cudaStream_t get() const { return stream_; }
  CudaDevice& device() const { return device_; }
  StreamRole role() const { return role_; }

 private:
  CudaDevice& device_;
  const StreamRole role_;
  cudaStream_t stream_ = nullptr;
};

// The stream of a CUDA kernel-table entry or communicator. MR_CHECKs that it is one.
CudaStream& AsCuda(Stream& stream);

class CudaDevice final : public Device {
 public:
  // GPU `ordinal` of those that CUDA_VISIBLE_DEVICES leaves. Error(kDevice): no such GPU, no
  // driver.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }
  const cudaDeviceProp& properties() const { return properties_; }

  std::string name() const override;
  int64_t UsedBytes() const override;
  std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) override;
  int64_t PageBytes() const override;
  std::unique_ptr<PagedBuffer> AllocatePaged(int64_t bytes, const std::string& label,
                                             std::span<const int64_t> cuts) override;
  std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) override;
  // Of priorities collectives get the greatest, a chain one above the least, and compute that.
  std::unique_ptr<Stream> MakeStream(StreamRole role) override;
  std::unique_ptr<Event> MakeEvent() override;
  std::unique_ptr<Event> MakeTimedEvent() override;
  double MillisecondsBetween(const Event& begin, const Event& end) override;
  void SyncEvent(const Event& event) override;
  void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) override;
  void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) override;
  void EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes,
                     Stream& stream) override;
  void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                       Stream& stream) override;
  void EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                     Stream& stream) override;
  void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) override;
  void EnqueueMarks(std::span<const Mark> marks, Stream& stream) override;

  bool captures() const override { return true; }
  void BeginCapture(Stream& origin) override;
  // A graph runs at the priority of the stream that launches it, all of it; but what was captured
  // from a chain runs at the priorities of the streams that it was captured from.
  std::unique_ptr<Graph> EndCapture(Stream& origin) override;
  void RecordAtLaunch(Event& event, Stream& stream) override;

  // What a backend keeps per device and no other device may see: library handles,
  // compiled plans, tuning. Made on first use with T(*this); destroyed before the device,
  // in reverse order of making.
  template <class T>
  T& Attached() {
    std::shared_ptr<void>& slot = attached_[std::type_index(typeid(T))];
    if (!slot) {
      slot = std::make_shared<T>(*this);
      order_.push_back(slot);
    }
    return *static_cast<T*>(slot.get());
  }

 private:
  int ordinal_;
  cudaDeviceProp properties_{};
  std::map<std::type_index, std::shared_ptr<void>> attached_;
  std::vector<std::shared_ptr<void>> order_;
};

}  // namespace millrace
