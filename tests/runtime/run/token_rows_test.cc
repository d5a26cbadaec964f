// Which document each token is in, which targets count, and training on them.
#include "runtime/run/data/token_rows.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

template <class T>
std::vector<T> Given(const TokenRows& rows, std::string_view source) {
  const HostInputs inputs = rows.inputs();
  const HostInputs::Input* const input = inputs.find(source);
  if (input == nullptr) return {};
  std::vector<T> values(input->bytes.size() / sizeof(T));
  std::memcpy(values.data(), input->bytes.data(), input->bytes.size());
  return values;
}

TEST_CASE("a document ends with its end, and the first of a row begins with the row", "[data]") {
  // Two rows of 6 and the target behind each; 9 ends documents.
  const std::vector<int32_t> tokens = {1, 2, 9, 3, 9, 9, 4,  //
                                       9, 5, 6, 7, 8, 1, 9};
  const TokenRows rows(tokens, {}, 6, {.documents = true, .end_of_document = 9});
  CHECK(Given<int32_t>(rows, "tokens") == tokens);
  CHECK(Given<int32_t>(rows, "documents") ==
        std::vector<int32_t>{0, 0, 0, 3, 3, 5, 0, 1, 1, 1, 1, 1});
  CHECK(Given<float>(rows, "weights") == std::vector<float>{1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1});
  CHECK(rows.weight() == 8);
  const TokenRows plain(tokens, {}, 6, {});
  CHECK(plain.inputs().size() == 1);
  CHECK(plain.weight() == 12);
}

TEST_CASE("marks say where documents begin and which targets count", "[data]") {
  const std::vector<int32_t> tokens = {1, 2, 9, 3, 9, 9, 4,  //
                                       9, 5, 6, 7, 8, 1, 9};
  constexpr uint8_t n = kNoTarget, d = kBeginsDocument;
  // The mark of a row's first token says nothing: it is no target here, and the row begins there.
  const std::vector<uint8_t> marks = {n, 0, n, d, 0, n | d, 0,  //
                                      d, n, 0, d, d, 0,     n};
  const TokenRows documents(tokens, marks, 6, {.documents = true});
  CHECK(Given<int32_t>(documents, "tokens") == tokens);
  CHECK(Given<int32_t>(documents, "documents") ==
        std::vector<int32_t>{0, 0, 0, 3, 3, 5, 0, 0, 0, 3, 4, 4});
  CHECK(Given<float>(documents, "weights") ==
        std::vector<float>{1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1});
  CHECK(documents.weight() == 8);
  const TokenRows chosen(tokens, marks, 6, {.loss = true});
  CHECK(chosen.inputs().size() == 2);
  CHECK(Given<int32_t>(chosen, "tokens") == tokens);
  CHECK(Given<float>(chosen, "weights") == std::vector<float>{1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0});
  CHECK(chosen.weight() == 8);
  // An id that ends documents decides over the marks.
  const TokenRows both(tokens, marks, 6, {.documents = true, .end_of_document = 9, .loss = true});
  CHECK(Given<float>(both, "weights") == std::vector<float>{1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0});
  CHECK(both.weight() == 6);

  // Each depth's weights are those of the next token, rolled within a row.
  const TokenRows further(tokens, marks, 6, {.loss = true, .further = 2});
  CHECK(further.inputs().size() == 4);
  CHECK(Given<float>(further, "mtp.1.weights") ==
        std::vector<float>{0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0});
  CHECK(Given<float>(further, "mtp.2.weights") ==
        std::vector<float>{1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0});
  CHECK(further.weight() == 8);
  CHECK(TokenRows(tokens, {}, 6, {.further = 2}).inputs().size() == 1);
}

// Lines of 1 to 23 bytes.
std::string Lines() {
  std::string text;
  for (int line = 0; line < 600; ++line) {
    for (int i = 0; i < line % 23; ++i) text += static_cast<char>('a' + (line * 7 + i * i) % 26);
    text += '\n';
  }
  return text;
}

struct Heard : StepObserver {
  std::vector<double> losses, evaluated;
  void OnStep(const StepReport& report) override { losses.push_back(report.loss); }
  void OnEval(int64_t, double loss) override { evaluated.push_back(loss); }
};

Heard Trained(const std::string& path, int world, int micro_batch, const std::string& data) {
  const TempDir temp;
  const std::vector<ConfigText> texts = {
      {"test.json", fmt::format(R"({{
    "model": {{"family": "llama", "layers": 1, "d_model": 16, "heads": 2, "seq_len": 24}},
    "data": {{"path": "{}"{}}}, "run": {{"dir": "{}"}},
    "train": {{"steps": 3, "micro_batch": {}, "eval_every": 3}}}})",
                                path, data, temp / "run", micro_batch)}};
  const LoadedConfig loaded = LoadConfigTexts(texts, {}, ConfigContext{.world = world});
  Heard heard;
  test::TestRanks().Run(world, [&](const test::RankSetup& setup) {
    Session session(loaded.config, setup.environment(), {{"train", "eval"}, true});
    TrainOptions options;
    options.machine = FindMachine("cpu");
    Train(session, options, std::atomic<bool>(false),
          session.rank() == 0 ? std::vector<StepObserver*>{&heard} : std::vector<StepObserver*>{});
  });
  return heard;
}

TEST_CASE("training on documents is the same on one rank and on two, and not that without them",
          "[training]") {
  const TempDir temp;
  const std::string path = temp / "lines.txt";
  std::ofstream(path) << Lines();
  const std::string masked = R"(, "document_mask": true, "end_of_document": 10)";
  const Heard one = Trained(path, 1, 4, masked), two = Trained(path, 2, 2, masked),
              plain = Trained(path, 1, 4, "");
  REQUIRE(one.losses.size() == 3);
  REQUIRE(one.evaluated.size() == 2);  // ahead of the first step, and behind the last
  REQUIRE(two.evaluated.size() == 2);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(two.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
    CHECK(plain.losses[i] != Approx(one.losses[i]).epsilon(1e-5));
  }
  for (size_t i = 0; i < 2; ++i) {
    CHECK(two.evaluated[i] == Approx(one.evaluated[i]).epsilon(1e-5));
    CHECK(plain.evaluated[i] != Approx(one.evaluated[i]).epsilon(1e-5));
  }
  CHECK_THROWS_WITH(Trained(path, 1, 4, R"(, "document_mask": true)"),
                    Catch::Matchers::Contains("data.end_of_document null"));
}

}  // namespace
}  // namespace millrace
