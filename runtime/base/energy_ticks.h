// The power that readings of an energy counter tell. A GPU's counter stands still and then moves,
// every 20 to 100 ms, so that a reading tells what had been taken at the last tick, not now: the
// difference of two readings may be off by a tick at either end. From tick to tick it is exact, but
// for when each tick was seen, which is late by at most the time since the reading before.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace {

class EnergyTicks {
 public:
  // A reading, asked for and there; later ones have later times.
  void Add(double asked, double seconds, uint64_t millijoules) {
    if (readings_ > 0 && millijoules < last_millijoules_) went_back_ = true;
    if (readings_ > 0 && millijoules != last_millijoules_) {
      const double late = seconds - last_asked_;
      if (ticks_ == 0) first_ = {seconds, millijoules, late};
      end_ = {seconds, millijoules, late};
      ++ticks_;
    }
    ++readings_;
    last_asked_ = asked, last_millijoules_ = millijoules;
  }

  int64_t readings() const { return readings_; }
  int64_t ticks() const { return ticks_; }
  // Then nothing below means anything: the driver was loaded anew.
  bool went_back() const { return went_back_; }
  // From the first tick seen to the last; 0 of fewer than two.
  double seconds() const { return ticks_ < 2 ? 0 : end_.seconds - first_.seconds; }
  // Taken in these seconds.
  double joules() const {
    return ticks_ < 2 ? 0 : static_cast<double>(end_.millijoules - first_.millijoules) / 1e3;
  }
  // By how much the ticks may lie closer or further apart than they were seen.
  double seconds_off() const { return ticks_ < 2 ? 0 : std::max(first_.late, end_.late); }
  // Mean time between ticks; no less than the time between readings. Of two ticks or more.
  double tick_seconds() const { return seconds() / static_cast<double>(ticks_ - 1); }

 private:
  struct Tick {
    double seconds = 0;
    uint64_t millijoules = 0;
    double late = 0;  // at most
  };

  int64_t readings_ = 0, ticks_ = 0;
  double last_asked_ = 0;
  uint64_t last_millijoules_ = 0;
  bool went_back_ = false;
  Tick first_, end_;
};

}  // namespace millrace
