// Ranks that are threads of a program, and their exchange, which may fail.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/runtime/api/c/rank_threads.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("ranks that are threads of a program train one model", "[api][c][ranks]") {
  const int world = 3;
  const TempDir folder;
  std::vector<std::vector<double>> losses(world);
  std::vector<Outcome> outcomes(world);
  OnRanks(world, TinyConfig(), [&](const Linked& run, int rank) {
    outcomes[rank] = run.created();
    if (outcomes[rank].code == MR_OK) outcomes[rank] = Take(mr_init(run));
    for (int64_t step = 0; outcomes[rank].code == MR_OK && step < 4; ++step) {
      const auto [outcome, result] = run.Step(step, rank);
      outcomes[rank] = outcome;
      losses[rank].push_back(result.loss);
    }
    if (outcomes[rank].code == MR_OK) outcomes[rank] = Take(mr_save(run, folder.path().c_str()));
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    REQUIRE(outcome.code == MR_OK);
  }
  REQUIRE(losses[0].size() == 4);
  REQUIRE(losses[1] == losses[0]);
  REQUIRE(losses[2] == losses[0]);

  // One rank on the rows of all of them: the same mean, summed in another order.
  const Linked alone(R"({"model": {"family": "llama", "layers": 2, "d_model": 20, "heads": 2,
      "ffn": 28, "seq_len": 8, "vocab": 37}, "optimizer": {"lr": 0.01},
      "train": {"steps": 50, "micro_batch": 9, "accumulate": 2}})");
  REQUIRE_CODE(mr_init(alone), MR_OK);
  for (int64_t step = 0; step < 4; ++step) {
    std::vector<int32_t> rows;
    for (int rank = 0; rank < world; ++rank) {
      const std::vector<int32_t> own = Tokens(step, rank);
      rows.insert(rows.end(), own.begin(), own.end());
    }
    const mr_batch batch = BatchOf(rows);
    mr_step_result result = Sized<mr_step_result>();
    REQUIRE_CODE(mr_step(alone, &batch, &result), MR_OK);
    REQUIRE(losses[0][static_cast<size_t>(step)] == Approx(result.loss).epsilon(1e-5));
  }
  // And it goes on from what three ranks have saved.
  REQUIRE_CODE(mr_load(alone, folder.path().c_str()), MR_OK);
  REQUIRE(alone.Info().step == 4);
}

TEST_CASE("what one rank refuses, all refuse, and the run goes on", "[api][c][ranks]") {
  std::vector<Outcome> step(2), evaluation(2), import(2), borrow(2), after(2);
  OnRanks(2, TinyConfig(), [&](const Linked& run, int rank) {
    mr_status_free(mr_init(run));
    std::vector<int32_t> tokens = Tokens(0, rank);
    if (rank == 1) tokens[3] = 99;
    mr_batch batch = BatchOf(tokens);
    step[rank] = Take(mr_step(run, &batch, nullptr));
    tokens[3] = 0;
    batch.sequences = rank == 1 ? kRows : kMicro;
    mr_evaluation result = Sized<mr_evaluation>();
    evaluation[rank] = Take(mr_evaluate(run, &batch, &result));
    import[rank] = Take(mr_import(run, rank == 1 ? nullptr : "folder"));
    DLManagedTensorVersioned* tensor = nullptr;
    borrow[rank] = Take(mr_weights_borrow(run, "lm_head.weight", &tensor, nullptr));
    after[rank] = run.Step(0, rank).first;
  });
  REQUIRE_THAT(step[1].message, Contains("batch.tokens[0][3] is 99"));
  REQUIRE_THAT(step[0].message, Contains("rank 1: batch.tokens[0][3] is 99"));
  REQUIRE_THAT(import[0].message, Contains("rank 1: folder is NULL"));
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(rank, step[rank].message, evaluation[rank].message, borrow[rank].message);
    REQUIRE(step[rank].code == MR_INVALID_ARGUMENT);
    REQUIRE(evaluation[rank].code == MR_INVALID_ARGUMENT);
    REQUIRE(import[rank].code == MR_INVALID_ARGUMENT);
    REQUIRE(borrow[rank].code == MR_UNSUPPORTED);  // half of it is here
    REQUIRE(after[rank].code == MR_OK);
  }
}

