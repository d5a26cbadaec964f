// Event files: bytes as TensorBoard's own writer makes them, order of files, and disks that are
// full.
#include "runtime/record/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/data/faulty_file_system.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Of the event files in run_dir/tensorboard, in the order in which TensorBoard reads them.
std::vector<std::string> EventFiles(const std::string& run_dir) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/tensorboard"))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Payloads of a file that consists of whole records with good checksums.
std::vector<std::string> Payloads(const std::string& bytes) {
  std::vector<std::string> payloads;
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t size = 0;
    REQUIRE(at + sizeof(size) <= bytes.size());
    std::memcpy(&size, bytes.data() + at, sizeof(size));
    REQUIRE(at + size + 16 <= bytes.size());
    payloads.push_back(bytes.substr(at + 12, size));
    REQUIRE(bytes.substr(at, size + 16) == TfRecord(payloads.back()));
    at += size + 16;
  }
  return payloads;
}

// All but the wall time, which the first nine bytes hold.
std::string Timeless(const std::string& event) { return event.substr(9); }

std::vector<std::string> Expected(int64_t start, const std::vector<int64_t>& steps) {
  std::vector<std::string> events = {Timeless(FileVersionEvent(0)),
                                     Timeless(SessionStartEvent(0, start))};
  for (const int64_t step : steps)
    events.push_back(Timeless(ScalarsEvent(0, step, {{"loss", 0.5 * static_cast<double>(step)}})));
  return events;
}

std::vector<std::string> Found(const std::string& path) {
  std::vector<std::string> events;
  for (const std::string& payload : Payloads(ReadBytes(path))) events.push_back(Timeless(payload));
  return events;
}

void AppendSteps(TensorBoardFile& file, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step)
    file.Append(step, {{"loss", 0.5 * static_cast<double>(step)}});
}

struct Warnings {
  std::vector<std::string> texts;
  TensorBoardFile::Warn Hear() {
    return [this](const std::string& text) { texts.push_back(text); };
  }
};

// The expected bytes were written with TensorBoard 2.21's protobuf classes and its masked_crc32c.
TEST_CASE("records have the bytes that TensorBoard's own classes give", "[tensorboard]") {
  const double time = 1700000000.25;
  CHECK(Hex(TfRecord(FileVersionEvent(time))) ==
        "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
  CHECK(Hex(TfRecord(SessionStartEvent(time, 301))) ==
        "100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b");
  CHECK(Hex(TfRecord(ScalarsEvent(time, 300, {{"loss", 2.5}, {"lr", 3e-4}}))) ==
        "2600000000000000734fe3000900001040fc54d94110ac022a180a0b0a046c6f737315000020400a090a026c72"
        "155249"
        "9d39462a9ab4");
}

TEST_CASE("a value that is not finite stays what it is", "[tensorboard]") {
  const std::string nan = ScalarsEvent(0, 1, {{"loss", std::nan("")}});
  const std::string infinite = ScalarsEvent(0, 1, {{"loss", -INFINITY}});
  CHECK(Hex(nan.substr(nan.size() - 4)) == "0000c07f");
  CHECK(Hex(infinite.substr(infinite.size() - 4)) == "000080ff");
}

TEST_CASE("each call begins a file that sorts behind the others and says where it goes on",
          "[tensorboard]") {
  const TempDir temp;
  Warnings warnings;
  // Left by a host whose clock is an hour ahead; and a file that is none of ours.
  const auto ahead = static_cast<int64_t>(std::time(nullptr)) + 3600;
  std::filesystem::create_directory(temp / "tensorboard");
  const std::string other = temp / fmt::format("tensorboard/events.out.tfevents.{}.zeta", ahead);
  WriteBytes(other, "other");
  WriteBytes(temp / "tensorboard/a note", "note");
  for (const int64_t resume_step : {0, 3, 2}) {
    TensorBoardFile file(temp.path(), resume_step, warnings.Hear());
    AppendSteps(file, resume_step + 1, resume_step + 3);
    // A reader sees them while the file is open.
    CHECK(Found(EventFiles(temp.path()).back()) ==
          Expected(resume_step + 1, {resume_step + 1, resume_step + 2, resume_step + 3}));
  }
  const std::vector<std::string> files = EventFiles(temp.path());
  REQUIRE(files.size() == 5);
  CHECK(files[1] == other);
  CHECK(Found(files[2]) == Expected(1, {1, 2, 3}));
  CHECK(Found(files[3]) == Expected(4, {4, 5, 6}));
  CHECK(Found(files[4]) == Expected(3, {3, 4, 5}));
  CHECK(ReadBytes(other) == "other");
  CHECK(warnings.texts.empty());
}

TEST_CASE("a failing write costs one step and one warning, and the file stays whole",
          "[tensorboard]") {
  const auto fault = GENERATE(FaultyFileSystem::Fault::kFail, FaultyFileSystem::Fault::kFailTorn);
  const TempDir temp;
  Warnings warnings;
  FaultyFileSystem files;
  std::filesystem::create_directory(temp / "tensorboard");
  TensorBoardFile file(temp.path(), 7, warnings.Hear(), files);
  AppendSteps(file, 8, 8);
  files.fault = fault;
  files.error = ENOSPC;
  files.at = static_cast<int64_t>(files.calls().size()) + 1;
  AppendSteps(file, 9, 9);
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find("events.out.tfevents.") != std::string::npos);
  CHECK(warnings.texts[0].find("No space left on device") != std::string::npos);
  AppendSteps(file, 10, 11);
  files.at = static_cast<int64_t>(files.calls().size()) + 1;
  AppendSteps(file, 12, 12);
  files.at = 0;
  AppendSteps(file, 13, 13);
  CHECK(warnings.texts.size() == 1);
  // After a torn write this disk fails the next one as well.
  const bool torn = fault == FaultyFileSystem::Fault::kFailTorn;
  CHECK(Found(EventFiles(temp.path()).back()) ==
        Expected(8, torn ? std::vector<int64_t>{8, 11} : std::vector<int64_t>{8, 10, 11, 13}));
}

