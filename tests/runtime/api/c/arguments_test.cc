// What a caller may get wrong: structs of other versions, handles, arguments. A status each, and
// nothing has changed.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <thread>

#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/api/c/linked.h"
#include "tests/runtime/api/c/tokenizer.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a status is a copy of its texts, and NULL is success", "[api][c]") {
  REQUIRE(mr_status_code(nullptr) == MR_OK);
  REQUIRE(std::string(mr_status_message(nullptr)).empty());
  REQUIRE(std::string(mr_status_pointer(nullptr)).empty());
  mr_status_free(nullptr);
  std::string text = "the pipe broke";
  mr_status* const status = mr_status_new(MR_IO, text.c_str());
  text.assign(text.size(), 'x');
  const Outcome taken = Take(status);
  REQUIRE(taken.code == MR_IO);
  REQUIRE(taken.message == "the pipe broke");
  REQUIRE(Take(mr_status_new(MR_OK, "no success")).code == MR_CALLBACK);
  REQUIRE(Take(mr_status_new(-3, nullptr)).code == MR_CALLBACK);
  REQUIRE(std::string(mr_status_name(MR_BORROWED)) == "borrowed");
  REQUIRE(std::string(mr_status_name(1)) == "unknown");
}

TEST_CASE("the loaded library's version is the header's", "[api][c]") {
  REQUIRE(mr_version_number() ==
          1000000 * MR_VERSION_MAJOR + 1000 * MR_VERSION_MINOR + MR_VERSION_PATCH);
  const std::string text = std::to_string(MR_VERSION_MAJOR) + "." +
                           std::to_string(MR_VERSION_MINOR) + "." +
                           std::to_string(MR_VERSION_PATCH);
  REQUIRE(mr_version() == text);
  REQUIRE_THAT(mr_config_schema(), Contains("\"optimizer\""));
}