TEST_CASE("ranks in different calls, or with different folders, all hear of it",
          "[api][c][ranks]") {
  const TempDir folder;
  std::vector<Outcome> calls(2), folders(2), after(2);
  OnRanks(2, TinyConfig(), [&](const Linked& run, int rank) {
    mr_status_free(mr_init(run));
    const std::vector<int32_t> tokens = Tokens(0, rank);
    mr_batch batch = BatchOf(tokens);
    mr_evaluation result = Sized<mr_evaluation>();
    calls[rank] =
        Take(rank == 1 ? mr_evaluate(run, &batch, &result) : mr_step(run, &batch, nullptr));
    folders[rank] = Take(mr_save(run, (folder / (rank == 1 ? "one" : "zero")).c_str()));
    after[rank] = run.Step(0, rank).first;
  });
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(rank, calls[rank].message, folders[rank].message);
    CHECK(calls[rank].code == MR_INVALID_ARGUMENT);
    CHECK_THAT(calls[rank].message, Contains("rank 0 is in mr_step, and rank 1 in mr_evaluate"));
    CHECK(folders[rank].code == MR_INVALID_ARGUMENT);
    CHECK_THAT(folders[rank].message, Contains("zero") && Contains("one"));
    CHECK(after[rank].code == MR_OK);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("ranks along tensor draw the same answers to the same requests", "[api][c][ranks]") {
  std::vector<Outcome> same(2), other(2), other_top(2), again(2);
  std::vector<std::vector<int32_t>> tokens(2);
  const std::string config =
      R"({"model": {"family": "llama", "layers": 2, "d_model": 20, "heads": 2,
      "ffn": 28, "seq_len": 8, "vocab": 37}, "parallel": {"tensor": 2}})";
  const auto generate = [](mr_run* run, int32_t prompt, int64_t top, std::vector<int32_t>* drawn) {
    mr_request request = Sized<mr_request>();
    request.prompt = &prompt;
    request.prompt_tokens = 1;
    request.max_tokens = 7;
    request.temperature = 1;
    request.top_logprobs = top;
    const mr_request* const pointer = &request;
    mr_answers* answers = nullptr;
    const Outcome outcome = Take(mr_generate(run, &pointer, 1, &answers));
    mr_answer answer = Sized<mr_answer>();
    if (outcome.code == MR_OK) mr_status_free(mr_answers_get(answers, 0, &answer));
    if (drawn != nullptr) {
      drawn->assign(answer.tokens, answer.tokens + answer.count);
      drawn->insert(drawn->end(), answer.top_tokens, answer.top_tokens + answer.count * answer.top);
    }
    mr_answers_free(answers);
    return outcome;
  };
  OnRanks(
      2, config,
      [&](const Linked& run, int rank) {
        mr_status_free(mr_init(run));
        same[rank] = generate(run, 5, 2, &tokens[rank]);
        other[rank] = generate(run, 5 + rank, 2, nullptr);
        other_top[rank] = generate(run, 5, rank, nullptr);
        again[rank] = generate(run, 5, 0, nullptr);
      },
      {}, [](mr_run_options& options) { options.use_inference = 1; });
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(rank, same[rank].message, again[rank].message);
    REQUIRE(same[rank].code == MR_OK);
    REQUIRE(other[rank].code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(other[rank].message, Contains("ranks 0 and 1 have other requests"));
    REQUIRE_THAT(other_top[rank].message, Contains("ranks 0 and 1 have other requests"));
    REQUIRE(again[rank].code == MR_OK);
  }
  REQUIRE(tokens[0].size() == 7 * 3);
  REQUIRE(tokens[1] == tokens[0]);
}