// Tears one write and does not let its half be taken back until the second attempt.
struct TornFileSystem final : FileSystem {
  int failing_resizes = 0;
  bool tear = false;
  ssize_t Append(int fd, const void* data, size_t bytes) override {
    const bool torn = std::exchange(tear, false);
    return FileSystem::Append(fd, data, torn ? bytes / 2 : bytes);
  }
  int Resize(int fd, int64_t bytes) override {
    if (failing_resizes == 0) return FileSystem::Resize(fd, bytes);
    --failing_resizes;
    errno = EIO;
    return -1;
  }
};

TEST_CASE("half a record that cannot be taken back at once is taken back before the next",
          "[tensorboard]") {
  const TempDir temp;
  Warnings warnings;
  TornFileSystem files;
  TensorBoardFile file(temp.path(), 0, warnings.Hear(), files);
  AppendSteps(file, 1, 1);
  files.tear = true;
  files.failing_resizes = 2;
  AppendSteps(file, 2, 2);  // torn
  AppendSteps(file, 3, 3);  // still not repaired: nothing is written behind the half
  AppendSteps(file, 4, 5);
  CHECK(warnings.texts.size() == 1);
  CHECK(Found(EventFiles(temp.path()).at(0)) == Expected(1, {1, 4, 5}));
}

TEST_CASE("a disk that stays full is told once and ends nothing", "[tensorboard]") {
  const TempDir temp;
  Warnings warnings;
  FaultyFileSystem files;
  files.fault = FaultyFileSystem::Fault::kFail;
  files.error = ENOSPC;
  files.stays = true;
  files.at = 1;
  TensorBoardFile file(temp.path(), 0, warnings.Hear(), files);
  AppendSteps(file, 1, 3);
  CHECK(warnings.texts.size() == 1);
  CHECK_FALSE(std::filesystem::exists(temp / "tensorboard"));
  // Room again: the file begins as it must, with the next step.
  files.fault = FaultyFileSystem::Fault::kNone;
  std::filesystem::create_directory(temp / "tensorboard");
  AppendSteps(file, 4, 5);
  CHECK(warnings.texts.size() == 1);
  CHECK(Found(EventFiles(temp.path()).at(0)) == Expected(1, {4, 5}));
}

}  // namespace
}  // namespace millrace