TEST_CASE("a shorter struct stands for zeros, a longer or empty one is refused", "[api][c]") {
  const std::string config = TinyConfig();
  mr_run_options options = OptionsOf(config);
  options.world = 77;  // behind the end of what is given
  for (const size_t size : {size_t{0}, size_t{4}, offsetof(mr_run_options, config) + 2,
                            sizeof options - 4, sizeof options + 8, ~size_t{7}}) {
    options.size = size;
    mr_run* run = reinterpret_cast<mr_run*>(&options);
    const Outcome refused = Take(mr_run_create(&options, &run));
    CAPTURE(size, refused.message);
    REQUIRE(refused.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(refused.message, Contains("options.size is " + std::to_string(size)));
    REQUIRE(run == nullptr);
  }
  options.size = offsetof(mr_run_options, rank);
  const Linked run(options);
  INFO(run.created().message);
  REQUIRE(run.created().code == MR_OK);
  REQUIRE(run.Info().world == 1);

  mr_info info{};
  std::memset(&info, 0x5a, sizeof info);
  info.size = offsetof(mr_info, arena_bytes);
  REQUIRE_CODE(mr_run_info(run, &info), MR_OK);
  REQUIRE(info.parameters > 0);
  REQUIRE(info.arena_bytes == 0x5a5a5a5a5a5a5a5a);  // not the caller's to be written
  REQUIRE(info.size == offsetof(mr_info, arena_bytes));
  info.size = sizeof info + 8;
  REQUIRE_CODE(mr_run_info(run, &info), MR_INVALID_ARGUMENT);
}

TEST_CASE("a program without top_logprobs in its structs goes on", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {5};
  mr_request request = RequestOf(prompt, 3, 0);
  request.size = offsetof(mr_request, top_logprobs);
  request.top_logprobs = -77;  // behind the end of what is given
  REQUIRE(Generate(run, {request})[0].top == 0);
  request.size = sizeof request;
  request.top_logprobs = 2;
  const mr_request* const requests[] = {&request};
  mr_answers* answers = nullptr;
  REQUIRE_CODE(mr_generate(run, requests, 1, &answers), MR_OK);
  mr_answer answer = Sized<mr_answer>();
  answer.size = offsetof(mr_answer, top);
  answer.top = 77;
  REQUIRE_CODE(mr_answers_get(answers, 0, &answer), MR_OK);
  REQUIRE((answer.count == 3 && answer.top == 77 && answer.top_tokens == nullptr));
  mr_answers_free(answers);
}

TEST_CASE("an MPI that cannot be opened, or is none, is refused by name", "[api][c]") {
  const std::string config = TinyConfig();
  mr_run_options options = OptionsOf(config);
  mr_mpi mpi = Sized<mr_mpi>();
  options.mpi = &mpi;
  const auto refused = [&](int32_t code, const std::string& words) {
    const Linked run(options);
    CAPTURE(run.created().message);
    REQUIRE(run.created().code == code);
    REQUIRE_THAT(run.created().message, Contains(words));
  };
  mpi.library = "/nonexistent/libmpi.so";
  refused(MR_UNSUPPORTED, "/nonexistent/libmpi.so");
  mpi.library = "libm.so.6";
  refused(MR_UNSUPPORTED, "libm.so.6 has no MPI_");
  options.world = 2;
  refused(MR_INVALID_ARGUMENT, "options.mpi is not NULL, and rank 0, world 2");
  options.world = 0;
  mpi.size = 7;
  refused(MR_INVALID_ARGUMENT, "options.mpi.size is 7");
}

TEST_CASE("handles that are no run, or no more, are refused", "[api][c]") {
  const std::string config = TinyConfig();
  const mr_run_options options = OptionsOf(config);
  mr_run* stale = nullptr;
  REQUIRE_CODE(mr_run_create(&options, &stale), MR_OK);
  REQUIRE_CODE(mr_run_destroy(stale), MR_OK);
  REQUIRE_CODE(mr_run_destroy(nullptr), MR_OK);
  REQUIRE_CODE(mr_run_destroy(stale), MR_INVALID_ARGUMENT);
  mr_run* another = nullptr;  // does not take the place of the one that is gone
  REQUIRE_CODE(mr_run_create(&options, &another), MR_OK);
  REQUIRE(another != stale);
  const std::vector<int32_t> tokens = Tokens(0);
  const mr_batch batch = BatchOf(tokens);
  mr_evaluation evaluation = Sized<mr_evaluation>();
  mr_info info = Sized<mr_info>();
  int64_t count = 0;
  const char* text = nullptr;
  DLManagedTensorVersioned* tensor = nullptr;
  for (mr_run* run : {static_cast<mr_run*>(nullptr), stale, reinterpret_cast<mr_run*>(&count),
                      reinterpret_cast<mr_run*>(~uintptr_t{0})}) {
    REQUIRE_CODE(mr_init(run), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_load(run, nullptr), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_import(run, "folder"), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_save(run, nullptr), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_export(run, "folder"), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_step(run, &batch, nullptr), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_evaluate(run, &batch, &evaluation), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_run_info(run, &info), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_run_config(run, &text), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_weights_count(run, &count), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_weights_name(run, 0, &text), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_weights_borrow(run, "x", &tensor, nullptr), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_weights_export(run, nullptr), MR_INVALID_ARGUMENT);
  }
  REQUIRE_CODE(mr_run_destroy(another), MR_OK);
}

TEST_CASE("answers that are none, or no more, are refused", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {1, 2};
  mr_request request = RequestOf(prompt, 3, 0);
  request.top_logprobs = 2;
  const mr_request* const requests[] = {&request};
  mr_answers *kept = nullptr, *stale = nullptr, *another = nullptr;
  REQUIRE_CODE(mr_generate(run, requests, 1, &kept), MR_OK);
  REQUIRE_CODE(mr_generate(run, requests, 1, &stale), MR_OK);
  REQUIRE(mr_answers_count(stale) == 1);
  mr_answers_free(stale);
  REQUIRE_CODE(mr_generate(run, requests, 1, &another), MR_OK);
  REQUIRE(another != stale);
  mr_answer answer = Sized<mr_answer>();
  answer.count = answer.top = 77;
  for (mr_answers* answers :
       {static_cast<mr_answers*>(nullptr), stale, reinterpret_cast<mr_answers*>(&answer),
        reinterpret_cast<mr_answers*>(uintptr_t{0x10}),
        reinterpret_cast<mr_answers*>(~uintptr_t{0}),
        reinterpret_cast<mr_answers*>(static_cast<mr_run*>(run))}) {
    mr_answers_free(answers);
    REQUIRE(mr_answers_count(answers) == 0);
    const Outcome refused = Take(mr_answers_get(answers, 0, &answer));
    REQUIRE(refused.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(refused.message, Contains("answers is "));
  }
  REQUIRE((answer.count == 77 && answer.top == 77));
  REQUIRE(run.Info().step == 0);  // is a run still
  for (mr_answers* answers : {kept, another}) {
    REQUIRE(mr_answers_count(answers) == 1);
    REQUIRE_CODE(mr_answers_get(answers, 0, &answer), MR_OK);
    REQUIRE((answer.count == 3 && answer.top == 2));
    mr_answers_free(answers);
  }
}

TEST_CASE("tokenizers that are none, or no more, are refused", "[api][c]") {
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {1, 2};
  const mr_request request = RequestOf(prompt, 3, 0);
  const mr_request* const requests[] = {&request};
  mr_stream_options options = Sized<mr_stream_options>();
  options.on_event = [](void*, mr_event*) -> mr_status* { return nullptr; };
  mr_tokenizer* stale = nullptr;
  REQUIRE_CODE(mr_tokenizer_open("tests/runtime/text/testdata", &stale), MR_OK);
  mr_tokenizer_free(stale);
  const OpenTokenizer another;
  REQUIRE(another != stale);
  int64_t count = 77;
  int32_t id = 77;
  char letter = '?';
  for (mr_tokenizer* tokenizer :
       {static_cast<mr_tokenizer*>(nullptr), stale, reinterpret_cast<mr_tokenizer*>(&count),
        reinterpret_cast<mr_tokenizer*>(uintptr_t{0x10}),
        reinterpret_cast<mr_tokenizer*>(~uintptr_t{0}),
        reinterpret_cast<mr_tokenizer*>(static_cast<mr_run*>(run))}) {
    mr_tokenizer_free(tokenizer);
    REQUIRE_CODE(mr_tokenizer_encode(tokenizer, "a", 1, 0, &id, 1, &count), MR_INVALID_ARGUMENT);
    REQUIRE_CODE(mr_tokenizer_decode(tokenizer, &id, 1, 0, &letter, 1, &count),
                 MR_INVALID_ARGUMENT);
    const Outcome refused = Take(mr_tokenizer_find(tokenizer, "<|end|>", &id));
    REQUIRE(refused.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(refused.message, Contains("tokenizer is "));
    options.tokenizer = tokenizer;
    REQUIRE_CODE(mr_stream(run, requests, 1, &options),
                 tokenizer == nullptr ? MR_OK : MR_INVALID_ARGUMENT);
  }
  REQUIRE(count == 77);
  REQUIRE(id == 77);
  REQUIRE(letter == '?');
  REQUIRE(another.Encode("the house").size() > 1);
}

TEST_CASE("a tokenizer that is freed serves the calls that have it", "[api][c]") {
  mr_tokenizer* tokenizer = nullptr;
  REQUIRE_CODE(mr_tokenizer_open("tests/runtime/text/testdata", &tokenizer), MR_OK);
  Outcome last;
  std::atomic<int64_t> encoded = 0;
  std::thread other([&] {
    int64_t count = 0;
    while (last.code == MR_OK) {
      last = Take(mr_tokenizer_encode(tokenizer, "the house", 9, 0, nullptr, 0, &count));
      if (last.code == MR_OK) ++encoded;
    }
  });
  while (encoded < 100) std::this_thread::yield();
  mr_tokenizer_free(tokenizer);
  other.join();
  REQUIRE(last.code == MR_INVALID_ARGUMENT);

  // And a stream keeps its own to the end.
  const std::string config = TinyConfig();
  const Linked run(WithInference(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> prompt = {1, 2};
  const mr_request request = RequestOf(prompt, 4, 0);
  const mr_request* const requests[] = {&request};
  struct Listener {
    mr_tokenizer* tokenizer = nullptr;
    int64_t texts = 0;
  } listener;
  REQUIRE_CODE(mr_tokenizer_open("tests/runtime/text/testdata", &listener.tokenizer), MR_OK);
  mr_stream_options options = Sized<mr_stream_options>();
  options.user = &listener;
  options.tokenizer = listener.tokenizer;
  options.on_event = [](void* user, mr_event* event) -> mr_status* {
    Listener& self = *static_cast<Listener*>(user);
    mr_tokenizer_free(self.tokenizer);
    self.texts += event->text != nullptr;
    return nullptr;
  };
  REQUIRE_CODE(mr_stream(run, requests, 1, &options), MR_OK);
  REQUIRE(listener.texts == 4);
}

TEST_CASE("a configuration's mistake has its key as a JSON pointer", "[api][c]") {
  const auto created = [](const std::string& config) {
    return Linked(OptionsOf(config)).created();
  };
  const auto refused = [&](const std::string& config, const std::string& pointer,
                           const std::string& words) {
    const Outcome outcome = created(config);
    CAPTURE(config, outcome.message);
    REQUIRE(outcome.code == MR_CONFIG);
    REQUIRE(outcome.pointer == pointer);
    REQUIRE_THAT(outcome.message, Contains(words));
  };
  refused("{", "", "JSON");
  refused("[]", "", "object");
  refused(R"({"model": {"layers": -1}})", "/model/layers", "-1");
  refused(R"({"optimiser": {}})", "/optimiser", "did you mean");
  refused(TinyConfig(R"("run": 3)"), "/run", "must be an object");
  refused(TinyConfig(R"("execution": {"backend": "cuda"})"), "/execution/backend", "no CUDA");
  refused(TinyConfig(R"("guard": {"non_finite": "stop"})"), "/guard/non_finite", "skip");
  refused(TinyConfig(R"("guard": {"loss_spike": "skip"})"), "/guard/loss_spike", "null");
  refused(TinyConfig(R"("parallel": {"tensor": 2})"), "/parallel/tensor", "world");
  // What the training loop alone would do is a note, so that its file serves here, too.
  REQUIRE(created(TinyConfig(R"("checkpoint": {"every": 7})")).code == MR_OK);
}

TEST_CASE("wrong options are refused by name", "[api][c]") {
  const std::string config = TinyConfig();
  const auto refused = [&](auto&& change, const std::string& words) {
    mr_run_options options = OptionsOf(config);
    change(options);
    const Outcome outcome = Linked(options).created();
    CAPTURE(outcome.message);
    REQUIRE(outcome.code == MR_INVALID_ARGUMENT);
    REQUIRE_THAT(outcome.message, Contains(words));
  };
  refused([](mr_run_options& o) { o.config = nullptr; }, "options.config is NULL");
  refused([](mr_run_options& o) { o.world = -2; }, "options.world is -2");
  refused([](mr_run_options& o) { o.rank = 1; }, "options.rank is 1, of a world of 1");
  refused([](mr_run_options& o) { o.rank = -1; }, "options.rank is -1");
  refused([](mr_run_options& o) { o.use_data = 2; }, "options.use_data is 2");
  refused([](mr_run_options& o) { o.device = 1; }, "options.device is 1");
  refused([](mr_run_options& o) { o.use_inference = -1; }, "options.use_inference is -1");
  refused([](mr_run_options& o) { o.world = 2; }, "exchange is NULL");
  const mr_run_options options = OptionsOf(config);
  REQUIRE_CODE(mr_run_create(&options, nullptr), MR_INVALID_ARGUMENT);
  mr_run* run = nullptr;
  REQUIRE_CODE(mr_run_create(nullptr, &run), MR_INVALID_ARGUMENT);
}

TEST_CASE("a batch that does not fit is refused, and the run goes on", "[api][c]") {
  const Linked run(TinyConfig());
  REQUIRE(run.Step(0).first.code == MR_INVALID_ARGUMENT);  // no weights yet
  REQUIRE_CODE(mr_init(run), MR_OK);
  std::vector<int32_t> tokens = Tokens(0);
  const std::vector<float> floats(tokens.size(), 0.5f);
  const auto refused = [&](int32_t code, const std::string& words, auto&& change) {
    mr_batch batch = BatchOf(tokens);
    change(batch);
    const Outcome outcome = Take(mr_step(run, &batch, nullptr));
    CAPTURE(outcome.message);
    REQUIRE(outcome.code == code);
    REQUIRE_THAT(outcome.message, Contains(words));
  };
  refused(MR_INVALID_ARGUMENT, "a step takes 6", [](mr_batch& b) { b.sequences = 5; });
  refused(MR_INVALID_ARGUMENT, "a step takes 6", [](mr_batch& b) { b.sequences = -6; });
  refused(MR_INVALID_ARGUMENT, "tokens is NULL", [](mr_batch& b) { b.tokens = nullptr; });
  refused(MR_INVALID_ARGUMENT, "batch.size", [](mr_batch& b) { b.size = 1; });
  const float* const values = floats.data();
  refused(MR_INVALID_ARGUMENT, "batch.weights is not NULL, and train.loss_weights is false",
          [&](mr_batch& b) { b.weights = values; });
  refused(MR_INVALID_ARGUMENT, "batch.advantages is not NULL, and train.loss",
          [&](mr_batch& b) { b.advantages = values; });
  refused(MR_INVALID_ARGUMENT, "batch.old_logprobs is not NULL, and train.loss",
          [&](mr_batch& b) { b.old_logprobs = values; });
  for (const int32_t wrong : {-1, 37, INT32_MIN, INT32_MAX}) {
    tokens[2 * kRowTokens + 4] = wrong;
    refused(MR_INVALID_ARGUMENT, "batch.tokens[2][4] is " + std::to_string(wrong),
            [](mr_batch&) {});
  }
  mr_evaluation evaluation = Sized<mr_evaluation>();
  mr_batch batch = BatchOf(tokens);
  for (const int64_t rows : {int64_t{0}, int64_t{-3}, int64_t{4}, INT64_MAX / 3 * 3}) {
    batch.sequences = rows;
    REQUIRE_CODE(mr_evaluate(run, &batch, &evaluation), MR_INVALID_ARGUMENT);
  }
  REQUIRE_CODE(mr_evaluate(run, &batch, nullptr), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_step(run, nullptr, nullptr), MR_INVALID_ARGUMENT);  // no data was opened
  REQUIRE_CODE(mr_import(run, nullptr), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_export(run, ""), MR_INVALID_ARGUMENT);
  REQUIRE(run.Info().step == 0);
  REQUIRE(run.Step(0).second.step == 1);
}

}  // namespace
}  // namespace millrace::test
