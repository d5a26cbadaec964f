// What a run that dies, or a machine that does, leaves of its checkpoints.
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "tests/runtime/data/checkpoint_fixture.h"
#include "tests/runtime/data/crash_model.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Fault = FaultyFileSystem::Fault;
constexpr int64_t kWorld = 2;

// What a trainer does at a save, clean-up included.
void SaveAndPrune(const std::string& root, int64_t step, FileSystem& files) {
  SaveFixture(root, step, kWorld, files);
  ThinCheckpoints(root, {.newest = 1}, files);
}

// Runs `body` in a child process; the signal that ended it, or 0.
template <typename F>
int SignalOfChild(F body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  REQUIRE(WEXITSTATUS(status) == 0);
  return 0;
}

// The state a restarted run finds must be `old_step` or `new_step`, complete; and the
// run must be able to go on.
int64_t RequireUsable(const std::string& root, int64_t old_step, int64_t new_step) {
  RemoveLeftovers(root);
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    REQUIRE((name == CheckpointFolderName(old_step) || name == CheckpointFolderName(new_step)));
  }
  const int64_t found = NewestSound(root);
  REQUIRE((found == old_step || found == new_step));
  REQUIRE(CheckFixture(root + "/" + CheckpointFolderName(found), found, kWorld) == "");
  for (const CheckpointEntry& entry : ListCheckpoints(root)) REQUIRE(entry.problem == "");
  FaultyFileSystem files;
  SaveAndPrune(root, found + 1, files);
  REQUIRE(NewestSound(root) == found + 1);
  REQUIRE(ListCheckpoints(root).size() == 1);
  return found;
}

TEST_CASE("a process killed before, after or within any call of a save loses no checkpoint",
          "[data][checkpoint]") {
  const Fault fault = GENERATE(Fault::kKillBefore, Fault::kKillAfter, Fault::kKillTorn);
  std::set<int64_t> found;
  int64_t points = 0;
  for (int64_t at = 1;; ++at) {
    const TempDir dir;
    SaveFixture(dir.path(), 1, kWorld);
    const int signal = SignalOfChild([&] {
      FaultyFileSystem files;
      files.fault = fault;
      files.at = at;
      SaveAndPrune(dir.path(), 2, files);
    });
    CAPTURE(int(fault), at);
    found.insert(RequireUsable(dir.path(), 1, 2));
    if (signal == 0) break;
    REQUIRE(signal == SIGKILL);
    ++points;
  }
  REQUIRE(
      points >
      40);  // two ranks' files and records, the manifest, the rename, the removal of the old one
  REQUIRE(found == std::set<int64_t>{1, 2});
}

TEST_CASE("a run killed at any time, again and again, always finds its newest complete checkpoint",
          "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 1, kWorld);
  int64_t newest = 1, killed = 0;
  // On a busy machine a save takes longer than on an idle one: the waits grow until
  // some saves have come through.
  int64_t attempt = 0;
  for (; attempt < 40 || (newest < 3 && attempt < 1000); ++attempt) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      FaultyFileSystem files;
      for (int64_t step = newest + 1;; ++step) SaveAndPrune(dir.path(), step, files);
    }
    const timespec wait = {.tv_sec = 0,
                           .tv_nsec = (attempt * 7919 % 61) * 250'000 * (1 + attempt / 40)};
    ::nanosleep(&wait, nullptr);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    RemoveLeftovers(dir.path());
    const int64_t found = NewestSound(dir.path());
    REQUIRE(found >= newest);
    REQUIRE(CheckFixture(dir / CheckpointFolderName(found), found, kWorld) == "");
    newest = found;
  }
  REQUIRE(killed == attempt);
  REQUIRE(newest >= 3);
}

TEST_CASE("a full or failing disk is an I/O error at any call, and the old checkpoint stays",
          "[data][checkpoint]") {
  const int error = GENERATE(ENOSPC, EIO);
  const Fault fault = GENERATE(Fault::kFail, Fault::kFailTorn);
  int64_t points = 0;
  for (int64_t at = 1;; ++at) {
    const TempDir dir;
    SaveFixture(dir.path(), 1, kWorld);
    FaultyFileSystem files;
    files.fault = fault;
    files.at = at;
    files.error = error;
    bool failed = false;
    try {
      SaveAndPrune(dir.path(), 2, files);
    } catch (const Error& thrown) {
      failed = true;
      REQUIRE(std::string(Name(thrown.code())) == Name(ErrorCode::kIo));
      REQUIRE_THAT(thrown.what(), Catch::Contains(dir.path()) &&
                                      Catch::Contains(error == EIO ? "Input/output error"
                                                                   : "No space left on device"));
      AbandonCheckpoint(FixturePlace(dir.path(), 2));
    }
    CAPTURE(at);
    RequireUsable(dir.path(), 1, 2);
    points += failed;
    if (int64_t(files.calls().size()) < at) break;
  }
  REQUIRE(points > 40);
}

