// The policy about steps whose numbers are bad: what is a spike, what is done, what
// a checkpoint keeps of it.
#include "runtime/watch/guard.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <limits>
#include <vector>

#include "runtime/record/roll_back_log.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Policy = GuardConfig::Policy;

StepScalars Scalars(double loss, bool applied = true, int64_t offender = kOffenderNone) {
  StepScalars scalars{};
  scalars.loss = loss;
  scalars.applied = applied ? 1 : 0;
  scalars.offender_unit = offender;
  return scalars;
}

GuardConfig Watching(int64_t window, double factor) {
  GuardConfig config;
  config.loss_spike = Policy::kSkip;
  config.spike_window = window;
  config.spike_factor = factor;
  return config;
}

TEST_CASE("the limit is the median and a multiple of the robust deviation of the window",
          "[guard]") {
  Guard guard(Watching(5, 2));
  const double losses[] = {9, 4, 5, 7, 3, 6};
  for (int64_t step = 1; step <= 6; ++step) {
    CAPTURE(step);
    CHECK(guard.MaxLoss(step) == 0);  // the window is not full: step - 2 losses are known
    guard.Judge({step}, Scalars(losses[step - 1]));
  }
  // Of 9 4 5 7 3: median 5, deviations 4 1 0 2 2, their median 2.
  CHECK(guard.MaxLoss(7) == Approx(5 + 2 * 1.4826 * 2).epsilon(1e-15));
  // Of 4 5 7 3 6: median 5, deviations 1 0 2 2 1, their median 1.
  CHECK(guard.MaxLoss(8) == Approx(5 + 2 * 1.4826 * 1).epsilon(1e-15));
}

TEST_CASE("an even window has the mean of the two in the middle", "[guard]") {
  Guard guard(Watching(4, 1));
  const double losses[] = {1, 2, 4, 16};
  for (int64_t step = 1; step <= 4; ++step) guard.Judge({step}, Scalars(losses[step - 1]));
  // Median 3, deviations 2 1 1 13, their median 1.5.
  CHECK(guard.MaxLoss(6) == Approx(3 + 1.4826 * 1.5).epsilon(1e-15));
}

TEST_CASE(
    "equal losses leave room for a thousandth of them, and what is not finite enters no window",
    "[guard]") {
  Guard guard(Watching(4, 8));
  for (int64_t step = 1; step <= 4; ++step) guard.Judge({step}, Scalars(2));
  guard.Judge({5}, Scalars(std::numeric_limits<double>::quiet_NaN(), false, kOffenderLoss));
  CHECK(guard.MaxLoss(6) == Approx(2 + 8 * 0.002).epsilon(1e-15));
  CHECK(guard.MaxLoss(7) == guard.MaxLoss(6));
}

TEST_CASE("a step's limit does not depend on whether the step before it is known", "[guard]") {
  Guard early(Watching(4, 3)), late(Watching(4, 3));
  const double losses[] = {5, 4, 6, 5.5, 100, 4.5};
  for (int64_t step = 1; step <= 4; ++step) early.Judge({step}, Scalars(losses[step - 1]));
  for (int64_t step = 5; step <= 6; ++step) {
    late = early;
    late.Judge({step}, Scalars(losses[step - 1]));
    CAPTURE(step);
    CHECK(early.MaxLoss(step + 1) > 0);
    CHECK(early.MaxLoss(step + 1) == late.MaxLoss(step + 1));
    CHECK(early.MaxLoss(step + 2) != late.MaxLoss(step + 2));
    early = late;
  }
}

TEST_CASE("no window is kept where spikes are not watched for", "[guard]") {
  Guard guard{GuardConfig{}};
  for (int64_t step = 1; step <= 200; ++step) guard.Judge({step}, Scalars(step % 7));
  CHECK(guard.MaxLoss(202) == 0);
  CHECK(guard.State() == Guard(GuardConfig{}).State());
}

