// mr_release and mr_acquire: the same bits as without, and statuses for what needs the memory
// meanwhile.
#include <catch2/catch.hpp>
#include <memory>

#include "runtime/api/c/millrace_dlpack.h"
#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

constexpr int32_t kParts[] = {MR_PART_ERA, MR_PART_COPIES, MR_PART_ALL};

// Copies of weights are kept, so that each part has something.
std::string CopiesConfig() {
  return TinyConfig(
      R"("precision": {"compute": "bf16"}, "sharding": {"downcast": "after_update"})");
}

// Releases, looks at what is said of it, and acquires.
void ReleaseAndAcquire(const Linked& run, int32_t part) {
  mr_memory gone = Sized<mr_memory>(), back = Sized<mr_memory>();
  REQUIRE_CODE(mr_release(run, part, &gone), MR_OK);
  REQUIRE((gone.bytes > 0 || part == MR_PART_COPIES));
  REQUIRE(gone.bytes % 4096 == 0);
  REQUIRE((gone.host_bytes > 0) == (part == MR_PART_ALL));
  REQUIRE(gone.seconds > 0);
  REQUIRE(run.Info().released_bytes == gone.bytes);
  REQUIRE_CODE(mr_acquire(run, &back), MR_OK);
  REQUIRE(back.bytes == gone.bytes);
  REQUIRE(back.host_bytes == gone.host_bytes);
  REQUIRE(run.Info().released_bytes == 0);
}

TEST_CASE("steps, scores and answers are the same with memory released between them",
          "[api][c][release]") {
  const std::string config = CopiesConfig();
  const Linked plain(WithInference(config)), run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(plain), MR_OK);
  ReleaseAndAcquire(run, MR_PART_ALL);  // it has no weights yet
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {3, 30};
  for (int64_t step = 0; step < 6; ++step) {
    const int32_t part = kParts[step % 3];
    CAPTURE(step, part);
    const auto [plain_outcome, plain_step] = plain.Step(step);
    const auto [outcome, result] = run.Step(step);
    REQUIRE(outcome.code == MR_OK);
    REQUIRE(result.loss == plain_step.loss);
    REQUIRE(result.grad_norm == plain_step.grad_norm);
    REQUIRE(result.weight_version == plain_step.weight_version);
    ReleaseAndAcquire(run, part);
    const std::vector<mr_request> requests = {RequestOf(prompt, 5, 0.8f)};
    const Answer expected = Generate(plain, requests)[0], answer = Generate(run, requests)[0];
    REQUIRE(answer.tokens == expected.tokens);
    REQUIRE(answer.logprobs == expected.logprobs);
    ReleaseAndAcquire(run, part);
    const std::vector<int32_t> tokens = Tokens(step + 40);
    const mr_batch batch = BatchOf(tokens);
    std::vector<double> scores(static_cast<size_t>(kRows * (kRowTokens - 1))), same(scores.size());
    REQUIRE_CODE(mr_score(plain, &batch, scores.data(), std::ssize(scores)), MR_OK);
    REQUIRE_CODE(mr_score(run, &batch, same.data(), std::ssize(same)), MR_OK);
    REQUIRE(same == scores);
  }
}

