#include "tools/cli/train/fault.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

std::optional<int64_t> Count(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<TrainFault> ParseFault(std::string_view text) {
  using Kind = TrainFault::Kind;
  constexpr std::pair<std::string_view, Kind> kOfUnits[] = {{"unit=", Kind::kNotFinite},
                                                            {"skip=", Kind::kSkip},
                                                            {"swap=", Kind::kSwap},
                                                            {"flip=", Kind::kFlip}};
  const size_t first = text.find(':');
  const size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
  if (second == text.npos) return std::nullopt;
  const auto step = Count(text.substr(0, first));
  const auto rank = Count(text.substr(first + 1, second - first - 1));
  const std::string_view place = text.substr(second + 1);
  if (!step || *step < 1 || !rank) return std::nullopt;
  if (place == "loss") return TrainFault{*step, *rank, ""};
  if (place == "loader") return TrainFault{*step, *rank, "", Kind::kLoader};
  if (place == "hold") return TrainFault{*step, *rank, "", Kind::kHold};
  if (place == "tokens") return TrainFault{*step, *rank, "", Kind::kTokens};
  for (const auto& [word, kind] : kOfUnits)
    if (place.size() > word.size() && place.starts_with(word))
      return TrainFault{*step, *rank, std::string(place.substr(word.size())), kind};
  return std::nullopt;
}

std::optional<DiskFault> ParseDiskFault(std::string_view text) {
  using Kind = DiskFault::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{"full", Kind::kFull},
                                                          {"write", Kind::kWrite},
                                                          {"sync", Kind::kSync},
                                                          {"rename", Kind::kRename},
                                                          {"slow", Kind::kSlow}};
  const size_t colon = text.find(':');
  const size_t equals = text.find('=');
  if (colon == text.npos || equals == text.npos || equals < colon) return std::nullopt;
  const auto rank = Count(text.substr(0, colon));
  const auto amount = Count(text.substr(equals + 1));
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& named) {
    return named.first == text.substr(colon + 1, equals - colon - 1);
  });
  if (!rank || !amount || kind == std::end(kKinds)) return std::nullopt;
  if (*amount == 0 && kind->second != Kind::kFull) return std::nullopt;
  return DiskFault{*rank, kind->second, *amount};
}

bool IsCall(DiskFault::Kind kind) {
  return kind != DiskFault::Kind::kFull && kind != DiskFault::Kind::kSlow;
}

}  // namespace

std::vector<TrainFault> ParseFaults(const std::string& text) {
  std::vector<TrainFault> faults;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto fault = ParseFault(part);
    MR_REQUIRE(
        ErrorCode::kConfig, fault.has_value(),
        "{}={}: \"{}\" is neither STEP:RANK:loss nor STEP:RANK:tokens nor STEP:RANK:loader nor "
        "STEP:RANK:hold nor STEP:RANK:unit=NAME, skip=NAME, swap=NAME or flip=NAME, with STEP from "
        "1 and RANK from 0",
        kFaultVariable, text, part);
    faults.push_back(*fault);
  }
  MR_REQUIRE(ErrorCode::kConfig, !faults.empty(), "{} is set and empty", kFaultVariable);
  return faults;
}

std::vector<TrainFault> FaultsFromEnvironment() {
  const char* text = std::getenv(kFaultVariable);
  if (text == nullptr) return {};
  return ParseFaults(text);
}

std::vector<DiskFault> ParseDiskFaults(const std::string& text) {
  std::vector<DiskFault> faults;
  std::set<int64_t> ranks;  // with a call that fails
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto fault = ParseDiskFault(part);
    MR_REQUIRE(
        ErrorCode::kConfig, fault.has_value(),
        "{}={}: \"{}\" is none of RANK:full=BYTES, RANK:write=N, RANK:sync=N, RANK:rename=N and "
        "RANK:slow=MS, with RANK from 0 and N and MS from 1",
        kDiskFaultVariable, text, part);
    MR_REQUIRE(ErrorCode::kConfig, !IsCall(fault->kind) || ranks.insert(fault->rank).second,
               "{}={}: more than one call fails on rank {}", kDiskFaultVariable, text, fault->rank);
    faults.push_back(*fault);
  }
  MR_REQUIRE(ErrorCode::kConfig, !faults.empty(), "{} is set and empty", kDiskFaultVariable);
  return faults;
}

std::vector<DiskFault> DiskFaultsFromEnvironment() {
  const char* text = std::getenv(kDiskFaultVariable);
  if (text == nullptr) return {};
  return ParseDiskFaults(text);
}

std::unique_ptr<FileSystem> FaultyDisk(const std::vector<DiskFault>& faults, int64_t rank) {
  std::unique_ptr<FaultingFileSystem> disk;
  for (const DiskFault& fault : faults) {
    if (fault.rank != rank) continue;
    if (!disk) disk = std::make_unique<FaultingFileSystem>();
    switch (fault.kind) {
      case DiskFault::Kind::kFull:
        disk->free_bytes = fault.amount;
        continue;
      case DiskFault::Kind::kSlow:
        disk->delay = std::chrono::milliseconds(fault.amount);
        continue;
      case DiskFault::Kind::kWrite:
        disk->kind = "write";
        break;
      case DiskFault::Kind::kSync:
        disk->kind = "sync";
        break;
      case DiskFault::Kind::kRename:
        disk->kind = "rename";
        break;
    }
    disk->fault = FaultingFileSystem::Fault::kFail;
    disk->at = fault.amount;
  }
  return disk;
}

}  // namespace millrace