TEST_CASE("each kind of bad step has its policy; roll-backs come to an end", "[guard]") {
  GuardConfig config = Watching(4, 3);
  config.non_finite = Policy::kRollBack;
  config.loss_spike = Policy::kStop;
  config.max_roll_backs = 1;
  Guard guard(config);
  CHECK(guard.Judge({1}, Scalars(5)) == GuardAction::kGoOn);
  CHECK(guard.Judge({2}, Scalars(50, false, kOffenderSpike)) == GuardAction::kStop);
  CHECK(guard.Judge({3}, Scalars(5, false, 2)) == GuardAction::kRollBack);
  guard.RolledBack({3, 1, "gradient of unit h.0 on rank 1"}, "{}");
  CHECK(guard.Judge({3}, Scalars(5, false, 2)) == GuardAction::kStop);
  CHECK(Guard(GuardConfig{}).Judge({1}, Scalars(5, false, kOffenderLoss)) == GuardAction::kSkip);
}

TEST_CASE("a step that has scaled gradients down is no incident, whatever the policy", "[guard]") {
  for (const Policy policy : {Policy::kSkip, Policy::kRollBack, Policy::kStop}) {
    GuardConfig config = Watching(4, 3);
    config.loss_spike = config.non_finite = policy;
    Guard guard(config);
    StepScalars down = Scalars(5, false, 2);
    CHECK(guard.Judge({1}, down) != GuardAction::kGoOn);
    down.scaled_down = 1;
    CHECK(guard.Judge({2}, down) == GuardAction::kGoOn);
    CHECK(guard.Next(3) == Batch{3, 3, false});  // its batch is not run again
  }
}

TEST_CASE(
    "a roll-back leaves out what was read since, and goes back to the window of its checkpoint",
    "[guard]") {
  Guard guard(Watching(4, 3));
  for (int64_t step = 1; step <= 6; ++step) guard.Judge({step}, Scalars(5 + step % 3));
  const std::string at_6 = guard.State();
  const double limit_8 = guard.MaxLoss(8);
  for (int64_t step = 7; step <= 9; ++step) guard.Judge({step}, Scalars(30));
  guard.RolledBack({9, 6, "first"}, at_6);
  CHECK(guard.Next(7).number == 10);
  CHECK(guard.MaxLoss(8) == limit_8);
  guard.RolledBack({8, 6, "second"}, at_6);  // step 8 has read that of step 11
  CHECK(guard.Next(1).number == 1 + 5);
  CHECK(guard.roll_backs() == std::vector<RollBack>{{9, 6, "first"}, {8, 6, "second"}});
}

// Batches of steps 1 ... n, of which those of `overflown` have no room; judged `lag` steps late.
std::vector<Batch> Batches(Guard& guard, int64_t first, int64_t n,
                           const std::vector<int64_t>& overflown, int64_t lag) {
  std::vector<Batch> all;
  const auto judge = [&](const Batch& batch) {
    const bool over = std::count(overflown.begin(), overflown.end(), batch.step) > 0;
    CHECK(guard.Judge(batch, Scalars(5, !over, over ? kOffenderOverflow - 1 : kOffenderNone)) ==
          (over ? GuardAction::kSkip : GuardAction::kGoOn));
  };
  for (int64_t step = first; step <= n; ++step) {
    all.push_back(guard.Next(step));
    if (std::ssize(all) > lag) judge(all[all.size() - 1 - static_cast<size_t>(lag)]);
  }
  for (int64_t i = std::min<int64_t>(lag, std::ssize(all)); i > 0; --i)
    judge(all[all.size() - static_cast<size_t>(i)]);
  return all;
}

TEST_CASE("a batch without room runs again two steps later or more, once, whatever the policies",
          "[guard]") {
  GuardConfig config = Watching(4, 3);
  config.non_finite = config.loss_spike.emplace(Policy::kStop);
  for (const int64_t lag : {0, 1}) {
    CAPTURE(lag);
    Guard guard(config);
    CHECK(Batches(guard, 1, 9, {2, 3, 9}, lag) == std::vector<Batch>{{1, 1, false},
                                                                     {2, 2, false},
                                                                     {3, 3, false},
                                                                     {4, 2, true},
                                                                     {5, 3, true},
                                                                     {6, 4, false},
                                                                     {7, 5, false},
                                                                     {8, 6, false},
                                                                     {9, 7, false}});
  }
}

