#include "comm/nccl/nccl_options.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr const char* kAllowed =
    "symmetric, threads, cta_policy=default|efficiency|zero, min_ctas=N, max_ctas=N, timeout_ms=N "
    "are allowed";

int64_t Number(std::string_view part, std::string_view value, int64_t least, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  MR_REQUIRE(ErrorCode::kConfig,
             error == std::errc() && end == value.data() + value.size() && number >= least &&
                 number <= most,
             "NCCL option '{}': a whole number from {} to {} is needed", part, least, most);
  return number;
}

CtaPolicy Policy(std::string_view part, std::string_view value) {
  if (value == "default") return CtaPolicy::kDefault;
  if (value == "efficiency") return CtaPolicy::kEfficiency;
  if (value == "zero") return CtaPolicy::kZero;
  throw Error(ErrorCode::kConfig, fmt::format("NCCL option '{}': {}", part, kAllowed));
}

void Apply(std::string_view part, NcclOptions& options) {
  constexpr int64_t kMostCtas = 64;  // MAXCHANNELS of NCCL 2.28
  constexpr int64_t kMostMilliseconds = 24 * 3600 * 1000;
  const size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const std::string_view value = equals == part.npos ? std::string_view() : part.substr(equals + 1);
  if (part == "symmetric") {
    options.symmetric = true;
  } else if (part == "threads") {
    options.threads = RankThreads::kAllow;
  } else if (key == "cta_policy") {
    options.cta_policy = Policy(part, value);
  } else if (key == "min_ctas") {
    options.min_ctas = static_cast<int>(Number(part, value, 1, kMostCtas));
  } else if (key == "max_ctas") {
    options.max_ctas = static_cast<int>(Number(part, value, 1, kMostCtas));
  } else if (key == "timeout_ms") {
    options.timeout = std::chrono::milliseconds(Number(part, value, 1, kMostMilliseconds));
  } else {
    throw Error(ErrorCode::kConfig, fmt::format("unknown NCCL option '{}': {}", part, kAllowed));
  }
}

}  // namespace

NcclOptions ParseNcclOptions(std::string_view text) {
  NcclOptions options;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    Apply(text.substr(0, comma), options);
    MR_REQUIRE(ErrorCode::kConfig, comma != text.size() - 1, "NCCL options end with a comma");
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  MR_REQUIRE(
      ErrorCode::kConfig, options.cta_policy != CtaPolicy::kZero || options.symmetric,
      "NCCL option 'cta_policy=zero' needs 'symmetric': copy engines move between windows only");
  MR_REQUIRE(ErrorCode::kConfig, options.min_ctas <= options.max_ctas,
             "NCCL options min_ctas={} and max_ctas={}: the least is more than the most",
             options.min_ctas, options.max_ctas);
  return options;
}

std::string ToString(const NcclOptions& options) {
  std::string text = options.symmetric ? "symmetric," : "";
  if (options.threads == RankThreads::kAllow) text += "threads,";
  if (options.cta_policy == CtaPolicy::kEfficiency) text += "cta_policy=efficiency,";
  if (options.cta_policy == CtaPolicy::kZero) text += "cta_policy=zero,";
  if (options.min_ctas > 0) text += fmt::format("min_ctas={},", options.min_ctas);
  return text + fmt::format("max_ctas={},timeout_ms={}", options.max_ctas, options.timeout.count());
}

std::string WhyNotProcesses(const std::vector<std::string>& processes) {
  for (size_t r = 0; r < processes.size(); ++r)
    for (size_t s = r + 1; s < processes.size(); ++s)
      if (processes[r] == processes[s])
        return fmt::format(
            "ranks {} and {} are threads of one process, whose heap NCCL may break when "
            "communicators are destroyed: start one process per rank",
            r, s);
  return "";
}

const std::vector<NcclSetting>& NcclSettings() {
  static const std::vector<NcclSetting> settings = {
      {"NCCL_NVLS_ENABLE", "0", true,
       "multicast objects may not be used on the machines that this runs on"},
      {"NCCL_GRAPH_REGISTER", "0", false,
       "the default registers the buffers of captured calls only, so that they may move and be cut "
       "into channels otherwise than eager ones; a cut decides the order of a ring's additions"},
      {"NCCL_RAS_ENABLE", "0", false,
       "the default runs a thread that keeps lists of all communicators and listens on ports of "
       "the host, for a diagnostic tool that nobody here calls"},
  };
  return settings;
}

std::vector<NcclSetting> MissingSettings(
    const std::function<const char*(const char* name)>& lookup) {
  std::vector<NcclSetting> missing;
  for (const NcclSetting& setting : NcclSettings()) {
    const char* const present = lookup(setting.name);
    if (present == nullptr || (setting.forced && std::string_view(present) != setting.value))
      missing.push_back(setting);
  }
  return missing;
}

void PrepareNcclEnvironment() {
  static std::once_flag once;  // the environment belongs to the process
  std::call_once(once, [] {
    for (const NcclSetting& setting :
         MissingSettings([](const char* name) { return std::getenv(name); }))
      setenv(setting.name, setting.value, /*replace=*/1);
  });
}

}  // namespace millrace
