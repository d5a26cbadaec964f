// The C++ of README.md, as it stands there (the genrule readme_step cuts it out), in a function
// that gives it the names it uses.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/step_scalars.h"
#include "runtime/config/load.h"
#include "runtime/exec/engine.h"
#include "runtime/run/session.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kBadStep = 3, kBadRank = 1;

struct Skipped {
  int64_t step, unit, rank;
};
struct Heard {
  std::vector<double> losses;
  std::vector<Skipped> skipped;
};

// One gradient of one step is infinite, on one rank.
void ScanOnBadRank(const FiniteScanOp<TensorView>& op, Stream& stream) {
  if (op.unit == 1 && op.scalars.as<StepScalars>()->step == kBadStep)
    op.x.as<float>()[op.inject_index] = INFINITY;
  CpuKernels().finite_scan(op, stream);
}

Heard TrainAsReadmeDoes(CommFactory& factory, const Environment& environment,
                        const std::vector<std::string>& files,
                        const std::vector<std::string>& overrides) {
  Heard heard;
  std::vector<double>& losses = heard.losses;
  const auto ReportSkipped = [&](int64_t step, int64_t unit, int64_t rank) {
    heard.skipped.push_back({step, unit, rank});
  };
#include "tests/runtime/run/readme_step.inc"
  return heard;
}

TEST_CASE("the loop of README.md trains on any mesh, and reports a step that was skipped",
          "[readme]") {
  const std::string mesh = GENERATE("parallel.shard=2", "parallel.context=2", "parallel.tensor=2");
  CAPTURE(mesh);
  const TempDir temp;
  const std::vector<std::string> files = {temp / "run.json"};
  std::ofstream(files[0]) << R"({
    "model": {"layers": 2, "d_model": 16, "heads": 2, "seq_len": 8},
    "train": {"micro_batch": 4}})";
  std::ofstream text(temp / "text.txt");
  for (int i = 0; i < 1000; ++i) text << "abc ";
  text.close();
  KernelTable broken = CpuKernels();
  broken.finite_scan = ScanOnBadRank;
  std::vector<Heard> heard(kRanks);
  test::TestRanks().Run(kRanks, [&](const test::RankSetup& setup) {
    Environment environment = setup.environment();
    if (setup.comms.rank() == kBadRank) environment.kernels = &broken;
    heard[static_cast<size_t>(setup.comms.rank())] = TrainAsReadmeDoes(
        setup.comms, environment, files,
        {mesh, "train.steps=30", "optimizer.lr=1e-2", "data.path=" + temp / "text.txt"});
  });
  for (const Heard& rank : heard) {
    REQUIRE(rank.losses.size() == 30);
    CHECK(rank.losses == heard[0].losses);
    CHECK(rank.losses.front() > 5);  // log 256 is 5.5
    CHECK(rank.losses.back() < 4);
    REQUIRE(rank.skipped.size() == 1);
    CHECK(rank.skipped[0].step == kBadStep);
    CHECK(rank.skipped[0].unit == 1);
    CHECK(rank.skipped[0].rank == kBadRank);
  }
}

}  // namespace
}  // namespace millrace
