// A place that holds an arena and runs streams. Implementations: runtime/base/cpu,
// runtime/base/cuda.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/stream.h"

namespace millrace {

// Owns one allocation; frees it on destruction. Aligned to 4096 bytes. Contents are undefined.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual int64_t bytes() const noexcept = 0;
};

// Owns a range of addresses, whose memory can go back to the device and come again while the
// addresses stay what they are: pointers into it, and captured work that has them, stay right.
// As DeviceBuffer otherwise; all of it has memory at first.
//
// Ranges   [begin, end) of its bytes: each is a cut (Device::AllocatePaged), 0 or the end.
// Use      Of a range without memory: SIGSEGV on a host, a device error on a GPU.
class PagedBuffer : public DeviceBuffer {
 public:
  // Gives the memory of a range back; its contents are lost. No work that touches it is in flight.
  virtual void Unmap(int64_t begin, int64_t end) = 0;
  // Gives a range memory again; contents are undefined. Error(kOutOfMemory): none of it has any.
  virtual void Map(int64_t begin, int64_t end) = 0;
};

// Host memory that a device copies from and to without staging (pinned, on a GPU).
// As DeviceBuffer otherwise.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual int64_t bytes() const noexcept = 0;
};

// Work that was captured from streams and is launched as one. The memory that it names, and the
// objects that issued the work, outlive it.
class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues all of it on `stream`; the host does not wait.
  virtual void Launch(Stream& stream) = 0;
  virtual int64_t nodes() const noexcept = 0;
  // The nodes and their edges in Graphviz's language, for people: what a node says is up to the
  // device. Error(kIo) names a path that cannot be written.
  virtual void WriteDot(const std::string& path) const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Bytes of the device's memory that are in use, by anybody and for anything (contexts, libraries,
  // buffers); 0 for host memory, where the process's resident size tells more.
  virtual int64_t UsedBytes() const = 0;
  // Error(kOutOfMemory) names the bytes asked for and the label.
  virtual std::unique_ptr<DeviceBuffer> Allocate(int64_t bytes, const std::string& label) = 0;
  // What AllocatePaged hands out, maps and unmaps: a power of two, at least 4096.
  virtual int64_t PageBytes() const = 0;
  // `bytes` rounded up to pages. cuts: multiples of PageBytes() inside, ascending, where ranges
  // that are unmapped begin and end. Errors as Allocate.
  virtual std::unique_ptr<PagedBuffer> AllocatePaged(int64_t bytes, const std::string& label,
                                                     std::span<const int64_t> cuts) = 0;
  virtual std::unique_ptr<HostBuffer> AllocateHost(int64_t bytes, const std::string& label) = 0;
  virtual std::unique_ptr<Stream> MakeStream(StreamRole role) = 0;
  virtual std::unique_ptr<Event> MakeEvent() = 0;
  // An event that also keeps when its last Record took place on the device. Recorded in a capture
  // by RecordAtLaunch alone.
  virtual std::unique_ptr<Event> MakeTimedEvent() = 0;
  // From one timed event to a later one, both reached (SyncEvent).
  virtual double MillisecondsBetween(const Event& begin, const Event& end) = 0;
  // Blocks the host until the work before the last Record of `event` has finished; returns at once
  // when there was none.
  virtual void SyncEvent(const Event& event) = 0;
  // Blocking copies between host memory and this device's memory; ordered after all work of
  // `stream`.
  virtual void CopyToHost(void* host, const std::byte* device, int64_t bytes, Stream& stream) = 0;
  virtual void CopyFromHost(std::byte* device, const void* host, int64_t bytes, Stream& stream) = 0;
  // The same in stream order: the host does not wait. The host memory is a HostBuffer's and stays
  // untouched until the copy has run.
  virtual void EnqueueToHost(std::byte* pinned, const std::byte* device, int64_t bytes,
                             Stream& stream) = 0;
  virtual void EnqueueFromHost(std::byte* device, const std::byte* pinned, int64_t bytes,
                               Stream& stream) = 0;
  virtual void EnqueueFill(std::byte* device, std::byte value, int64_t bytes, Stream& stream) = 0;
  // *word = value of each mark, in stream order and visible to the host at once, without any
  // wait of the host's: also while what follows on the stream hangs. The last mark is not
  // seen before the others. Words are a HostBuffer's, at multiples of 8 bytes; at most
  // kMostMarks. Can be captured.
  struct Mark {
    std::byte* word;
    uint64_t value;
  };
  static constexpr size_t kMostMarks = 8;
  virtual void EnqueueMarks(std::span<const Mark> marks, Stream& stream) = 0;
  void EnqueueMark(std::byte* word, uint64_t value, Stream& stream) {
    EnqueueMarks(std::array{Mark{word, value}}, stream);
  }
  // *to = *from of each, in stream order, and marks as above, in no order with the copies. Each end
  // of a copy is of this device's memory or a HostBuffer's, at a multiple of 4 bytes, and so are
  // its bytes; no copy writes what another reads or writes. HostBuffers stay untouched until it has
  // run; a later SyncEvent, or Sync of the stream, shows the host what was written. For small ones:
  // all are one launch, and none waits for a copy engine.
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  virtual void EnqueueCopies(std::span<const Copy> copies, std::span<const Mark> marks,
                             Stream& stream) = 0;

  // Whether work can be captured into a graph. Where it cannot (a host stream has run each call
  // when it returns), a recorded step issues its list again.
  virtual bool captures() const = 0;
  // Between the two, work that is enqueued on `origin`, and on streams that wait for it, is
  // captured and does not run. Every such stream has been joined to `origin` at the end.
  virtual void BeginCapture(Stream& origin) = 0;
  virtual std::unique_ptr<Graph> EndCapture(Stream& origin) = 0;
  // While `stream` is captured: each launch of the graph records the timed event `event` here, as
  // Record would. Its time may be read when the launch is done; SyncEvent does not wait for one
  // that has not come to it.
  virtual void RecordAtLaunch(Event& event, Stream& stream) = 0;
};

}  // namespace millrace