TEST_CASE("a disk that stays full leaves the old checkpoint, and abandoning never throws",
          "[data][checkpoint]") {
  for (int64_t at = 1; at <= 60; ++at) {
    const TempDir dir;
    SaveFixture(dir.path(), 1, kWorld);
    FaultyFileSystem files;
    files.fault = Fault::kFail;
    files.stays = true;
    files.at = at;
    files.error = ENOSPC;
    try {
      SaveAndPrune(dir.path(), 2, files);
    } catch (const Error& thrown) {
      REQUIRE(thrown.code() == ErrorCode::kIo);
    }
    AbandonCheckpoint(FixturePlace(dir.path(), 2), files);
    RequireUsable(dir.path(), 1, 2);
  }
}

TEST_CASE("a crash of the machine before any call leaves a complete checkpoint on the disk",
          "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 1, kWorld);
  CrashModel model(dir.path());
  std::set<int64_t> strict, loose;
  int64_t points = 0;
  model.before_call = [&](const std::string& call) {
    CAPTURE(call);
    ++points;
    for (const bool is_strict : {true, false}) {
      const TempDir after;
      if (is_strict)
        model.WriteStrict(after / "root");
      else
        model.WriteLoose(after / "root");
      // An older checkpoint that is half removed may be listed as unusable; a sound one must be
      // there.
      const int64_t found = NewestSound(after / "root");
      REQUIRE((found == 1 || found == 2));
      REQUIRE(CheckFixture(after / ("root/" + CheckpointFolderName(found)), found, kWorld) == "");
      for (const CheckpointEntry& entry : ListCheckpoints(after / "root"))
        REQUIRE(entry.problem == "");
      (is_strict ? strict : loose).insert(found);
    }
  };
  SaveAndPrune(dir.path(), 2, model);
  model.before_call("the end");
  REQUIRE(points > 40);
  REQUIRE(strict == std::set<int64_t>{1, 2});
  REQUIRE(loose == std::set<int64_t>{1, 2});
}

TEST_CASE(
    "a run's first checkpoint survives a crash of the machine, and so do the folders made for it",
    "[data][checkpoint]") {
  const TempDir dir, after;
  CrashModel model(dir.path());
  SaveFixture(dir / "run/checkpoints", 1, kWorld, model);
  model.WriteStrict(after / "root");
  REQUIRE(NewestSound(after / "root/run/checkpoints") == 1);
}

TEST_CASE("the crash model notices a missing sync", "[data][checkpoint]") {
  // The same save through file systems that skip one kind of sync must leave, at some moment, no
  // sound checkpoint or a listed one that is not sound: otherwise the test above proves nothing.
  class Forgetful final : public FileSystem {
   public:
    Forgetful(CrashModel& model, bool skip_files) : model_(model), skip_files_(skip_files) {}
    int Create(const std::string& path) override { return model_.Create(path); }
    ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override {
      return model_.Write(fd, data, bytes, offset);
    }
    int Reserve(int fd, int64_t bytes) override { return model_.Reserve(fd, bytes); }
    int Sync(int fd) override { return skip_files_ ? 0 : model_.Sync(fd); }
    int Rename(const std::string& from, const std::string& to) override {
      return model_.Rename(from, to);
    }
    int MakeFolder(const std::string& path) override { return model_.MakeFolder(path); }
    int SyncFolder(const std::string& path) override {
      const bool temporary = path.find("/tmp.") != std::string::npos;
      return !skip_files_ && temporary ? 0 : model_.SyncFolder(path);
    }
    int RemoveFile(const std::string& path) override { return model_.RemoveFile(path); }
    int RemoveFolder(const std::string& path) override { return model_.RemoveFolder(path); }

   private:
    CrashModel& model_;
    bool skip_files_;
  };
  const bool skip_files = GENERATE(true, false);
  const TempDir dir;
  SaveFixture(dir.path(), 1, kWorld);
  CrashModel model(dir.path());
  int64_t unsound = 0;
  model.before_call = [&](const std::string&) {
    const TempDir after;
    if (skip_files)
      model.WriteLoose(after / "root");
    else
      model.WriteStrict(after / "root");
    for (const CheckpointEntry& entry : ListCheckpoints(after / "root")) unsound += !entry.usable();
  };
  Forgetful files(model, skip_files);
  SaveAndPrune(dir.path(), 2, files);
  model.before_call("the end");
  REQUIRE(unsound > 0);
}

}  // namespace
}  // namespace millrace
