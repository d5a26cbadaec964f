#include "runtime/watch/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "comm/agree.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

// How long a rank waits for whoever should end the job before it does.
constexpr std::chrono::seconds kSpeakerEnds(5);

// How often a rank renews its record, which is as old as what is last known of a rank that was
// stopped. Rarer in a large job, whose records share one file server.
milliseconds Period(milliseconds limit, int world) {
  return std::clamp(limit / 8, milliseconds(20), milliseconds(world <= 64 ? 100 : 500));
}

// How often a rank asks its transport: it is no news within a millisecond.
milliseconds AskPeriod(const WatchdogOptions& options) {
  return std::clamp(options.broken_limit / 4, milliseconds(20), milliseconds(1000));
}

}  // namespace

std::unique_ptr<Watchdog> Watchdog::Start(Communicator& world, const std::string& run_dir,
                                          const ProgressMarks& marks, PlanNames names,
                                          const WatchdogOptions& options, std::string& warning) {
  const int rank = world.rank(), ranks = world.world_size();
  std::string folder;
  std::optional<Error> trouble;
  std::unique_ptr<ProgressBoard> board;
  const auto attempt = [&](auto&& step) {
    try {
      step();
    } catch (const Error& error) {
      trouble = error;
    }
  };
  if (ranks == 1)  // nobody to show it to
    return std::unique_ptr<Watchdog>(
        new Watchdog(nullptr, OwnRecord(rank, ranks), marks, std::move(names), options));
  if (rank == 0) attempt([&] { folder = MakeJobFolder(run_dir); });
  folder = world.HostBroadcast(folder, 0);
  if (!folder.empty())
    attempt([&] { board = std::make_unique<ProgressBoard>(folder, rank, ranks); });
  std::optional<RankFailure> first = FirstFailure(world, trouble);
  if (!first) {
    // A run.dir of the same name on each host is not one run.dir.
    ProgressRecord neighbour;
    const int next = (rank + 1) % ranks;
    if (board->Read(next, neighbour) == ProgressBoard::Found::kNothing)
      trouble = Error(ErrorCode::kIo,
                      fmt::format("does not see the file of rank {} in {}", next, folder));
    first = FirstFailure(world, trouble);
  }
  if (first) {
    if (rank == 0)
      warning = fmt::format(
          "the watchdog is off, a hang will not be found: rank {}: {}; run.dir must be a folder "
          "that all ranks can write to and share (execution.watchdog_s=0 asks for none)",
          first->rank, first->error.what());
    return nullptr;
  }
  return std::unique_ptr<Watchdog>(
      new Watchdog(std::move(board), OwnRecord(rank, ranks), marks, std::move(names), options));
}

