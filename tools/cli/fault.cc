#include "tools/cli/fault.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

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
  constexpr std::string_view kUnit = "unit=", kSkip = "skip=";
  const size_t first = text.find(':');
  const size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
  if (second == text.npos) return std::nullopt;
  const auto step = Count(text.substr(0, first));
  const auto rank = Count(text.substr(first + 1, second - first - 1));
  const std::string_view place = text.substr(second + 1);
  if (!step || *step < 1 || !rank) return std::nullopt;
  if (place == "loss") return TrainFault{*step, *rank, ""};
  if (place.size() > kSkip.size() && place.substr(0, kSkip.size()) == kSkip)
    return TrainFault{*step, *rank, std::string(place.substr(kSkip.size())), TrainFault::Kind::kSkip};
  if (place.size() <= kUnit.size() || place.substr(0, kUnit.size()) != kUnit) return std::nullopt;
  return TrainFault{*step, *rank, std::string(place.substr(kUnit.size()))};
}

}  // namespace

std::vector<TrainFault> ParseFaults(const std::string& text) {
  std::vector<TrainFault> faults;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto fault = ParseFault(part);
    MR_REQUIRE(
        ErrorCode::kConfig, fault.has_value(),
        "{}={}: \"{}\" is neither STEP:RANK:loss nor STEP:RANK:unit=NAME nor STEP:RANK:skip=NAME, with STEP "
        "from 1 and RANK from 0",
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

}  // namespace millrace
