#include "kernels/cuda/tuning/hot_turns.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "runtime/base/energy_ticks.h"
#include "runtime/base/error.h"
#include "runtime/base/quantile.h"

namespace millrace {
namespace {

constexpr int64_t kAhead = 4;  // graphs in the device's queue
// A counter that has not told a turn's energy by then tells nothing.
constexpr double kLongestTurn = 1;
constexpr std::chrono::milliseconds kBetweenReadings{1};
constexpr int64_t kReadingsPerClock = 4;  // behind the first tick the clock is read that often

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The counters during a turn, by a thread of its own: a reading takes up to ten milliseconds, in
// which who launches graphs has to launch the next.
class Readings {
 public:
  // trouble: with the energy counter, which is then not asked.
  Readings(const NvmlGpu& gpu, std::string trouble)
      : gpu_(gpu), trouble_(std::move(trouble)), thread_([this](std::stop_token stop) {
          for (int64_t counted = 0; !stop.stop_requested();) {
            ReadEnergy();
            if (Counts() && counted++ % kReadingsPerClock == 0) ReadClock();
            std::this_thread::sleep_for(kBetweenReadings);
          }
        }) {}
  // Blocks until the last reading is over.
  void Stop() {
    thread_.request_stop();
    thread_.join();
  }

  EnergyTicks ticks() const { return Locked(ticks_); }
  std::string trouble() const { return Locked(trouble_); }
  // Since the first tick, or since there was trouble.
  std::vector<double> mhz() const { return Locked(mhz_); }
  // Gives the energy counter up.
  void Fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (trouble_.empty()) trouble_ = why;
  }

 private:
  template <class T>
  T Locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  void ReadEnergy() {
    if (!trouble().empty()) return;
    const double asked = Now();
    const NvmlReading energy = gpu_.Millijoules();
    if (!energy.trouble.empty()) return Fail(energy.trouble);
    const std::lock_guard lock(mutex_);
    if (trouble_.empty()) ticks_.Add(asked, Now(), energy.value);
    if (ticks_.went_back()) trouble_ = "the energy counter went back";
  }
  // Whether what is read is of the turn's timed part.
  bool Counts() const { return !trouble().empty() || ticks().ticks() > 0; }
  void ReadClock() {
    const NvmlReading mhz = gpu_.SmMhz();
    const std::lock_guard lock(mutex_);
    if (mhz.trouble.empty()) mhz_.push_back(static_cast<double>(mhz.value));
  }

  const NvmlGpu& gpu_;
  mutable std::mutex mutex_;
  EnergyTicks ticks_;
  std::string trouble_;
  std::vector<double> mhz_;
  std::jthread thread_;  // last: the others are there before it begins
};

}  // namespace

std::set<MatmulKey> LargestProducts(const std::vector<MatmulOp<Shape>>& ops, int most,
                                    double least) {
  std::map<MatmulKey, double> flops;
  double all = 0;
  for (const MatmulOp<Shape>& op : ops)
    if (const std::optional<MatmulKey> key = KeyOf(op)) {
      const double own = 2.0 * static_cast<double>(key->m) * static_cast<double>(key->n) *
                         static_cast<double>(key->k);
      flops[*key] += own, all += own;
    }
  std::vector<std::pair<double, MatmulKey>> by_flops;
  for (const auto& [key, own] : flops)
    if (own >= least * all) by_flops.emplace_back(own, key);
  std::sort(by_flops.begin(), by_flops.end(), std::greater<>());
  by_flops.resize(std::min(by_flops.size(), static_cast<size_t>(std::max(most, 0))));
  std::set<MatmulKey> largest;
  for (const auto& [own, key] : by_flops) largest.insert(key);
  for (const MatmulOp<Shape>& op : ops) {
    const std::optional<MatmulKey> key = KeyOf(op), fused = FusedKeyOf(op);
    if (key && fused && largest.contains(*key)) largest.insert(*fused);
  }
  return largest;
}

