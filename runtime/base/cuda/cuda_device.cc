#include "runtime/base/cuda/cuda_device.h"

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "runtime/base/cuda/capture_gate.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_copies.h"
#include "runtime/base/cuda/cuda_mark.h"
#include "runtime/base/cuda/cuda_pages.h"
#include "runtime/base/cuda/gpu_wait.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Called where nothing may throw: an object that is being destroyed cannot do more than go on.
void Quiet(cudaError_t) noexcept {}

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(int64_t bytes, const std::string& label) : bytes_(bytes) {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free = 0, total = 0;
      Quiet(cudaMemGetInfo(&free, &total));
      throw Error(
          ErrorCode::kOutOfMemory,
          fmt::format("cannot allocate {} bytes of device memory for {}: {} of {} bytes are free",
                      bytes, label, free, total));
    }
    MR_CUDA(status);
    data_ = static_cast<std::byte*>(data);
  }
  ~CudaBuffer() override { Quiet(cudaFree(data_)); }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

class PinnedBuffer final : public HostBuffer {
 public:
  PinnedBuffer(int64_t bytes, const std::string& label) : bytes_(bytes) {
    void* data = nullptr;
    const cudaError_t status =
        cudaMallocHost(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    MR_REQUIRE(ErrorCode::kOutOfMemory, status == cudaSuccess,
               "cannot pin {} bytes of host memory for {}: {}", bytes, label,
               cudaGetErrorString(status));
    data_ = static_cast<std::byte*>(data);
  }
  ~PinnedBuffer() override { Quiet(cudaFreeHost(data_)); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, unsigned flags) : graph_(graph) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph_, flags);
    size_t nodes = 0;
    Quiet(cudaGraphGetNodes(graph_, nullptr, &nodes));
    nodes_ = static_cast<int64_t>(nodes);
    if (status != cudaSuccess) Quiet(cudaGraphDestroy(graph_));  // no destructor will
    MR_CUDA(status);
  }
  ~CudaGraph() override {
    Quiet(cudaGraphExecDestroy(executable_));
    Quiet(cudaGraphDestroy(graph_));
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void Launch(Stream& stream) override {
    MR_CUDA(cudaGraphLaunch(executable_, AsCuda(stream).get()));
  }
  int64_t nodes() const noexcept override { return nodes_; }
  void WriteDot(const std::string& path) const override {
    const cudaError_t status = cudaGraphDebugDotPrint(
        graph_, path.c_str(),
        cudaGraphDebugDotFlagsKernelNodeParams | cudaGraphDebugDotFlagsMemcpyNodeParams |
            cudaGraphDebugDotFlagsMemsetNodeParams | cudaGraphDebugDotFlagsEventNodeParams);
    if (status != cudaSuccess) Quiet(cudaGetLastError());
    MR_REQUIRE(ErrorCode::kIo, status == cudaSuccess, "{}: the graph was not written: {}", path,
               cudaGetErrorString(status));
  }

 private:
  cudaGraph_t graph_ = nullptr;  // what the executable was made from, for WriteDot
  cudaGraphExec_t executable_ = nullptr;
  int64_t nodes_ = 0;
};

cuda::MarkList ListOf(std::span<const Device::Mark> marks) {
  MR_CHECK_LE(marks.size(), Device::kMostMarks, "marks at once");
  cuda::MarkList list{};
  for (const Device::Mark& mark : marks) {
    list.words[list.count] = reinterpret_cast<uint64_t*>(mark.word);
    list.values[list.count++] = mark.value;
  }
  return list;
}

// Greater ones are lower numbers. A chain never has that of collectives (kernels/cuda/launch.h).
int PriorityOf(StreamRole role) {
  int least = 0, greatest = 0;
  MR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  switch (role) {
    case StreamRole::kCompute:
      return least;
    case StreamRole::kChain:
      return least - 1 > greatest ? least - 1 : least;
    case StreamRole::kCollectives:
      return greatest;
  }
  return least;
}

const CudaEvent& AsCuda(const Event& event) {
  const auto* cuda = dynamic_cast<const CudaEvent*>(&event);
  MR_CHECK(cuda != nullptr, "an event of another device reached a CUDA stream");
  return *cuda;
}

}  // namespace

CudaEvent::CudaEvent(bool timed) {
  MR_CUDA(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
}
CudaEvent::~CudaEvent() { Quiet(cudaEventDestroy(event_)); }

CudaStream::CudaStream(CudaDevice& device, StreamRole role) : device_(device), role_(role) {
  MR_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, PriorityOf(role)));
}
CudaStream::~CudaStream() { Quiet(cudaStreamDestroy(stream_)); }
void CudaStream::Record(Event& event) { MR_CUDA(cudaEventRecord(AsCuda(event).get(), stream_)); }
void CudaStream::Wait(const Event& event) {
  MR_CUDA(cudaStreamWaitEvent(stream_, AsCuda(event).get(), 0));
}
void CudaStream::Sync() { MR_CUDA(cudaStreamSynchronize(stream_)); }