TEST_CASE("ranks release the same part, and train on with the same bits", "[api][c][ranks]") {
  const std::string config =
      TinyConfig(R"("precision": {"compute": "bf16"}, "sharding": {"downcast": "after_update"})");
  const auto losses = [&](bool releases) {
    std::vector<std::vector<double>> by_rank(2);
    std::vector<Outcome> other(2), wrong(2), failed(2), without(2);
    OnRanks(2, config, [&](const Linked& run, int rank) {
      mr_status_free(mr_init(run));
      const auto take = [&](mr_status* status) {
        if (Outcome outcome = Take(status); outcome.code != MR_OK) failed[rank] = outcome;
      };
      for (int64_t step = 0; step < 4; ++step) {
        by_rank[rank].push_back(run.Step(step, rank).second.loss);
        if (!releases) continue;
        take(mr_release(run, 1 + static_cast<int32_t>(step) % 3, nullptr));
        without[rank] = run.Step(step, rank).first;
        take(mr_acquire(run, nullptr));
      }
      if (!releases) return;
      other[rank] = Take(mr_release(run, rank == 1 ? MR_PART_ALL : MR_PART_ERA, nullptr));
      wrong[rank] = Take(mr_release(run, rank == 1 ? 9 : MR_PART_ERA, nullptr));
      by_rank[rank].push_back(run.Step(4, rank).second.loss);
    });
    for (int rank = 0; releases && rank < 2; ++rank) {
      INFO(failed[rank].message);
      REQUIRE(failed[rank].code == MR_OK);
      REQUIRE(without[rank].code == MR_RELEASED);
      REQUIRE(other[rank].code == MR_INVALID_ARGUMENT);
      REQUIRE_THAT(other[rank].message, Contains("part is 3 on rank 1, and 1 on rank 0"));
      REQUIRE(wrong[rank].code == MR_INVALID_ARGUMENT);
      REQUIRE_THAT(wrong[rank].message, Contains("part is 9"));
    }
    REQUIRE(by_rank[1] == by_rank[0]);
    return by_rank[0];
  };
  std::vector<double> released = losses(true);
  REQUIRE(std::isfinite(released.back()));
  released.pop_back();
  REQUIRE(released == losses(false));
}

TEST_CASE("a rank that has gone is an error on the others, and then for good", "[api][c][ranks]") {
  std::vector<Outcome> step(2), later(2);
  OnRanks(2, TinyConfig(), [&](const Linked& run, int rank) {
    mr_status_free(mr_init(run));
    if (rank == 1) return;
    step[0] = run.Step(0).first;
    later[0] = run.Step(0).first;
    later[1] = Take(mr_init(run));
  });
  REQUIRE(step[0].code == MR_PEER_LOST);
  for (const Outcome& outcome : later) {
    REQUIRE(outcome.code == MR_RUN_FAILED);
    REQUIRE_THAT(outcome.message, Contains(step[0].message));
  }
}

TEST_CASE("an exchange that fails, fails mr_run_create with its status", "[api][c][ranks]") {
  const auto created = [](const std::function<void(Hall::Seat&)>& arrange) {
    std::vector<Outcome> outcomes(2);
    OnRanks(
        2, TinyConfig(), [&](const Linked& run, int rank) { outcomes[rank] = run.created(); },
        arrange);
    return outcomes;
  };
  for (const int call : {0, 1}) {
    const std::vector<Outcome> outcomes = created([&](Hall::Seat& seat) {
      seat.then = [call](int now, char*, size_t) {
        return now == call ? mr_status_new(MR_TIMEOUT, "no answer from the others") : nullptr;
      };
    });
    for (const Outcome& outcome : outcomes) {
      REQUIRE(outcome.code == MR_TIMEOUT);
      REQUIRE(outcome.message == "exchange: no answer from the others");
    }
  }
  // Rank 0 alone leaves: the other one does not look for a world that is gone.
  const std::vector<Outcome> alone = created([&](Hall::Seat& seat) {
    if (seat.rank == 0)
      seat.then = [](int, char*, size_t) { return mr_status_new(MR_IO, "left"); };
    else
      seat.then = [](int now, char*, size_t) {
        if (now == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return now == 0 ? nullptr : mr_status_new(MR_IO, "nobody there");
      };
  });
  REQUIRE(alone[0].code == MR_IO);
  REQUIRE(alone[1].code == MR_PEER_LOST);
  const std::vector<Outcome> garbled = created([&](Hall::Seat& seat) {
    seat.then = [](int, char* buffer, size_t each) {
      std::memset(buffer, 0x33, 2 * each);
      return static_cast<mr_status*>(nullptr);
    };
  });
  for (const Outcome& outcome : garbled) REQUIRE(outcome.code == MR_INVALID_ARGUMENT);
}

TEST_CASE("a rank with another configuration ends the start of all", "[api][c][ranks]") {
  std::vector<Outcome> outcomes(2);
  Hall hall(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Hall::Seat seat{&hall, rank, {}};
      const std::string config =
          rank == 0 ? TinyConfig() : TinyConfig(R"("data": {"shuffle_seed": 5})");
      mr_run_options options = OptionsOf(config);
      options.rank = rank;
      options.world = 2;
      options.user = &seat;
      options.exchange = Hall::Exchange;
      outcomes[rank] = Linked(options).created();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    REQUIRE(outcome.code == MR_CONFIG);
    REQUIRE_THAT(outcome.message, Contains("data.shuffle_seed is 5, and 0 on rank 0"));
  }
}

}  // namespace
}  // namespace millrace::test
