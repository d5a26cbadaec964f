// Ranks that are threads of a program, which find each other by an all-gather of its own.
#pragma once

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/api/c/linked.h"

namespace millrace::test {

// An all-gather between threads, as a program with ranks of its own would have one.
class Hall {
 public:
  explicit Hall(int world) : world_(world), here_(world) {}

  struct Seat {
    Hall* hall;
    int rank;
    // Done to this rank's buffer behind an all-gather; the status is the callback's.
    std::function<mr_status*(int call, char* buffer, size_t each)> then;
    int calls = 0;
  };

  static mr_status* Exchange(void* user, void* buffer, size_t each) {
    Seat& seat = *static_cast<Seat*>(user);
    Hall& hall = *seat.hall;
    char* const bytes = static_cast<char*>(buffer);
    const size_t all = each * static_cast<size_t>(hall.world_);
    if (seat.rank == 0) hall.board_.resize(all);
    hall.here_.arrive_and_wait();
    if (hall.left_) return mr_status_new(MR_TIMEOUT, "a rank has left");
    std::memcpy(hall.board_.data() + each * static_cast<size_t>(seat.rank),
                bytes + each * static_cast<size_t>(seat.rank), each);
    hall.here_.arrive_and_wait();
    std::memcpy(bytes, hall.board_.data(), all);
    hall.here_.arrive_and_wait();
    return seat.then ? seat.then(seat.calls++, bytes, each) : nullptr;
  }

  // Of a rank that never comes: the others' call ends, where in a program it would wait.
  void Leave() {
    left_ = true;
    here_.arrive_and_drop();
  }

 private:
  const int world_;
  std::atomic<bool> left_ = false;
  std::barrier<> here_;
  std::vector<char> board_;
};

// One thread for each rank, with its run; the seats may be set up by `arrange`.
inline void OnRanks(int world, const std::string& config,
                    const std::function<void(const Linked& run, int rank)>& body,
                    const std::function<void(Hall::Seat&)>& arrange = {},
                    const std::function<void(mr_run_options&)>& choose = {}) {
  Hall hall(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      Hall::Seat seat{&hall, rank, {}};
      if (arrange) arrange(seat);
      mr_run_options options = OptionsOf(config);
      options.rank = rank;
      options.world = world;
      options.user = &seat;
      options.exchange = Hall::Exchange;
      if (choose) choose(options);
      const Linked run(options);
      body(run, rank);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace millrace::test
