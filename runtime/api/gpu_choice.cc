#include "runtime/api/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Gpus = std::vector<std::string>;

// Ids hold no newline.
std::string Packed(const Gpus& gpus) { return fmt::format("{}", fmt::join(gpus, "\n")); }

Gpus Unpacked(const std::string& text) {
  Gpus gpus;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) gpus.push_back(line);
  return gpus;
}

// Of ranks that see these GPUs, the one that each takes by its place; "" for none.
Gpus TakenByPlace(const std::vector<Gpus>& seen) {
  Gpus taken;
  for (size_t place = 0; place < seen.size(); ++place)
    taken.push_back(place < seen[place].size() ? seen[place][place] : "");
  return taken;
}

// Whether each of these ranks sees one GPU, and no two the same.
bool EachHasItsOwn(const std::vector<Gpus>& seen) {
  const bool one_each =
      std::all_of(seen.begin(), seen.end(), [](const Gpus& gpus) { return gpus.size() == 1; });
  return one_each && std::set<Gpus>(seen.begin(), seen.end()).size() == seen.size();
}

}  // namespace

int ChooseGpu(CommFactory& host, const std::string& host_name,
              const std::vector<std::string>& gpus) {
  std::vector<int> everyone(static_cast<size_t>(host.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto world = host.Make(everyone, "hosts");
  const std::vector<std::string> names = world->HostAllGather(host_name);
  const std::vector<std::string> all = world->HostAllGather(Packed(gpus));
  std::vector<Gpus> seen;  // by the ranks of this host
  size_t own = 0;          // this rank's place among them
  for (size_t r = 0; r < names.size(); ++r) {
    if (names[r] != host_name) continue;
    if (static_cast<int>(r) == host.rank()) own = seen.size();
    seen.push_back(Unpacked(all[r]));
  }
  if (EachHasItsOwn(seen)) return 0;
  const Gpus taken = TakenByPlace(seen);
  const auto with_it = std::count(taken.begin(), taken.end(), taken[own]);
  MR_REQUIRE(ErrorCode::kConfig, !taken[own].empty() && with_it == 1,
             "rank {} is number {} of {} on {}, and sees {} GPUs{}: start one rank per GPU, with "
             "all GPUs of the host visible in one order, or let each rank see one of its own alone "
             "(srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES), or train on the CPU with --set "
             "execution.backend=cpu",
             host.rank(), own, seen.size(), host_name, gpus.size(),
             taken[own].empty() ? "" : fmt::format("; number {} is another rank's, too", own));
  return static_cast<int>(own);
}

}  // namespace millrace