CudaStream& AsCuda(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  MR_CHECK(cuda != nullptr, "a stream of another device reached a CUDA op");
  return *cuda;
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  MR_REQUIRE(ErrorCode::kDevice, status == cudaSuccess, "no usable GPU: {}",
             cudaGetErrorString(status));
  MR_REQUIRE(ErrorCode::kDevice, ordinal >= 0 && ordinal < count,
             "GPU {} does not exist: {} visible", ordinal, count);
  MR_CUDA(cudaSetDevice(ordinal));
  MR_CUDA(cudaGetDeviceProperties(&properties_, ordinal));
}

CudaDevice::~CudaDevice() {
  Quiet(WaitForGpu());
  attached_.clear();
  while (!order_.empty()) order_.pop_back();
}

std::string CudaDevice::name() const { return properties_.name; }

int64_t CudaDevice::UsedBytes() const {
  size_t free = 0, total = 0;
  MR_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total - free);
}

std::unique_ptr<DeviceBuffer> CudaDevice::Allocate(int64_t bytes, const std::string& label) {
  return std::make_unique<CudaBuffer>(bytes, label);
}
int64_t CudaDevice::PageBytes() const { return CudaPageBytes(ordinal_); }
std::unique_ptr<PagedBuffer> CudaDevice::AllocatePaged(int64_t bytes, const std::string& label,
                                                       std::span<const int64_t> cuts) {
  return AllocateCudaPages(ordinal_, bytes, label, cuts);
}
std::unique_ptr<HostBuffer> CudaDevice::AllocateHost(int64_t bytes, const std::string& label) {
  return std::make_unique<PinnedBuffer>(bytes, label);
}
std::unique_ptr<Stream> CudaDevice::MakeStream(StreamRole role) {
  return std::make_unique<CudaStream>(*this, role);
}
std::unique_ptr<Event> CudaDevice::MakeEvent() { return std::make_unique<CudaEvent>(); }
std::unique_ptr<Event> CudaDevice::MakeTimedEvent() { return std::make_unique<CudaEvent>(true); }
double CudaDevice::MillisecondsBetween(const Event& begin, const Event& end) {
  float milliseconds = 0;
  MR_CUDA(cudaEventElapsedTime(&milliseconds, AsCuda(begin).get(), AsCuda(end).get()));
  return milliseconds;
}
void CudaDevice::SyncEvent(const Event& event) {
  MR_CUDA(cudaEventSynchronize(AsCuda(event).get()));
}

void CudaDevice::CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) {
  MR_CUDA(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                          AsCuda(stream).get()));
  stream.Sync();
}
void CudaDevice::CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) {
  MR_CUDA(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                          AsCuda(stream).get()));
  stream.Sync();
}
void CudaDevice::EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes,
                               Stream& stream) {
  MR_CUDA(cudaMemcpyAsync(pinned, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                          AsCuda(stream).get()));
}
void CudaDevice::EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                                 Stream& stream) {
  MR_CUDA(cudaMemcpyAsync(device, pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                          AsCuda(stream).get()));
}
void CudaDevice::EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) {
  MR_CUDA(cudaMemsetAsync(device, static_cast<int>(value), static_cast<size_t>(bytes),
                          AsCuda(stream).get()));
}

void CudaDevice::EnqueueMarks(std::span<const Mark> marks, Stream& stream) {
  MR_CHECK(!marks.empty(), "no marks at once; 1 to {} are allowed", kMostMarks);
  cuda::LaunchMarks(ListOf(marks), AsCuda(stream).get());
}

void CudaDevice::EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                               Stream& stream) {
  cuda::CopyList list{};
  list.marks = ListOf(marks);
  for (const Copy& copy : copies) {
    if (list.count == cuda::kMostCopies) {
      cuda::CopyList full = list;
      full.marks.count = 0;
      cuda::LaunchCopies(full, AsCuda(stream).get());
      list.count = 0;
    }
    MR_CHECK(copy.bytes % 4 == 0, "a copy of {} bytes; multiples of 4 are allowed", copy.bytes);
    list.copies[list.count++] = {copy.to, copy.from, copy.bytes};
  }
  if (list.count + list.marks.count > 0) cuda::LaunchCopies(list, AsCuda(stream).get());
}

// Relaxed: libraries may allocate or query while a step is captured (cuDNN, NCCL); what they launch
// is captured all the same.
void CudaDevice::BeginCapture(Stream& origin) {
  CaptureGate& gate = CaptureGate::Of(ordinal_);
  gate.BeginCapture();
  const cudaError_t status =
      cudaStreamBeginCapture(AsCuda(origin).get(), cudaStreamCaptureModeRelaxed);
  if (status != cudaSuccess) gate.EndCapture();
  MR_CUDA(status);
}
std::unique_ptr<Graph> CudaDevice::EndCapture(Stream& origin) {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(AsCuda(origin).get(), &graph);
  CaptureGate::Of(ordinal_).EndCapture();
  MR_CUDA(status);
  const bool chain = AsCuda(origin).role() == StreamRole::kChain;
  return std::make_unique<CudaGraph>(graph,
                                     chain ? unsigned{cudaGraphInstantiateFlagUseNodePriority} : 0);
}
void CudaDevice::RecordAtLaunch(Event& event, Stream& stream) {
  MR_CUDA(
      cudaEventRecordWithFlags(AsCuda(event).get(), AsCuda(stream).get(), cudaEventRecordExternal));
}

}  // namespace millrace
