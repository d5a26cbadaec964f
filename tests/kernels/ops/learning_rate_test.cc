#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "kernels/ops/step_ops.h"

namespace millrace {
namespace {

// Schedules as tables of (step, factor between min_lr and lr), written apart from the
// implementation.
struct Point {
  int64_t step;
  double lr;
};

void CheckPoints(const LearningRate& schedule, const std::vector<Point>& points) {
  for (const Point& point : points) {
    INFO("step " << point.step);
    CHECK(LearningRateAt(schedule, point.step) == Approx(point.lr).epsilon(1e-13).margin(1e-18));
  }
}

TEST_CASE("warm-up is linear, reaches lr at its last step, and comes before every schedule") {
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    const LearningRate schedule{kind, 0.8, 0.1, 4, 50, 100};
    CheckPoints(schedule, {{0, 0.2}, {1, 0.4}, {2, 0.6}, {3, 0.8}, {4, 0.8}});
  }
}

TEST_CASE("constant") {
  const LearningRate schedule{ScheduleKind::kConstant, 3e-4, 0, 0, 0, 10};
  CheckPoints(schedule, {{0, 3e-4}, {5, 3e-4}, {1000000, 3e-4}});
}

TEST_CASE("cosine falls from lr to min_lr over decay_steps and stays") {
  const LearningRate schedule{ScheduleKind::kCosine, 1.0, 0.2, 10, 60, 1000};
  // cos of 60, 90 and 120 degrees.
  CheckPoints(schedule, {{10, 1.0},
                         {30, 0.2 + 0.8 * 0.75},
                         {40, 0.6},
                         {50, 0.2 + 0.8 * 0.25},
                         {70, 0.2},
                         {71, 0.2},
                         {999, 0.2}});
  double last = 2;
  for (int64_t step = 10; step <= 70; ++step) {
    CHECK(LearningRateAt(schedule, step) < last);
    last = LearningRateAt(schedule, step);
  }
}

TEST_CASE("warm-up, stable, decay: linear to min_lr at total_steps") {
  const LearningRate schedule{ScheduleKind::kWsd, 1.0, 0.5, 5, 20, 100};
  CheckPoints(schedule, {{5, 1.0},
                         {79, 1.0},
                         {80, 1.0},
                         {81, 0.975},
                         {90, 0.75},
                         {99, 0.525},
                         {100, 0.5},
                         {500, 0.5}});
}

TEST_CASE("a decay of no steps is over at once") {
  CheckPoints({ScheduleKind::kCosine, 1.0, 0.25, 2, 0, 10}, {{0, 0.5}, {1, 1.0}, {2, 0.25}});
  CheckPoints({ScheduleKind::kWsd, 1.0, 0.25, 0, 0, 10}, {{0, 1.0}, {9, 1.0}, {10, 0.25}});
}

}  // namespace
}  // namespace millrace
