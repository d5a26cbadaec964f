// What runs of plans are given by the host and give back to it, in the order of one stream, through
// pinned memory of each run's own: the host may write for a run while the run before it is on the
// device, and read what that one made while the next one is.
//
// Copies   All that lies between two runs is one launch (Device::EnqueueCopies): what the first one
//          made to the host, what the host wrote for the second to its place, and what the second
//          has of the first, which the host has not seen.
// Device and stream outlive it. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/device.h"

namespace millrace {

class HostCopies {
 public:
  HostCopies(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // Bytes are multiples of 4, and so are the places of all ends.
  struct Write {
    std::byte* to = nullptr;  // of the device
    std::span<const std::byte> bytes;
  };
  struct Read {
    const std::byte* from = nullptr;  // of the device
    int64_t bytes = 0;
  };
  // Of read `read` of a run that was not collected, [at, at + bytes).
  struct Feed {
    int64_t run = 0;
    size_t read = 0;
    int64_t at = 0;
    std::byte* to = nullptr;  // of the device
    int64_t bytes = 0;
  };

  // Ahead of a run: `issue` enqueues the copies, so that what is enqueued from then on finds these.
  // Returns the run's number, above those before. Error(kInternal): a feed of a run that nobody
  // waits for any more.
  using Issue = std::function<void(std::span<const Device::Copy>)>;
  int64_t Begin(std::span<const Write> writes, std::span<const Feed> feeds, const Issue& issue);
  // Behind it: what it has made, which stays there until the next Begin or Flush.
  void End(int64_t run, std::vector<Read> reads);
  // What the last run has made is about to be written over.
  void Flush();
  // Waits until the run's reads are in host memory, in their order there until the next Begin. Once
  // for each run.
  const std::vector<std::span<const std::byte>>& Collect(int64_t run);
  // Nobody collects what was begun so far; the stream has been waited for.
  void Forget();

 private:
  struct Run {
    std::unique_ptr<HostBuffer> written, arrived;
    std::unique_ptr<Event> event;  // behind the copies of its reads
    std::vector<Read> reads;
    std::vector<int64_t> places;  // of reads, in `arrived`
    std::vector<std::span<const std::byte>> values;
  };
  Run& Of(int64_t run);
  std::byte* Room(std::unique_ptr<HostBuffer>& buffer, int64_t bytes, const char* label);
  void AddReads(std::vector<Device::Copy>& copies);
  void HasIssued();

  Device& device_;
  Stream& stream_;
  int64_t next_ = 0;
  std::map<int64_t, std::unique_ptr<Run>> runs_;  // begun, not collected
  std::vector<std::unique_ptr<Run>> free_;
  std::optional<int64_t> unread_;  // the run whose reads are not enqueued
};

}  // namespace millrace
