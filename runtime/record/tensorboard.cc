#include "runtime/record/tensorboard.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/data/crc32c.h"

namespace millrace {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

template <class T>
void AddFixed(std::string* out, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte)
    out->push_back(static_cast<char>(value >> (8 * byte)));
}

// TFRecord's own rotation of a checksum, so that the checksum of data that holds
// checksums is not degenerate.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8;
}

// Protobuf's wire format: a varint of (field number * 8 + wire type), then the value.
enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AddVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AddTag(std::string* out, uint32_t field, Wire wire) {
  AddVarint(out, field << 3 | static_cast<uint32_t>(wire));
}

void AddBytes(std::string* out, uint32_t field, std::string_view bytes) {
  AddTag(out, field, Wire::kBytes);
  AddVarint(out, bytes.size());
  *out += bytes;
}

// Event: wall_time = 1 (double), step = 2 (int64), and one of file_version = 3,
// summary = 5, session_log = 7.
std::string Event(double wall_time, int64_t step, uint32_t field, std::string_view what) {
  std::string event;
  AddTag(&event, 1, Wire::kFixed64);
  AddFixed(&event, std::bit_cast<uint64_t>(wall_time));
  if (step != 0) {
    AddTag(&event, 2, Wire::kVarint);
    AddVarint(&event, static_cast<uint64_t>(step));
  }
  AddBytes(&event, field, what);
  return event;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string HostInFileName() {
  std::string host = HostName();
  std::replace(host.begin(), host.end(), '/', '_');
  return host;
}

// Later than all event files in `folder`, and not in the past.
int64_t NextFileTime(const std::string& folder, double now) {
  auto time = static_cast<int64_t>(now);
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    int64_t other = 0;
    const auto parsed =
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    // Ten digits until the year 2286; a longer number would not sort after them.
    if (parsed.ec == std::errc() && other < 9'999'999'999) time = std::max(time, other + 1);
  }
  return time;
}

}  // namespace

std::string TfRecord(std::string_view payload) {
  std::string record;
  AddFixed(&record, static_cast<uint64_t>(payload.size()));
  AddFixed(&record, MaskedCrc(record));
  record += payload;
  AddFixed(&record, MaskedCrc(payload));
  return record;
}

std::string FileVersionEvent(double wall_time) { return Event(wall_time, 0, 3, "brain.Event:2"); }

std::string SessionStartEvent(double wall_time, int64_t step) {
  constexpr uint64_t kStart = 1;
  std::string log;  // SessionLog: status = 1
  AddTag(&log, 1, Wire::kVarint);
  AddVarint(&log, kStart);
  return Event(wall_time, step, 7, log);
}

std::string ScalarsEvent(double wall_time, int64_t step, const std::vector<EventScalar>& scalars) {
  std::string summary;
  for (const EventScalar& scalar : scalars) {
    std::string value;  // Summary.Value: tag = 1, simple_value = 2 (float)
    AddBytes(&value, 1, scalar.tag);
    AddTag(&value, 2, Wire::kFixed32);
    AddFixed(&value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    AddBytes(&summary, 1, value);
  }
  return Event(wall_time, step, 5, summary);
}

TensorBoardFile::TensorBoardFile(const std::string& run_dir, int64_t resume_step, Warn warn,
                                 FileSystem& files)
    : files_(files), warn_(std::move(warn)) {
  const double now = Now();
  const std::string folder = run_dir + "/tensorboard";
  path_ =
      fmt::format("{}/{}{:010}.{}", folder, kPrefix, NextFileTime(folder, now), HostInFileName());
  head_ = TfRecord(FileVersionEvent(now)) + TfRecord(SessionStartEvent(now, resume_step + 1));
  try {
    MakeFolder(files_, folder);
  } catch (const Error&) {  // opening says why
  }
  Write("");
}

TensorBoardFile::~TensorBoardFile() {
  if (fd_ >= 0) files_.Close(fd_);
}

void TensorBoardFile::Append(int64_t step, const std::vector<EventScalar>& scalars) {
  Write(TfRecord(ScalarsEvent(Now(), step, scalars)));
}

void TensorBoardFile::Write(std::string record) {
  if (fd_ < 0) fd_ = files_.OpenAppend(path_);
  if (fd_ < 0) return Fail("open", errno);
  // What a failed call left, if it could not be taken back at once.
  if (partial_ && files_.Resize(fd_, size_) != 0) return Fail("repair", errno);
  partial_ = false;
  record.insert(0, head_);
  ssize_t wrote;
  do {
    wrote = files_.Append(fd_, record.data(), record.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote == static_cast<ssize_t>(record.size())) {
    size_ += wrote;
    head_.clear();
    return;
  }
  // A short count on a regular file means that the disk is full.
  const int error = wrote < 0 ? errno : ENOSPC;
  partial_ = wrote > 0 && files_.Resize(fd_, size_) != 0;
  Fail("append to", error);
}

void TensorBoardFile::Fail(const char* what, int error) {
  if (warned_) return;
  warned_ = true;
  warn_(
      fmt::format("cannot {} {}: {}; steps will be missing in TensorBoard, metrics.jsonl has them",
                  what, path_, std::generic_category().message(error)));
}

}  // namespace millrace
