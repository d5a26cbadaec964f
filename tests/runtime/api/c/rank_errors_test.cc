// What fails on one rank alone: all hear of it at once, and the run goes on.
#include <fmt/core.h>

#include <array>
#include <barrier>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/runtime/api/c/rank_threads.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

// Its peers are in their exchange, and would wait for it.
TEST_CASE("options that one rank refuses end mr_run_create on all", "[api][c][ranks]") {
  struct Wrong {
    std::function<void(mr_run_options&)> make;
    std::string words;
  };
  const std::vector<Wrong> all = {
      {[](mr_run_options& options) { options.config = nullptr; }, "options.config is NULL"},
      {[](mr_run_options& options) { options.use_data = 2; }, "options.use_data is 2"},
      {[](mr_run_options& options) { options.use_inference = -1; }, "options.use_inference is -1"},
      {[](mr_run_options& options) { options.device = -1; }, "options.device is -1"},
      {{}, "out is NULL"},
  };
  const std::string config = TinyConfig();
  for (const Wrong& wrong : all)
    for (const int mistaken : {0, 1, 2}) {
      Hall hall(3);
      std::vector<Outcome> outcomes(3);
      std::vector<int> calls(3);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < 3; ++rank)
        threads.emplace_back([&, rank] {
          Hall::Seat seat{&hall, rank, [&calls, rank](int, char*, size_t) {
                            ++calls[rank];
                            return static_cast<mr_status*>(nullptr);
                          }};
          mr_run_options options = OptionsOf(config);
          options.rank = rank;
          options.world = 3;
          options.user = &seat;
          options.exchange = Hall::Exchange;
          if (rank == mistaken && wrong.make) wrong.make(options);
          mr_run* run = nullptr;
          outcomes[rank] =
              Take(mr_run_create(&options, rank == mistaken && !wrong.make ? nullptr : &run));
          mr_status_free(mr_run_destroy(run));
          if (calls[rank] == 0) hall.Leave();
        });
      for (std::thread& thread : threads) thread.join();
      for (int rank = 0; rank < 3; ++rank) {
        CAPTURE(wrong.words, mistaken, rank, outcomes[rank].message);
        CHECK(calls[rank] == 1);
        CHECK(outcomes[rank].code == MR_INVALID_ARGUMENT);
        const std::string by = rank == mistaken ? "" : fmt::format("rank {}: ", mistaken);
        CHECK(outcomes[rank].message.starts_with(by + wrong.words));
      }
    }
}

