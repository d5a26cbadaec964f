#include "tools/cli/cuda_tuning.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "kernels/cuda/matmul_plans.h"
#include "kernels/cuda/tuning.h"
#include "kernels/ops/tuning.h"
#include "runtime/base/error.h"
#include "runtime/data/file_system.h"

namespace millrace {
namespace {

std::vector<MatmulOp<Shape>> ProductsOf(const StepPlan& plan) {
  std::vector<MatmulOp<Shape>> products;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* matmul = std::get_if<MatmulOp<View>>(&op.op))
        products.push_back(ConvertOp<MatmulOp, View, Shape>(*matmul, [](const View& view) {
          return Shape{view.layout, static_cast<bool>(view)};
        }));
  return products;
}

std::optional<TuningTable> ReadTable(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return TuningTable::FromText(text, path);
}

void WriteTable(const std::string& path, const TuningTable& table) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  MR_REQUIRE(ErrorCode::kIo, !error, "cannot create {}: {}", folder.string(), error.message());
  const std::string text = table.ToText(), next = path + ".new";
  OutputFile file(FileSystem::Posix(), next);
  file.Write(0, text.data(), static_cast<int64_t>(text.size()));
  file.SyncAndClose();
  MR_REQUIRE(ErrorCode::kIo, FileSystem::Posix().Rename(next, path) == 0, "cannot rename {} to {}",
             next, path);
}

// Rank 0's part: the whole table.
TuningTable MakeTable(CudaDevice& device, const AssembledRun& run, const std::string& path,
                      Log& log) {
  TuningTable table;
  std::optional<TuningTable> kept = ReadTable(path);
  const std::string library = MatmulPlans::LibraryVersion();
  if (kept && (kept->device != device.name() || kept->library_version != library)) {
    log.Info(
        LogScope::kAllRanks,
        fmt::format("{} was measured on {} with {}; here are {} with {}: it is kept as {}.old, "
                    "and algorithms are measured anew (other bits are possible)",
                    path, kept->device, kept->library_version, device.name(), library, path));
    MR_REQUIRE(ErrorCode::kIo, FileSystem::Posix().Rename(path, path + ".old") == 0,
               "cannot rename {}", path);
    kept.reset();
  }
  if (kept) table = std::move(*kept);
  if (!run.plans.train) return table;
  std::vector<MatmulOp<Shape>> missing;
  for (const MatmulOp<Shape>& op : ProductsOf(*run.plans.train)) {
    const auto lacks = [&](const std::optional<MatmulKey>& key) {
      return key && !table.matmuls.contains(*key);
    };
    if (lacks(KeyOf(op)) || lacks(FusedKeyOf(op))) missing.push_back(op);
  }
  if (missing.empty()) return table;
  const TuningTable measured = Tune(device, missing, {});
  table.device = measured.device;
  table.library_version = measured.library_version;
  table.matmuls.insert(measured.matmuls.begin(), measured.matmuls.end());
  WriteTable(path, table);
  return table;
}

}  // namespace

std::string TuneRun(CudaDevice& device, const AssembledRun& run, const Config& config, Log& log,
                    Communicator& world) {
  if (!config.execution.tune) return "";
  const std::string path = config.execution.TuningFile(config.run.dir);
  std::string text;
  if (world.rank() == 0) text = MakeTable(device, run, path, log).ToText();
  text = world.HostBroadcast(text, 0);
  const TuningTable table = TuningTable::FromText(text, path);
  if (!table.matmuls.empty()) device.Attached<MatmulPlans>().Install(table);
  return table.Hash();
}

}  // namespace millrace
