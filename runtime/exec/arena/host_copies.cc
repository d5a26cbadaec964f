#include "runtime/exec/arena/host_copies.h"

#include <cstring>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kAlignment = 16;

}  // namespace

HostCopies::Run& HostCopies::Of(int64_t run) {
  const auto found = runs_.find(run);
  MR_CHECK(found != runs_.end(), "run {} of {} was collected, or never begun", run, next_);
  return *found->second;
}

// A feed of a run that is in flight may be of what arrived for another, collected since.
std::byte* HostCopies::Room(std::unique_ptr<HostBuffer>& buffer, int64_t bytes, const char* label) {
  if (bytes > 0 && (!buffer || buffer->bytes() < bytes)) {
    if (buffer) stream_.Sync();
    buffer = device_.AllocateHost(bytes, label);
  }
  return buffer ? buffer->data() : nullptr;
}

// To the host, what the run before has made.
void HostCopies::AddReads(std::vector<Device::Copy>& copies) {
  if (!unread_) return;
  Run& run = Of(*unread_);
  for (size_t i = 0; i < run.reads.size(); ++i)
    copies.push_back({run.arrived->data() + run.places[i], run.reads[i].from, run.reads[i].bytes});
}

// Copies with those of AddReads.
void HostCopies::HasIssued() {
  if (unread_) stream_.Record(*Of(*unread_).event);
  unread_.reset();
}

int64_t HostCopies::Begin(std::span<const Write> writes, std::span<const Feed> feeds,
                          const Issue& issue) {
  std::unique_ptr<Run> run;
  if (free_.empty()) {
    run = std::make_unique<Run>();
    run->event = device_.MakeEvent();
  } else {
    run = std::move(free_.back());
    free_.pop_back();
  }
  std::vector<Device::Copy> copies;
  AddReads(copies);
  int64_t bytes = 0;
  for (const Write& write : writes) bytes += RoundUp(std::ssize(write.bytes), kAlignment);
  std::byte* written = Room(run->written, bytes, "what the host writes for a run");
  for (const Write& write : writes) {
    std::memcpy(written, write.bytes.data(), write.bytes.size());
    copies.push_back({write.to, written, std::ssize(write.bytes)});
    written += RoundUp(std::ssize(write.bytes), kAlignment);
  }
  for (const Feed& feed : feeds) {
    const Run& of = Of(feed.run);
    MR_CHECK(feed.read < of.reads.size() && feed.at + feed.bytes <= of.reads[feed.read].bytes,
             "{} bytes at {} of read {} of run {}", feed.bytes, feed.at, feed.read, feed.run);
    const std::byte* const from =
        feed.run == unread_ ? of.reads[feed.read].from : of.arrived->data() + of.places[feed.read];
    copies.push_back({feed.to, from + feed.at, feed.bytes});
  }
  issue(copies);
  HasIssued();
  runs_.emplace(next_, std::move(run));
  return next_++;
}

void HostCopies::End(int64_t number, std::vector<Read> reads) {
  MR_CHECK(!unread_ && number == next_ - 1, "the end of run {} of {}", number, next_);
  Run& run = Of(number);
  run.reads = std::move(reads);
  run.places.clear();
  int64_t bytes = 0;
  for (const Read& read : run.reads) {
    run.places.push_back(bytes);
    bytes += RoundUp(read.bytes, kAlignment);
  }
  Room(run.arrived, bytes, "what is read of a run");
  unread_ = number;
}

void HostCopies::Flush() {
  std::vector<Device::Copy> copies;
  AddReads(copies);
  if (!copies.empty()) device_.EnqueueCopies(copies, {}, stream_);
  HasIssued();
}

const std::vector<std::span<const std::byte>>& HostCopies::Collect(int64_t number) {
  Run& run = Of(number);
  if (unread_ == number) Flush();
  device_.SyncEvent(*run.event);
  run.values.clear();
  for (size_t i = 0; i < run.reads.size(); ++i)
    run.values.push_back(
        {run.arrived->data() + run.places[i], static_cast<size_t>(run.reads[i].bytes)});
  const auto at = runs_.find(number);
  free_.push_back(std::move(at->second));
  runs_.erase(at);
  return run.values;
}

void HostCopies::Forget() {
  unread_.reset();
  for (auto& [number, run] : runs_) free_.push_back(std::move(run));
  runs_.clear();
}

}  // namespace millrace