HotResult HotCandidate::Result() const {
  HotResult result;
  result.microseconds = timed_us_ / static_cast<double>(timed_products_);
  if (!mhz_.empty()) result.sm_mhz = Median(mhz_);
  result.no_joules = trouble_;
  if (!trouble_.empty()) return result;
  result.millijoules = joules_ / seconds_ * result.microseconds / 1e3;
  result.off = seconds_off_ / seconds_;
  return result;
}

HotTurns::HotTurns(const HotTurnOptions& options, const NvmlGpu& gpu, Device& device,
                   Stream& stream)
    : options_(options),
      gpu_(gpu),
      device_(device),
      stream_(stream),
      begin_(device.MakeTimedEvent()),
      end_(device.MakeTimedEvent()),
      trouble_(gpu.trouble()) {
  MR_CHECK(options.turn_seconds > 0, "a turn of {} s", options.turn_seconds);
  for (int64_t i = 0; i < kAhead; ++i) done_.push_back(device.MakeEvent());
}

void HotTurns::Take(std::vector<HotCandidate>& candidates) {
  if (candidates.empty()) return;
  const double warm = Now() + options_.warm_seconds;
  BackToBack(*candidates.front().graph_, [&](int64_t) { return Now() < warm; });
  for (int turn = 0; turn < std::max(options_.turns, 1); ++turn)
    for (size_t i = 0; i < candidates.size(); ++i)
      Turn(candidates[turn % 2 == 0 ? i : candidates.size() - 1 - i]);
}

void HotTurns::Turn(HotCandidate& candidate) {
  Readings readings(gpu_, trouble_);
  std::optional<int64_t> first;  // graph that is timed
  const double start = Now();
  double timed_from = start;
  EnergyTicks ticks;  // while the device had work
  const int64_t graphs = BackToBack(*candidate.graph_, [&](int64_t launched) {
    ticks = readings.ticks();
    const double now = Now();
    if (now - start > kLongestTurn && ticks.seconds() < options_.turn_seconds)
      readings.Fail(
          fmt::format("the energy counter moved {} times in {:.1f} s", ticks.ticks(), now - start));
    const bool counts = readings.trouble().empty();
    if (!first) {
      if (counts && ticks.ticks() == 0) return true;
      stream_.Record(*begin_);
      first = launched, timed_from = now;
      return true;
    }
    return counts ? ticks.seconds() < options_.turn_seconds
                  : now - timed_from < options_.turn_seconds;
  });
  readings.Stop();
  stream_.Record(*end_);
  device_.SyncEvent(*end_);
  trouble_ = readings.trouble();
  const std::vector<double> mhz = readings.mhz();
  candidate.timed_us_ += 1e3 * device_.MillisecondsBetween(*begin_, *end_);
  candidate.timed_products_ += (graphs - *first) * candidate.products_;
  candidate.joules_ += ticks.joules();
  candidate.seconds_ += ticks.seconds();
  candidate.seconds_off_ += ticks.seconds_off();
  candidate.mhz_.insert(candidate.mhz_.end(), mhz.begin(), mhz.end());
  if (candidate.trouble_.empty()) candidate.trouble_ = trouble_;
}

// Launches the graph again and again, kAhead of them in the queue; after each that is done asks
// more(graphs launched) whether another is to come. How many were launched.
template <class F>
int64_t HotTurns::BackToBack(Graph& graph, F&& more) {
  int64_t launched = 0;
  const auto event = [&](int64_t of) -> Event& { return *done_[static_cast<size_t>(of % kAhead)]; };
  const auto launch = [&] {
    graph.Launch(stream_);
    stream_.Record(event(launched));
    ++launched;
  };
  while (launched < kAhead) launch();
  for (;;) {
    device_.SyncEvent(event(launched));  // of the oldest in the queue
    if (!more(launched)) return launched;
    launch();
  }
}

}  // namespace millrace