TEST_CASE("a batch that waits is part of the state, and no loss without room enters the window",
          "[guard]") {
  Guard guard(Watching(4, 3));
  Batches(guard, 1, 5, {4, 5}, 0);
  REQUIRE(guard.waiting() == std::deque<Batch>{{4, 4, false}, {5, 5, false}});
  CHECK(guard.MaxLoss(7) == 0);  // three losses are known
  Guard again(Watching(4, 3));
  again.Restore(guard.State());
  CHECK(again.State() == guard.State());
  CHECK(again.waiting() == guard.waiting());
  CHECK(Batches(again, 6, 12, {}, 1) == Batches(guard, 6, 12, {}, 0));
  CHECK(guard.waiting().empty());
  CHECK(guard.Next(13) == Batch{13, 11, false});  // two steps have run batches again
}

TEST_CASE("a roll-back leaves out what ran behind its checkpoint, not what waits all the while",
          "[guard]") {
  GuardConfig config = Watching(4, 3);
  config.non_finite = Policy::kRollBack;
  const StepScalars bad = Scalars(5, false, 2);
  for (const int64_t lag : {0, 1}) {
    CAPTURE(lag);
    Guard ran(config);
    Batches(ran, 1, 5, {5}, 0);
    const std::string at_5 = ran.State();
    Guard waits = ran;
    Batches(ran, 6, 6, {}, 0);
    const Batch again = ran.Next(7);
    CHECK(again == Batch{7, 5, true});
    if (lag > 0) CHECK(ran.Next(8) == Batch{8, 7, false});
    CHECK(ran.Judge(again, bad) == GuardAction::kRollBack);
    ran.RolledBack({7, 5, "bad"}, at_5);
    CHECK(ran.waiting().empty());
    CHECK(ran.Next(6) == Batch{6, 7, false});  // as step 8 would have

    const Batch fresh = waits.Next(6);
    CHECK(fresh == Batch{6, 6, false});
    if (lag > 0) CHECK(waits.Next(7) == Batch{7, 5, true});
    CHECK(waits.Judge(fresh, bad) == GuardAction::kRollBack);
    waits.RolledBack({6, 5, "bad"}, at_5);
    CHECK(waits.waiting() == std::deque<Batch>{{5, 5, false}});
    CHECK(waits.Next(6) == Batch{6, 7, false});
    CHECK(waits.Next(7) == Batch{7, 5, true});
    CHECK(waits.Next(8) == Batch{8, 8, false});
  }
}

TEST_CASE("the state comes back with every bit", "[guard]") {
  Guard guard(Watching(5, 3));
  for (int64_t step = 1; step <= 9; ++step)
    guard.Judge({step}, Scalars(1.0 / static_cast<double>(step + 2)));
  guard.RolledBack({9, 7, "why \"so\""}, guard.State());
  Guard again(Watching(5, 3));
  again.Restore(guard.State());
  CHECK(again.State() == guard.State());
  CHECK(again.MaxLoss(11) == guard.MaxLoss(11));
  CHECK(guard.MaxLoss(11) > 0);
  CHECK(again.Next(1).number == 1 + 2);
  CHECK(again.roll_backs() == guard.roll_backs());
  Guard narrow(Watching(2, 3));
  narrow.Restore(guard.State());  // another configuration: of the newest losses
  CHECK(narrow.MaxLoss(10) ==
        Approx(1.0 / 10 + 1.0 / 90 / 2 + 3 * 1.4826 * (1.0 / 90 / 2)).epsilon(1e-9));
  again.Restore("{}");
  CHECK(again.State() == Guard(Watching(5, 3)).State());
  RequireError(ErrorCode::kCheckpoint, {"another version"}, [&] { again.Restore("[1]"); });
}

// A run of a checkpoint each second step that rolls back from 5 to 4 and from 6 to 4 again.
struct Logged {
  TempDir dir;
  Guard guard{GuardConfig{}};
  std::string at_4 = guard.State();
  std::string first, second;
  Logged() {
    guard.RolledBack({5, 4, "first"}, at_4);
    LogRollBack(dir.path(), guard.roll_backs(), guard.State());
    first = guard.State();
    guard.RolledBack({6, 4, "second"}, at_4);
    LogRollBack(dir.path(), guard.roll_backs(), guard.State());
    second = guard.State();
  }
};

