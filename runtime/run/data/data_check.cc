#include "runtime/run/data/data_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "comm/agree.h"
#include "runtime/base/error.h"
#include "runtime/data/hash.h"

namespace millrace {
namespace {

constexpr const char* kName = "data_checked";
constexpr int64_t kTickBytes = int64_t{64} << 20;

std::vector<const TokenSource*> SourcesOf(const RunData& data) {
  std::vector<const TokenSource*> sources;
  for (const auto* list : {&data.train, &data.held_out})
    for (const NamedSource& one : *list) sources.push_back(one.source.get());
  return sources;
}

int64_t LeftOf(const TokenSource& source) { return source.windows() - source.checked_windows(); }

std::string VerdictOn(const std::vector<const TokenSource*>& sources) {
  Hasher128 hash;
  for (const TokenSource* source : sources) hash.Update(source->FilesAsTheyAre());
  return hash.Hex();
}

bool IsRemembered(const std::string& verdict, const std::string& run_dir) {
  std::ifstream file(std::filesystem::path(run_dir) / kName);
  std::string line;
  return std::getline(file, line) && line == verdict;
}

// Of the windows that are left of a source this rank's: [begin, end).
void CheckShare(const TokenSource& source, int rank, int world, const std::function<void()>& tick) {
  const int64_t left = LeftOf(source), first = source.checked_windows();
  const int64_t begin = first + left / world * rank + std::min<int64_t>(left % world, rank);
  const int64_t end = begin + left / world + (rank < left % world);
  const int64_t step =
      std::max<int64_t>(1, kTickBytes / std::max<int64_t>(1, source.window_bytes()));
  for (int64_t at = begin; at < end; at += step) {
    source.CheckWindows(at, std::min(step, end - at));
    tick();
  }
}

}  // namespace

DataCheck CheckRunData(const RunData& data, const std::string& run_dir, Communicator& ranks,
                       const std::function<void()>& tick) {
  const std::vector<const TokenSource*> sources = SourcesOf(data);
  DataCheck check;
  for (const TokenSource* source : sources) check.bytes += LeftOf(*source) * source->window_bytes();
  if (check.bytes == 0) return check;
  // Hosts with copies of their own: none can speak for the files of another.
  const std::vector<std::string> verdicts = ranks.HostAllGather(VerdictOn(sources));
  const bool shared = std::all_of(verdicts.begin(), verdicts.end(),
                                  [&](const std::string& one) { return one == verdicts[0]; });
  check.verdict = shared ? verdicts[0] : Hash128(fmt::format("{}", fmt::join(verdicts, " ")));
  const bool known = ranks.rank() == 0 && IsRemembered(check.verdict, run_dir);
  check.remembered = ranks.HostBroadcast(known ? "yes" : "no", 0) == "yes";
  if (check.remembered) return check;
  const auto failure = FirstFailure(ranks, [&] {
    for (const TokenSource* source : sources)
      CheckShare(*source, shared ? ranks.rank() : 0, shared ? ranks.world_size() : 1, tick);
  });
  if (failure) throw failure->error;
  return check;
}

void Remember(const DataCheck& check, const std::string& run_dir, FileSystem& files) {
  if (check.verdict.empty() || check.remembered) return;
  WriteFileAtomically(files, (std::filesystem::path(run_dir) / kName).string(),
                      check.verdict + "\n");
}

}  // namespace millrace
