// Saves that are written while training goes on: what they hold, how they fail,
// and that steps do not wait.
#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/data/faulting_file_system.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

// A disk whose writes wait until it is opened.
class Gate : public FileSystem {
 public:
  ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override {
    std::unique_lock lock(mutex_);
    // Whoever trains only after its save would wait for ever.
    if (!opened_.wait_for(lock, 20s, [this] { return open_; })) waited_in_vain_ = true;
    lock.unlock();
    return FileSystem::Write(fd, data, bytes, offset);
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  bool waited_in_vain() {
    const std::lock_guard lock(mutex_);
    return waited_in_vain_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false, waited_in_vain_ = false;
};

Trial TrialOn(int world, int replicate, Precision precision) {
  Trial trial = MakeBase(ModelConfig::Family::kLlama, false, precision, world, 2).trial;
  trial.config.parallel.replicate = replicate;
  return trial;
}

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0,
          trial.config.train.GlobalBatch(trial.config.parallel.DataRanks(trial.world)), "{}"};
}

// What the loop does once a step; the ranks' states before.
std::string VoteOn(RankContext& rank, RunSaver& saver) {
  std::string votes;
  for (const std::string& vote :
       rank.engine.comms().world().HostAllGather(std::string(1, saver.Vote())))
    votes += vote;
  MR_CHECK(!saver.Hear(votes).has_value(), "a save that is held up has an outcome");
  return votes;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("a checkpoint written while steps go on holds the bits of its own step") {
  struct Case {
    int world, replicate;
    PrecisionConfig::Format moments = PrecisionConfig::Format::kFp32;
    OptimizerConfig::Kind optimizer = OptimizerConfig::Kind::kAdamW;
    int tensor = 1, context = 1;
  };
  for (const auto& [world, replicate, moments, optimizer, tensor, context] :
       {Case{1, 1},
        {3, 1},
        {4, 2},
        {2, 1, PrecisionConfig::Format::kBf16},
        {2, 1, PrecisionConfig::Format::kFp32, OptimizerConfig::Kind::kMuon},
        {.world = 2, .replicate = 1, .tensor = 2},
        {.world = 2, .replicate = 1, .context = 2}}) {
    CAPTURE(world, replicate, static_cast<int>(moments), static_cast<int>(optimizer), tensor,
            context);
    Base base = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, world, 2);
    if (tensor > 1) MakeTensor(base, tensor);
    Trial& trial = base.trial;
    trial.config.parallel.replicate = replicate;
    trial.config.parallel.context = context;
    if (context > 1) trial.config.model.seq_len = 12;
    trial.config.optimizer.moments = moments;
    trial.config.optimizer.name = optimizer;
    const TempDir dir;
    Gate gate;
    std::string votes, hash;
    const auto hash_of = [](RankContext& rank) {
      return ParamHash(rank.engine) + " " + OptimizerHash(rank.engine);
    };
    RunEngines(trial, [&](RankContext& rank) {
      rank.engine.InitWeights(7);
      for (int64_t step = 0; step < 3; ++step) StepOn(rank, trial.config, step);
      const std::string state = hash_of(rank);
      if (rank.rank == 0) hash = state;
      const RunProgress progress{3, 30, R"({"a":[1,2]})"};
      SaveRun(rank.engine, dir / "sync", progress, IdentityOf(trial), 1);
      RunSaver saver(rank.engine, dir / "async", IdentityOf(trial),
                     {.asynchronous = true, .files = &gate});
      saver.Begin(progress);
      for (int64_t step = 3; step < 6; ++step) {
        StepOn(rank, trial.config, step);
        const std::string heard = VoteOn(rank, saver);
        if (rank.rank == 0) votes += heard + " ";
      }
      gate.Open();
      const auto outcome = saver.Settle();
      MR_CHECK(outcome && !outcome->error, "not saved");
      MR_CHECK_EQ(outcome->folder, dir / "async/checkpoints/step_00000003", "folder");
      // Its memory stays for the next one: 4 bytes for each number, of moments in bf16, too. A last
      // save needs none.
      int64_t saved = 0;
      for (const FlatParam& flat : rank.engine.layout().flats)
        saved += (flat.key.update == UpdateRule::kMuon ? 2 : 3) * 4 * flat.shard_numel;
      const bool writes = rank.rank < world / replicate;
      MR_CHECK_EQ(saver.copy_bytes(), writes ? saved : 0, "bytes of the copy");
      RunSaver last(rank.engine, dir / "last", IdentityOf(trial),
                    {.asynchronous = true, .files = &gate});
      last.Begin({6, 60, "{}"}, {}, SaveMode::kNow);
      MR_CHECK(!last.Settle()->error && last.copy_bytes() == 0, "a save without a copy");
    });
    REQUIRE_FALSE(gate.waited_in_vain());
    // Replicas but the first have no part in it.
    const std::string each = std::string(static_cast<size_t>(world / replicate), 'w') +
                             std::string(static_cast<size_t>(world - world / replicate), '-') + " ";
    REQUIRE(votes == each + each + each);
    const std::string sync = dir / "sync/checkpoints/step_00000003",
                      async = dir / "async/checkpoints/step_00000003";
    REQUIRE(Names(async) == Names(sync));
    REQUIRE(static_cast<int>(Names(async).size()) == world / replicate + 1);
    for (const std::string& name : Names(sync)) {
      CAPTURE(name);
      REQUIRE(ReadBytes(async + "/" + name) == ReadBytes(sync + "/" + name));
    }
    RunEngines(trial, [&](RankContext& rank) {
      const auto resumed =
          ResumeRun(rank.engine, dir / "async", ResumePolicy::kMust, IdentityOf(trial));
      MR_CHECK_EQ(hash_of(rank), hash, "state");
      MR_CHECK_EQ(resumed->progress.samples, 30, "samples");
      MR_CHECK_EQ(resumed->progress.state, R"({"a":[1,2]})", "the loop's own");
    });
  }
}

