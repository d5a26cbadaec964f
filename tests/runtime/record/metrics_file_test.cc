// metrics.jsonl on a disk that is full for a while.
#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/record/metrics.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

struct FullDisk : FileSystem {
  bool full = false;
  ssize_t Append(int fd, const void* data, size_t bytes) override {
    if (!full) return FileSystem::Append(fd, data, bytes);
    FileSystem::Append(fd, data, bytes / 2);  // what fits
    return static_cast<ssize_t>(bytes / 2);
  }
};

StepReport Step(int64_t number) {
  StepReport report;
  report.step = number;
  report.loss = 1.0 / static_cast<double>(number);
  return report;
}

std::string LinesOf(int64_t last, const TempDir& dir) {
  MetricsFile plain(dir / "plain", 0, OldMetrics::kDropTail);
  for (int64_t step = 1; step <= last; ++step) CHECK(plain.Append(Step(step)).empty());
  return ReadBytes(dir / "plain/metrics.jsonl");
}

TEST_CASE("lines that a full disk does not take are written, in order, when it has space again") {
  const TempDir dir;
  FullDisk disk;
  const std::string path = dir / "run/metrics.jsonl";
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  CHECK(metrics.Append(Step(1)).empty());
  const std::string one = ReadBytes(path);
  disk.full = true;
  CHECK_THAT(metrics.Append(Step(2)),
             Catch::StartsWith("step 2: cannot append to " + path + ": No space"));
  CHECK(metrics.Append(Step(3)).empty());  // said once
  CHECK(metrics.waiting() == 2);
  RequireError(ErrorCode::kIo, {"metrics.jsonl"}, [&] { metrics.Sync(); });
  CHECK(ReadBytes(path) == one);  // whole lines only
  disk.full = false;
  CHECK(metrics.Append(Step(4)) == "step 4: the lines of 2 steps that waited are written");
  CHECK(metrics.waiting() == 0);
  CHECK(metrics.Append(Step(5)).empty());
  CHECK(ReadBytes(path) == LinesOf(5, dir));
}

TEST_CASE("a line says how routers have used their experts, where there are some") {
  const TempDir dir;
  StepReport report;
  report.step = 1;
  {
    MetricsFile file(dir.path(), 0, OldMetrics::kDropTail);
    file.Append(report);
    report.step = 2;
    report.routers = {{"h.0", 1.5, 0.75, {3, 5}}, {"h.2", 2, std::nan(""), {8, 0}}};
    report.balanced_gate = true;
    file.Append(report);
    report.step = 3;
    report.dropped_pairs = 37;
    report.again = true;
    report.waiting_batches = 2;
    report.records_loads = true;
    file.Append(report);
  }
  std::ifstream in(dir.path() + "/metrics.jsonl");
  std::string first, second, third;
  std::getline(in, first);
  std::getline(in, second);
  std::getline(in, third);
  const auto without = nlohmann::json::parse(first), with = nlohmann::json::parse(second),
             overflown = nlohmann::json::parse(third);
  for (const char* key : {"max_load", "router_entropy", "dropped_pairs", "gate"})
    CHECK(!without.contains(key));
  CHECK(with["max_load"] == nlohmann::json{{"h.0", 1.5}, {"h.2", 2.0}});
  CHECK(with["router_entropy"] == nlohmann::json{{"h.0", 0.75}, {"h.2", nullptr}});
  CHECK(with["dropped_pairs"] == 0);
  CHECK(with["gate"] == "balanced");
  for (const char* key : {"again", "waiting_batches"}) CHECK(!with.contains(key));
  CHECK(!with.contains("loads"));
  CHECK(overflown["loads"] == nlohmann::json{{"h.0", {3, 5}}, {"h.2", {8, 0}}});
  CHECK(overflown["dropped_pairs"] == 37);
  CHECK(overflown["again"] == true);
  CHECK(overflown["waiting_batches"] == 2);
}

