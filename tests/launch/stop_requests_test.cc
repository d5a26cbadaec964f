#include "tools/launch/stop_requests.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <optional>

namespace millrace {
namespace {

TEST_CASE("nobody asks, nothing is sent", "[launch]") {
  StopSequence stop(0.0);
  for (double now = 0; now < 100; now += 10) CHECK(stop.Next(now, 0) == 0);
  CHECK_FALSE(stop.asked());
}

TEST_CASE("the first request is repeated each second, as mpirun drops it at a start", "[launch]") {
  StopSequence stop(std::nullopt);
  int sent = 0;
  for (int tick = 0; tick < 400; ++tick) {  // 100 s
    const int number = stop.Next(5 + 0.25 * tick, 1);
    CHECK((number == 0 || number == SIGUSR1));
    if (number != 0) CHECK(tick % 4 == 0);
    sent += number != 0;
  }
  CHECK(sent == 100);
  CHECK(stop.asked());
  CHECK_FALSE(stop.forced());
}

TEST_CASE("the second request ends the job, and kills it when that takes long", "[launch]") {
  StopSequence stop(std::nullopt);
  CHECK(stop.Next(0, 1) == SIGUSR1);
  CHECK(stop.Next(0.25, 2) == SIGTERM);
  CHECK(stop.forced());
  CHECK(stop.Next(0.25 + StopSequence::kClearUpS / 2, 2) == 0);
  CHECK(stop.Next(0.25 + StopSequence::kClearUpS, 2) == SIGKILL);
  CHECK(stop.Next(100, 5) == 0);  // more cannot be done
}

TEST_CASE("the third request kills", "[launch]") {
  StopSequence stop(std::nullopt);
  CHECK(stop.Next(0, 2) == SIGTERM);  // two at once: the first is overtaken
  CHECK(stop.Next(0.25, 2) == 0);
  CHECK(stop.Next(0.5, 3) == SIGKILL);
}

TEST_CASE("patience after the first request ends", "[launch]") {
  StopSequence stop(1.5);
  CHECK(stop.Next(10, 1) == SIGUSR1);
  CHECK(stop.Next(11, 1) == SIGUSR1);
  CHECK(stop.Next(11.5, 1) == 0);
  CHECK(stop.Next(11.75, 1) == SIGTERM);
  CHECK(stop.Next(11.75 + StopSequence::kClearUpS, 1) == SIGKILL);
}

}  // namespace
}  // namespace millrace
