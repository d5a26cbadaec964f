// TensorBoard event files: run.dir/tensorboard/events.out.tfevents.<unix
// time>.<host>, one per call of train.
//
// Format    TFRecords: u64 length, masked CRC-32C of its 8 bytes, payload, masked CRC-32C of it;
//           all little endian. A payload is an Event protobuf (tensorflow/core/util/event.proto,
//           framework/summary.proto), encoded here by hand. The first has file_version
//           "brain.Event:2". The second is a SessionLog START with the first step that this file
//           holds: TensorBoard drops what earlier files say of that step and later. Each further
//           one has the scalars of one step, as float32.
// Order     TensorBoard reads files in the order of their names and never goes back to an earlier
//           one: the time in a name is larger than in all that are there, even if the clock has
//           been set back.
// Blocking  One write per event and no fsync: a reader sees it at once, a crash of the machine may
//           lose it.
// Errors    None: these files are a copy of metrics.jsonl for another reader and must not end a
//           run. The first failure is told to `warn`; a record that could not be written whole is
//           taken back and left out, and the next one is tried again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/file_system.h"

namespace millrace {

struct EventScalar {
  std::string tag;
  double value = 0;  // NaN and infinities stay what they are
};

std::string TfRecord(std::string_view payload);

// Events without their frames. `wall_time`: seconds since 1970.
std::string FileVersionEvent(double wall_time);
std::string SessionStartEvent(double wall_time, int64_t step);
std::string ScalarsEvent(double wall_time, int64_t step, const std::vector<EventScalar>& scalars);

class TensorBoardFile {
 public:
  using Warn = std::function<void(const std::string& text)>;

  // Steps after `resume_step` will follow.
  TensorBoardFile(const std::string& run_dir, int64_t resume_step, Warn warn,
                  FileSystem& files = FileSystem::Posix());
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  void Append(int64_t step, const std::vector<EventScalar>& scalars);

 private:
  void Write(std::string record);
  void Fail(const char* what, int error);

  FileSystem& files_;
  const Warn warn_;
  std::string path_;
  std::string head_;  // the two events before all others, until they are in the file
  int fd_ = -1;
  int64_t size_ = 0;      // bytes in whole records
  bool partial_ = false;  // more than that is in the file
  bool warned_ = false;
};

}  // namespace millrace