TEST_CASE("what needs released memory is a status that names mr_acquire", "[api][c][release]") {
  const std::string config = CopiesConfig();
  const TempDir folder;
  const std::vector<int32_t> tokens = Tokens(0), prompt = {3};
  const mr_batch batch = BatchOf(tokens);
  for (const int32_t part : kParts) {
    CAPTURE(part);
    const Linked run(WithInference(config));
    REQUIRE_CODE(mr_init(run), MR_OK);
    const double loss = run.Step(0).second.loss;
    REQUIRE_CODE(mr_release(run, part, nullptr), MR_OK);
    const auto released = [&](mr_status* status) {
      const Outcome outcome = Take(status);
      CAPTURE(outcome.message);
      REQUIRE(outcome.code == MR_RELEASED);
      REQUIRE_THAT(outcome.message, Contains("mr_acquire"));
    };
    mr_evaluation evaluation = Sized<mr_evaluation>();
    std::vector<double> scores(static_cast<size_t>(kRows * (kRowTokens - 1)));
    const mr_request request = RequestOf(prompt, 2, 0);
    const mr_request* const requests = &request;
    mr_answers* answers = nullptr;
    released(mr_step(run, &batch, nullptr));
    released(mr_evaluate(run, &batch, &evaluation));
    released(mr_score(run, &batch, scores.data(), std::ssize(scores)));
    released(mr_generate(run, &requests, 1, &answers));
    released(mr_release(run, part, nullptr));
    released(mr_release(run, MR_PART_ERA, nullptr));
    // Weights are there, but in one of the parts.
    DLManagedTensorVersioned* tensor = nullptr;
    const std::string other = folder.path() + "/" + std::to_string(part);
    if (part == MR_PART_ALL) {
      released(mr_save(run, other.c_str()));
      released(mr_export(run, other.c_str()));
      released(mr_load(run, other.c_str()));
      released(mr_init(run));
      released(mr_weights_borrow(run, "lm_head.weight", &tensor, nullptr));
      REQUIRE(tensor == nullptr);
    } else {
      REQUIRE_CODE(mr_weights_borrow(run, "lm_head.weight", &tensor, nullptr), MR_OK);
      tensor->deleter(tensor);
      REQUIRE_CODE(mr_save(run, other.c_str()), MR_OK);
      REQUIRE_CODE(mr_load(run, other.c_str()), MR_OK);
    }
    REQUIRE(run.Info().step == 1);
    REQUIRE_CODE(mr_acquire(run, nullptr), MR_OK);
    const Outcome nothing = Take(mr_acquire(run, nullptr));
    REQUIRE(nothing.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(nothing.message, Contains("no memory of the run is released"));
    REQUIRE(run.Step(0).second.loss < loss);  // it has learned them, and goes on
  }
}

TEST_CASE("arguments of a release, and weights that are lent", "[api][c][release]") {
  const std::string config = CopiesConfig();
  const Linked run(config);
  REQUIRE_CODE(mr_init(run), MR_OK);
  for (const int32_t part : {-1, 0, 4}) {
    const Outcome outcome = Take(mr_release(run, part, nullptr));
    REQUIRE(outcome.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(outcome.message, Contains("allowed are 1 (era), 2 (copies) and 3 (all)"));
  }
  mr_memory wrong{};
  REQUIRE_CODE(mr_release(run, MR_PART_ALL, &wrong), MR_INVALID_ARGUMENT);
  REQUIRE(run.Info().released_bytes == 0);
  REQUIRE_CODE(mr_release(nullptr, MR_PART_ALL, nullptr), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_acquire(nullptr, nullptr), MR_INVALID_ARGUMENT);

  DLManagedTensorVersioned* tensor = nullptr;
  REQUIRE_CODE(mr_weights_borrow(run, "lm_head.weight", &tensor, nullptr), MR_OK);
  const auto* const weights = static_cast<const float*>(tensor->dl_tensor.data);
  const float first = weights[0];
  const Outcome lent = Take(mr_release(run, MR_PART_ALL, nullptr));
  REQUIRE(lent.code == MR_BORROWED);
  REQUIRE_THAT(lent.message, Contains("1 tensor of the weights is lent"));
  REQUIRE_CODE(mr_release(run, MR_PART_ERA, nullptr), MR_OK);
  REQUIRE(weights[0] == first);
  tensor->deleter(tensor);
  REQUIRE_CODE(mr_acquire(run, nullptr), MR_OK);
  REQUIRE_CODE(mr_release(run, MR_PART_ALL, nullptr), MR_OK);
  // And the run ends without its memory.
}

TEST_CASE("while answers are made, nothing is released", "[api][c][release]") {
  const std::string config = CopiesConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  struct Seen {
    mr_run* run;
    Outcome outcome;
    static mr_status* Hear(void* user, mr_event*) {
      Seen& self = *static_cast<Seen*>(user);
      self.outcome = Take(mr_release(self.run, MR_PART_ERA, nullptr));
      return nullptr;
    }
  } seen{run, {}};
  const std::vector<int32_t> prompt = {3};
  const mr_request request = RequestOf(prompt, 3, 0);
  const mr_request* const requests = &request;
  mr_stream_options options = Sized<mr_stream_options>();
  options.user = &seen;
  options.on_event = Seen::Hear;
  REQUIRE_CODE(mr_stream(run, &requests, 1, &options), MR_OK);
  REQUIRE(seen.outcome.code == MR_BUSY);
  REQUIRE(run.Info().released_bytes == 0);
}

}  // namespace
}  // namespace millrace::test