TEST_CASE("a part that cannot be written fails the save on every rank, and the next one succeeds") {
  const int world = 3;
  const Trial trial = TrialOn(world, 1, Precision::kFp32);
  const bool asynchronous = GENERATE(true, false);
  // The last three: of the manifest, whose rank is 0.
  const auto [victim, kind, at] = GENERATE(table<int, std::string, int64_t>({{1, "create", 1},
                                                                             {2, "write", 3},
                                                                             {1, "sync", 1},
                                                                             {0, "rename", 1},
                                                                             {0, "sync", 3},
                                                                             {0, "rename", 2},
                                                                             {0, "rename", 3}}));
  CAPTURE(asynchronous, victim, kind, at);
  const TempDir dir;
  std::vector<std::string> errors(world);
  RunEngines(trial, [&, victim = victim, kind = kind, at = at](RankContext& rank) {
    FaultingFileSystem disk;
    if (rank.rank == victim) {
      disk.fault = FaultingFileSystem::Fault::kFail;
      disk.kind = kind;
      disk.at = at;
    }
    rank.engine.InitWeights(7);
    RunSaver saver(rank.engine, dir.path(), IdentityOf(trial),
                   {.asynchronous = asynchronous, .keep = {.newest = 3}, .files = &disk});
    const auto save = [&](int64_t step) {
      saver.Begin({step, 6 * step, "{}"});
      return *saver.Settle();
    };
    const SaveOutcome failed = save(1);
    errors[static_cast<size_t>(rank.rank)] = failed.error ? failed.error->what() : "saved";
    MR_CHECK(failed.folder.empty() && !saver.in_flight(), "failed and went on");
    rank.engine.comms().world().Barrier();
    MR_CHECK(Names(dir / "checkpoints").empty(), "left: {}", Names(dir / "checkpoints").front());
    rank.engine.comms().world().Barrier();
    MR_CHECK(!save(1).error && !save(2).error, "the disk is sound again");
  });
  REQUIRE(errors[0] == errors[1]);
  REQUIRE(errors[0] == errors[2]);
  REQUIRE_THAT(errors[0], Catch::Contains("Input/output error") &&
                              Catch::Contains(dir / "checkpoints/tmp.1."));
  REQUIRE(Names(dir / "checkpoints") == std::vector<std::string>{"step_00000001", "step_00000002"});
  for (const char* name : {"step_00000001", "step_00000002"})
    REQUIRE(VerifyCheckpoint(dir / "checkpoints/" + name).empty());
}