Watchdog::Watchdog(std::unique_ptr<ProgressBoard> board, ProgressRecord own,
                   const ProgressMarks& marks, PlanNames names, const WatchdogOptions& options)
    : options_(options),
      marks_(marks),
      names_(std::move(names)),
      board_(std::move(board)),
      own_(own),
      moved_(Clock::now()),
      transport_(options_.check_transport ? std::make_unique<TransportWatch>(
                                                options_.check_transport, AskPeriod(options_))
                                          : nullptr) {
  own_.reading = marks_.Read();
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

Watchdog::~Watchdog() = default;

milliseconds Watchdog::Allowed(const ProgressReading& reading) const {
  if (reading.busy()) return options_.limit;
  switch (PatienceOf(reading.phase)) {
    case Patience::kLimit:
      return options_.limit;
    case Patience::kLong:
      return std::max(options_.limit, options_.long_limit);
    case Patience::kUnlimited:
      return milliseconds::max();
  }
  return milliseconds::max();
}

void Watchdog::StartAfresh(Clock::time_point now) {
  moved_ = now;
  stalled_ = false;
  seen_.clear();
}

void Watchdog::Run(const std::stop_token& stop) {
  const milliseconds period = Period(options_.limit, own_.world);
  std::mutex mutex;
  std::condition_variable_any wake;
  Clock::time_point last = Clock::now();
  bool spoken = false;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, period, [] { return false; });
    }
    if (stop.stop_requested()) return;
    const Clock::time_point now = Clock::now();
    if (now - last > period + options_.limit / 4) StartAfresh(now);
    last = now;
    Observe(now);
    if (spoken) continue;
    const auto idle = std::chrono::duration_cast<std::chrono::seconds>(now - moved_).count();
    const BrokenTransport broken{own_.rank, transport_ ? transport_->trouble() : ""};
    if (StandsBroken(now, broken)) {
      Look(now);
      spoken = true;
      options_.on_stall(StallVerdict(Views(now), names_, idle, broken));
      continue;
    }
    if (seen_.empty()) continue;
    const std::vector<RankView> views = Views(now);
    if (!Stalled(views)) {
      stalled_ = false;
      continue;
    }
    if (!stalled_) stalled_since_ = now;
    stalled_ = true;
    const auto speaker = std::find_if(views.begin(), views.end(), [](const RankView& view) {
      return view.state == RankView::State::kAlive;
    });
    // Whoever ended a process ends the others: the launcher, or the rank that spoke.
    const bool one_has_ended = std::any_of(views.begin(), views.end(), [](const RankView& view) {
      return view.state == RankView::State::kSilent && view.process == 'X';
    });
    const bool others_turn = speaker->record.rank != own_.rank || one_has_ended;
    if (others_turn && now - stalled_since_ < kSpeakerEnds) continue;
    spoken = true;
    options_.on_stall(StallVerdict(views, names_, idle, broken));
  }
}

bool Watchdog::StandsBroken(Clock::time_point now, const BrokenTransport& broken) {
  if (broken.words.empty()) return false;
  if (!broken_since_) broken_since_ = now;
  // Elsewhere it may well be on its way out, and waits for a disk.
  if (Allowed(own_.reading) > options_.limit) return false;
  return now - std::max(*broken_since_, moved_) >= std::min(options_.broken_limit, options_.limit);
}

// Publishes this rank's record, and looks at the others' once half the limit
// has passed without progress.
void Watchdog::Observe(Clock::time_point now) {
  const ProgressReading reading = marks_.Read();
  if (!reading.SameAs(own_.reading)) {
    own_.reading = reading;
    StartAfresh(now);
  }
  const auto idle = std::chrono::duration_cast<milliseconds>(now - moved_);
  ++own_.beat;
  own_.idle_ms = idle.count();
  if (board_) board_->Publish(own_);
  if (idle >= options_.limit / 2) Look(now);
}

void Watchdog::Look(Clock::time_point now) {
  seen_.resize(static_cast<size_t>(own_.world));
  for (int rank = 0; rank < own_.world; ++rank) {
    Seen& seen = seen_[static_cast<size_t>(rank)];
    ProgressRecord record = own_;
    const ProgressBoard::Found found =
        rank == own_.rank ? ProgressBoard::Found::kRecord : board_->Read(rank, record);
    seen.gone = found == ProgressBoard::Found::kNothing;
    if (found != ProgressBoard::Found::kRecord) {
      if (!seen.any) seen.renewed = now;
    } else if (!seen.any || record.beat != seen.record.beat) {
      seen.record = record;
      seen.any = true;
      seen.renewed = now;
    }
    seen.record.rank = rank;
  }
}

std::vector<RankView> Watchdog::Views(Clock::time_point now) const {
  std::vector<RankView> views;
  for (const Seen& seen : seen_) {
    RankView view;
    view.record = seen.record;
    if (seen.gone) {
      view.state = RankView::State::kGone;
    } else if (now - seen.renewed >= options_.limit / 2) {
      view.state = RankView::State::kSilent;
      view.process = ProcessState(seen.record);
    }
    views.push_back(std::move(view));
  }
  return views;
}

bool Watchdog::Stalled(const std::vector<RankView>& views) const {
  bool silent = false, all_too_long = true;
  for (const RankView& view : views) {
    silent |= view.state == RankView::State::kSilent;
    if (view.state == RankView::State::kAlive)
      all_too_long &= milliseconds(view.record.idle_ms) >= Allowed(view.record.reading);
  }
  return silent || all_too_long;
}

}  // namespace millrace