TEST_CASE("a run that was killed after a roll-back goes on as after it", "[guard]") {
  Logged run;
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.at_4) == run.second);
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.first) == run.second);
  // A checkpoint that was saved after it has it already.
  CHECK(StateAfterRollBacks(run.dir.path(), 6, run.second) == run.second);
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.second) == run.second);
}

TEST_CASE("a run that goes on from before a roll-back has not made it", "[guard]") {
  Logged run;
  Guard fresh{GuardConfig{}};
  const std::string at_2 = fresh.State();
  CHECK(StateAfterRollBacks(run.dir.path(), 2, at_2) == at_2);
  // And does not find it when it comes to that step again.
  CHECK(StateAfterRollBacks(run.dir.path(), 4, at_2) == at_2);
  fresh.RolledBack({3, 2, "another"}, at_2);
  LogRollBack(run.dir.path(), fresh.roll_backs(), fresh.State());
  CHECK(StateAfterRollBacks(run.dir.path(), 4, fresh.State()) == fresh.State());
  CHECK(StateAfterRollBacks(run.dir.path(), 2, at_2) == fresh.State());
}

TEST_CASE(
    "without a log nothing was rolled back; a line cut short by a crash is none; a damaged one is "
    "told",
    "[guard]") {
  Logged run;
  const TempDir empty;
  CHECK(StateAfterRollBacks(empty.path(), 4, run.at_4) == run.at_4);
  const std::string path = run.dir / kRollBackLogName;
  const std::string text = ReadBytes(path);
  WriteBytes(path, text + "{\"from\": 7");
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.at_4) == run.second);
  // Nor is one that lacks its newline alone: the next roll-back takes its place.
  WriteBytes(path, text.substr(0, text.size() - 1));
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.at_4) == run.first);
  Guard other{GuardConfig{}};
  other.Restore(run.first);
  other.RolledBack({7, 4, "third"}, run.at_4);
  LogRollBack(run.dir.path(), other.roll_backs(), other.State());
  CHECK(StateAfterRollBacks(run.dir.path(), 4, run.at_4) == other.State());
  WriteBytes(path, "{\"from\": 7}\n" + text);
  RequireError(ErrorCode::kCheckpoint, {kRollBackLogName, "damaged"},
               [&] { StateAfterRollBacks(run.dir.path(), 4, run.at_4); });
  WriteBytes(path, text.substr(0, text.find('\n') + 1) + "\n" + text);
  RequireError(ErrorCode::kCheckpoint, {kRollBackLogName, "damaged: line 2 is \"\""},
               [&] { StateAfterRollBacks(run.dir.path(), 4, run.at_4); });
  WriteBytes(path, std::string("\0\x1b\xff\n", 4));
  RequireError(ErrorCode::kCheckpoint,
               {R"(line 1 is "\u0000\u001b\ufffd", not an object; without the file)"},
               [&] { StateAfterRollBacks(run.dir.path(), 4, run.at_4); });
  for (const char* to : {"1e+300", "4.0", "\"4\"", "null"}) {
    WriteBytes(
        path,
        fmt::format("{{\"from\":7,\"to\":{},\"why\":\"\",\"roll_backs\":1,\"state\":{{}}}}\n", to));
    RequireError(ErrorCode::kCheckpoint,
                 {kRollBackLogName, fmt::format("line 1 goes back to {}", to)},
                 [&] { StateAfterRollBacks(run.dir.path(), 4, run.at_4); });
  }
  for (const char* shift : {"-1", "9007199254740993"}) {
    Guard guard{GuardConfig{}};
    RequireError(ErrorCode::kCheckpoint, {"data_shift is", shift}, [&] {
      guard.Restore(fmt::format(R"({{"losses":[],"data_shift":{},"roll_backs":[]}})", shift));
    });
  }
}

}  // namespace
}  // namespace millrace