// A disk that refuses to remove files, and to rename what thinning takes out of sight.
class Sticky : public FileSystem {
 public:
  bool keeps_files = false, keeps_folders = false;
  int fail_syncs = 0;
  int Sync(int fd) override {
    if (fail_syncs == 0) return FileSystem::Sync(fd);
    --fail_syncs;
    errno = EIO;
    return -1;
  }
  int RemoveFile(const std::string& path) override {
    if (!keeps_files) return FileSystem::RemoveFile(path);
    errno = EIO;
    return -1;
  }
  int Rename(const std::string& from, const std::string& to) override {
    if (!keeps_folders || to.find("/tmp.removed.") == to.npos) return FileSystem::Rename(from, to);
    errno = EIO;
    return -1;
  }
};

TEST_CASE(
    "what is to be done before a checkpoint is published is done before; what stays behind is "
    "told") {
  const Trial trial = TrialOn(1, 1, Precision::kFp32);
  const bool asynchronous = GENERATE(true, false);
  CAPTURE(asynchronous);
  const TempDir dir;
  const std::string root = dir / "checkpoints";
  std::vector<size_t> listed;  // each time, before publication
  RunEngines(trial, [&](RankContext& rank) {
    Sticky disk;
    rank.engine.InitWeights(7);
    RunSaver saver(rank.engine, dir.path(), IdentityOf(trial),
                   {.asynchronous = asynchronous,
                    .keep = {.newest = 1},
                    .files = &disk,
                    .before_publishing = [&] { listed.push_back(ListCheckpoints(root).size()); }});
    const auto save = [&](int64_t step) {
      saver.Begin({step, 6 * step, "{}"});
      return *saver.Settle();
    };
    MR_CHECK(!save(1).error, "step 1");
    // Published, though the older one stays; the next save removes both.
    disk.keeps_folders = true;
    const SaveOutcome kept = save(2);
    MR_CHECK(!kept.error && !kept.folder.empty(), "step 2");
    MR_CHECK(kept.warning.find("older checkpoints were not removed: cannot rename") == 0,
             "warned: {}", kept.warning);
    MR_CHECK_EQ(ListCheckpoints(root).size(), size_t{2}, "checkpoints");
    disk.keeps_folders = false;
    // A save that fails on a disk that does not even remove: what it leaves goes with the next one.
    disk.fail_syncs = 1;
    disk.keeps_files = true;
    MR_CHECK(save(3).error.has_value(), "step 3");
    MR_CHECK_EQ(Names(root).size(), size_t{3}, "two checkpoints and what is left of one");
    disk.keeps_files = false;
    const SaveOutcome sound = save(4);
    MR_CHECK(!sound.error && sound.warning.empty(), "step 4");
  });
  REQUIRE(Names(root) == std::vector<std::string>{"step_00000004"});
  REQUIRE(listed == std::vector<size_t>{0, 1, 2});
}

TEST_CASE("a run that ends in the midst of a save gives it up, and leaves no checkpoint") {
  const Trial trial = TrialOn(2, 1, Precision::kFp32);
  const TempDir dir;
  Gate gate;
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(7);
    std::thread opener;
    {
      RunSaver saver(rank.engine, dir.path(), IdentityOf(trial),
                     {.asynchronous = true, .files = &gate});
      saver.Begin({1, 6, "{}"});
      opener = std::thread([&] {
        std::this_thread::sleep_for(300ms);
        gate.Open();
      });
    }
    opener.join();
    rank.engine.comms().world().Barrier();
    MR_CHECK(ListCheckpoints(dir / "checkpoints").empty(), "published");
    for (const std::string& name : Names(dir / "checkpoints"))
      for (const std::string& file : Names(dir / ("checkpoints/" + name)))
        MR_CHECK(!file.ends_with(".json"), "{} was completed", file);
    rank.engine.comms().world().Barrier();
    ResumeRun(rank.engine, dir.path(), ResumePolicy::kAuto, IdentityOf(trial));
    rank.engine.comms().world().Barrier();
    MR_CHECK(Names(dir / "checkpoints").empty(), "left");
  });
}

}  // namespace
}  // namespace millrace::test