// What a rank alone reads of the run's own data, and cannot.
TEST_CASE("data that one rank cannot read is an error on all at once, and the run goes on",
          "[api][c][ranks]") {
  constexpr int64_t kWindows = 40, kRow = kRowTokens - 1;
  const TempDir folder;
  const std::vector<std::string> paths = {folder / "train.bin", folder / "val.bin"};
  std::vector<uint16_t> ids(kWindows * kRow + 1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>((i * i + 3 * i) % kVocab);
  for (const std::string& path : paths) WriteBytes(path, AsBytes(ids));
  // In place: the run has the file open.
  const auto put = [&](const std::string& path, int64_t window, uint16_t id) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp((window * kRow + kRow / 2) * static_cast<int64_t>(sizeof id));
    file.write(reinterpret_cast<const char*>(&id), sizeof id);
  };
  const auto id_of = [&](int64_t window) { return ids[window * kRow + kRow / 2]; };
  const std::string config =
      TinyConfig(fmt::format(R"("data": {{"kind": "tokens", "path": "{}", "val_path": "{}",
                                "eval_batches": 1}})",
                             paths[0], paths[1]));
  const auto with_data = [](mr_run_options& options) { options.use_data = 1; };
  const auto step = [](mr_run* run, double* loss) {
    mr_step_result result = Sized<mr_step_result>();
    const Outcome outcome = Take(mr_step(run, nullptr, &result));
    *loss = result.loss;
    return outcome;
  };
  const auto evaluate = [](mr_run* run, double* loss) {
    mr_evaluation result = Sized<mr_evaluation>();
    const Outcome outcome = Take(mr_evaluate(run, nullptr, &result));
    *loss = result.loss;
    return outcome;
  };
  std::vector<double> clean(2);
  OnRanks(
      2, config,
      [&](const Linked& run, int rank) {
        mr_status_free(mr_init(run));
        std::vector<double> own(2);
        evaluate(run, &own[1]);
        step(run, &own[0]);
        if (rank == 0) clean = own;
      },
      {}, with_data);

  // By call (a step, an evaluation), window and rank: with another window unreadable each time.
  std::vector<std::vector<std::array<Outcome, 2>>> outcomes(
      2, std::vector<std::array<Outcome, 2>>(kWindows));
  std::vector<std::vector<double>> after(2, std::vector<double>(2));
  std::barrier<> both(2);
  OnRanks(
      2, config,
      [&](const Linked& run, int rank) {
        mr_status_free(mr_init(run));
        double loss = 0;
        const auto try_all = [&](size_t call, const auto& read) {
          for (int64_t window = 0; window < kWindows; ++window) {
            if (rank == 0) put(paths[call], window, 999);
            both.arrive_and_wait();
            outcomes[call][window][rank] = read(run, &loss);
            both.arrive_and_wait();
            if (rank == 0) put(paths[call], window, id_of(window));
            if (run.Info().step > 0) mr_status_free(mr_init(run));  // the first step again
          }
          both.arrive_and_wait();
          read(run, &after[rank][call]);
        };
        try_all(1, evaluate);
        try_all(0, step);
      },
      {}, with_data);
  for (const size_t call : {0, 1}) {
    CAPTURE(call);
    std::array<int, 2> alone = {};  // windows that this rank alone reads
    for (const auto& [first, second] : outcomes[call]) {
      INFO(first.message << " | " << second.message);
      CHECK(first.code == second.code);
      if (first.code != MR_DATA) continue;
      const bool of_second = first.message.starts_with("rank 1: ");
      CHECK(of_second != second.message.starts_with("rank 0: "));
      CHECK_THAT(first.message, Contains("999"));
      CHECK_THAT(second.message, Contains("999"));
      ++alone[of_second];
    }
    const int rows = static_cast<int>(call == 0 ? kRows : kMicro);
    CHECK(alone == std::array<int, 2>{rows, rows});
  }
  for (const int rank : {0, 1}) CHECK(after[rank] == clean);
}

TEST_CASE("arguments of mr_generate and mr_stream that one rank refuses, all refuse",
          "[api][c][ranks]") {
  const std::string config = TinyConfig();
  std::vector<Outcome> generate(2), stream(2), again(2);
  OnRanks(
      2, config,
      [&](const Linked& run, int rank) {
        mr_status_free(mr_init(run));
        mr_answers* answers = nullptr;
        generate[rank] = Take(mr_generate(run, nullptr, 0, rank == 1 ? nullptr : &answers));
        mr_answers_free(answers);
        answers = nullptr;
        mr_stream_options options = Sized<mr_stream_options>();
        options.on_event = [](void*, mr_event*) -> mr_status* { return nullptr; };
        stream[rank] = Take(mr_stream(run, nullptr, 0, rank == 1 ? nullptr : &options));
        again[rank] = Take(mr_generate(run, nullptr, 0, &answers));
        mr_answers_free(answers);
      },
      {}, [](mr_run_options& options) { options.use_inference = 1; });
  CHECK(generate[1].message == "out is NULL");
  CHECK(generate[0].message == "rank 1: out is NULL");
  CHECK(stream[1].message == "options is NULL");
  CHECK(stream[0].message == "rank 1: options is NULL");
  for (const int rank : {0, 1}) {
    CHECK(generate[rank].code == MR_INVALID_ARGUMENT);
    CHECK(stream[rank].code == MR_INVALID_ARGUMENT);
    CHECK(again[rank].code == MR_OK);
  }
}

}  // namespace
}  // namespace millrace::test