TEST_CASE("scalars and samples say that a fixed pattern chooses experts, too") {
  StepReport report;
  report.routers = {{"h.0", 1.5, 0.75}};
  const auto of_gate = [&] {
    std::vector<double> values;
    for (const EventScalar& scalar : ScalarsOf(report))
      if (scalar.tag == "balanced_gate") values.push_back(scalar.value);
    return values;
  };
  const auto has = [&](const std::string& sample) {
    const std::string text = PrometheusText(FiguresOf(report, {}));
    return text.find(sample) != text.npos;
  };
  CHECK(of_gate().empty());
  CHECK(has("millrace_gate_info{gate=\"router\"} 1\n"));
  report.balanced_gate = true;
  CHECK(of_gate() == std::vector<double>{1});
  CHECK(has("millrace_gate_info{gate=\"balanced\"} 1\n"));
}

TEST_CASE("a line says how far a run is in each source, and what it predicts of each") {
  const TempDir dir;
  StepReport report;
  report.step = 1;
  {
    MetricsFile file(dir.path(), 0, OldMetrics::kDropTail);
    file.Append(report);
    report.step = 2;
    report.sources = {{"wiki", 300, 1.5}, {"code", 7, 0.25}};
    report.scores = {{"hellaswag:v.jsonl", "lm-eval", 24, "abc", {{"acc", 0.25}}},
                     {"ppl:t", "lm-eval", 1, "def", {{"byte_perplexity", INFINITY}}}};
    report.eval_loss = 2.5;
    report.eval_sources = {{"wiki", 2}, {"code", std::nan("")}};
    file.Append(report);
  }
  std::ifstream in(dir.path() + "/metrics.jsonl");
  std::string first, second;
  std::getline(in, first);
  std::getline(in, second);
  const auto without = nlohmann::json::parse(first), with = nlohmann::json::parse(second);
  for (const char* key : {"source_samples", "source_epochs", "source_eval_loss", "scores"})
    CHECK(!without.contains(key));
  CHECK(with["scores"] ==
        nlohmann::json::parse(R"({"hellaswag:v.jsonl": {"rules": "lm-eval", "examples": 24,
                                                        "hash": "abc", "acc": 0.25},
                                  "ppl:t": {"rules": "lm-eval", "examples": 1, "hash": "def",
                                            "byte_perplexity": null}})"));
  CHECK(with["source_samples"] == nlohmann::json{{"wiki", 300}, {"code", 7}});
  CHECK(with["source_epochs"] == nlohmann::json{{"wiki", 1.5}, {"code", 0.25}});
  CHECK(with["source_eval_loss"] == nlohmann::json{{"wiki", 2.0}, {"code", nullptr}});
}

TEST_CASE("a line says how far a policy has moved, where there is one") {
  const TempDir dir;
  StepReport report;
  report.step = 1;
  report.policy = {.clip_fraction = 0.25, .ratio = 1.5, .kl = 0.125};
  MetricsFile(dir.path(), 0, OldMetrics::kDropTail).Append(report);
  std::ifstream in(dir.path() + "/metrics.jsonl");
  const auto line = nlohmann::json::parse(in);
  CHECK(line["clip_fraction"] == 0.25);
  CHECK(line["ratio"] == 1.5);
  CHECK(line["kl"] == 0.125);
  const std::string text = PrometheusText(FiguresOf(report, {}));
  for (const char* sample :
       {"millrace_clip_fraction 0.25\n", "millrace_ratio 1.5\n", "millrace_kl 0.125\n"})
    CHECK(text.find(sample) != text.npos);
}

TEST_CASE("a sync writes what waits, or says that it cannot") {
  const TempDir dir;
  FullDisk disk;
  disk.full = true;
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  CHECK_FALSE(metrics.Append(Step(1)).empty());
  CHECK(metrics.Append(Step(2)).empty());
  disk.full = false;
  metrics.Sync();
  CHECK(metrics.waiting() == 0);
  CHECK(ReadBytes(dir / "run/metrics.jsonl") == LinesOf(2, dir));
}

TEST_CASE("lines do not wait without end") {
  const TempDir dir;
  FullDisk disk;
  disk.full = true;
  MetricsFile metrics(dir / "run", 0, OldMetrics::kDropTail, disk);
  for (size_t step = 1; step < MetricsFile::kMostWaiting; ++step)
    metrics.Append(Step(static_cast<int64_t>(step)));
  RequireError(ErrorCode::kIo, {"metrics.jsonl"}, [&] { metrics.Append(Step(1 << 16)); });
}

}  // namespace
}  // namespace millrace
