// metrics.jsonl on a disk that is full for a while.
#include <catch2/catch.hpp>
#include <cerrno>
#include <string>

#include "runtime/base/error.h"
#include "runtime/record/metrics.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

struct FullDisk : FileSystem {
  bool full = false;
  ssize_t Append(int fd, const void* data, size_t bytes) override {
    if (!full) return FileSystem::Append(fd, data, bytes);
    FileSystem::Append(fd, data, bytes / 2);  // what fits
    return static_cast<ssize_t>(bytes / 2);
  }
};

StepReport Step(int64_t number) {
  StepReport report;
  report.step = number;
  report.loss = 1.0 / static_cast<double>(number);
  return report;
}

std::string LinesOf(int64_t last, const TempDir& dir) {
  MetricsFile plain(dir / "plain", 0, OldMetrics::kDropTail);
  for (int64_t step = 1; step <= last; ++step) CHECK(plain.Append(Step(step)).empty());
  return ReadBytes(dir / "plain/metrics.jsonl");
}

TEST_CASE("lines that a full disk does not take are written, in order, when it has space again") {
  const TempDir dir;
  FullDisk disk;
  const std::string path = dir / "run/metrics.jsonl";
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  CHECK(metrics.Append(Step(1)).empty());
  const std::string one = ReadBytes(path);
  disk.full = true;
  CHECK_THAT(metrics.Append(Step(2)),
             Catch::StartsWith("step 2: cannot append to " + path + ": No space"));
  CHECK(metrics.Append(Step(3)).empty());  // said once
  CHECK(metrics.waiting() == 2);
  RequireError(ErrorCode::kIo, {"metrics.jsonl"}, [&] { metrics.Sync(); });
  CHECK(ReadBytes(path) == one);  // whole lines only
  disk.full = false;
  CHECK(metrics.Append(Step(4)) == "step 4: the lines of 2 steps that waited are written");
  CHECK(metrics.waiting() == 0);
  CHECK(metrics.Append(Step(5)).empty());
  CHECK(ReadBytes(path) == LinesOf(5, dir));
}

TEST_CASE("a sync writes what waits, or says that it cannot") {
  const TempDir dir;
  FullDisk disk;
  disk.full = true;
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  CHECK_FALSE(metrics.Append(Step(1)).empty());
  CHECK(metrics.Append(Step(2)).empty());
  disk.full = false;
  metrics.Sync();
  CHECK(metrics.waiting() == 0);
  CHECK(ReadBytes(dir / "run/metrics.jsonl") == LinesOf(2, dir));
}

TEST_CASE("lines do not wait without end") {
  const TempDir dir;
  FullDisk disk;
  disk.full = true;
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  for (size_t step = 1; step < MetricsFile::kMostWaiting; ++step)
    metrics.Append(Step(static_cast<int64_t>(step)));
  RequireError(ErrorCode::kIo, {"metrics.jsonl"}, [&] { metrics.Append(Step(1 << 16)); });
}

}  // namespace
}  // namespace millrace
