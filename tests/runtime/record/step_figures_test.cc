// The text that Prometheus reads.
#include "runtime/record/step_figures.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

namespace millrace {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Samples alone, without HELP and TYPE.
std::string Samples(const std::string& text) {
  std::string samples;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at) + 1;
    if (text[at] != '#') samples += text.substr(at, end - at);
    at = end;
  }
  return samples;
}

const StepFigures kFigures{
    12, 2.5, 0.1, 3e-05, 12345.75, 0.0625, 5'000'000'007, 3, 9'007'199'254'740'993, 2};

TEST_CASE("each figure has a help, a type and a value", "[metrics]") {
  const std::string text = PrometheusText(kFigures);
  CHECK(Samples(text) ==
        "millrace_step 12\n"
        "millrace_loss 2.5\n"
        "millrace_grad_norm 0.1\n"
        "millrace_lr 3e-05\n"
        "millrace_tokens_per_second 12345.75\n"
        "millrace_step_seconds 0.0625\n"
        "millrace_device_bytes 5000000007\n"
        "millrace_skipped_steps_total 3\n"
        "millrace_tokens_total 9007199254740993\n"
        "millrace_roll_backs_total 2\n");
  CHECK(text.starts_with(
      "# HELP millrace_step Training steps done.\n# TYPE millrace_step gauge\nmillrace_step 12\n"));
  CHECK(text.find("# TYPE millrace_skipped_steps_total counter\n") != std::string::npos);
  CHECK(text.find("# TYPE millrace_tokens_total counter\n") != std::string::npos);
  CHECK(text.find("# TYPE millrace_roll_backs_total counter\n") != std::string::npos);
}

TEST_CASE("once a checkpoint was saved or failed, saves have figures", "[metrics]") {
  StepFigures figures = kFigures;
  const std::string before = Samples(PrometheusText(figures));
  figures.saves = {
      .published = 4, .failed = 1, .step = 80, .stall_seconds = 0.0625, .seconds = 3.5};
  CHECK(Samples(PrometheusText(figures)) == before +
                                                "millrace_saves_total 4\n"
                                                "millrace_failed_saves_total 1\n"
                                                "millrace_saved_step 80\n"
                                                "millrace_save_stall_seconds 0.0625\n"
                                                "millrace_save_seconds 3.5\n");
}

TEST_CASE("scaled gradients have a scale, and overflows a count", "[metrics]") {
  StepFigures figures = kFigures;
  const std::string before = Samples(PrometheusText(figures));
  figures.scaling = {.loss_scale = 32768, .scale_downs = 5};
  const std::string text = PrometheusText(figures);
  CHECK(Samples(text) == before + "millrace_loss_scale 32768\nmillrace_scale_downs_total 5\n");
  CHECK(text.find("# TYPE millrace_scale_downs_total counter\n") != std::string::npos);
}

TEST_CASE("each block with experts has samples of its own", "[metrics]") {
  StepFigures figures = kFigures;
  const std::string before = PrometheusText(figures);
  CHECK(before.find("max_load") == before.npos);
  figures.routers = {{"h.0", 1.25, 2.0, {3, 5}}, {"mtp.1", 3, 0.5, {8, 0}}};
  figures.dropped_pairs = 37;
  figures.waiting_batches = 2;
  CHECK(PrometheusText(figures) ==
        before +
            "# HELP millrace_max_load Largest load of an expert over the mean load.\n"
            "# TYPE millrace_max_load gauge\n"
            "millrace_max_load{block=\"h.0\"} 1.25\n"
            "millrace_max_load{block=\"mtp.1\"} 3\n"
            "# HELP millrace_router_entropy Entropy of the mean probabilities over experts, in "
            "nats.\n"
            "# TYPE millrace_router_entropy gauge\n"
            "millrace_router_entropy{block=\"h.0\"} 2\n"
            "millrace_router_entropy{block=\"mtp.1\"} 0.5\n"
            "# HELP millrace_expert_load Pairs of token and expert of the step that chose an "
            "expert.\n"
            "# TYPE millrace_expert_load gauge\n"
            "millrace_expert_load{block=\"h.0\",expert=\"0\"} 3\n"
            "millrace_expert_load{block=\"h.0\",expert=\"1\"} 5\n"
            "millrace_expert_load{block=\"mtp.1\",expert=\"0\"} 8\n"
            "millrace_expert_load{block=\"mtp.1\",expert=\"1\"} 0\n"
            "# HELP millrace_dropped_pairs_total Pairs of token and expert that skipped steps had "
            "no room for.\n"
            "# TYPE millrace_dropped_pairs_total counter\n"
            "millrace_dropped_pairs_total 37\n"
            "# HELP millrace_waiting_batches Batches of such steps that have not run again yet.\n"
            "# TYPE millrace_waiting_batches gauge\n"
            "millrace_waiting_batches 2\n"
            "# HELP millrace_gate_info What chooses experts (model.moe.gate).\n"
            "# TYPE millrace_gate_info gauge\n"
            "millrace_gate_info{gate=\"router\"} 1\n");
  figures.balanced_gate = true;
  const std::string balanced = PrometheusText(figures);
  CHECK(balanced.find("millrace_gate_info{gate=\"balanced\"} 1\n") != balanced.npos);
  CHECK(balanced.find("gate=\"router\"") == balanced.npos);
}

TEST_CASE("each source of a blend has samples of its own, whatever it is called", "[metrics]") {
  StepFigures figures = kFigures;
  const std::string before = PrometheusText(figures);
  figures.sources = {{"wiki", 300, 1.5}, {"a\"b\\c\nd", 7, 0.25}};
  CHECK(PrometheusText(figures) ==
        before +
            "# HELP millrace_source_samples_total Sequences drawn from a source, all ranks.\n"
            "# TYPE millrace_source_samples_total counter\n"
            "millrace_source_samples_total{source=\"wiki\"} 300\n"
            "millrace_source_samples_total{source=\"a\\\"b\\\\c\\nd\"} 7\n"
            "# HELP millrace_source_epochs Times that a source has been gone through.\n"
            "# TYPE millrace_source_epochs gauge\n"
            "millrace_source_epochs{source=\"wiki\"} 1.5\n"
            "millrace_source_epochs{source=\"a\\\"b\\\\c\\nd\"} 0.25\n");
}

TEST_CASE("scores stay until there are newer ones", "[metrics]") {
  StepFigures figures = kFigures;
  const std::string before = PrometheusText(figures);
  figures.scores = {{"ppl:t", "lm-eval", 1, "", {{"bits_per_byte", 1.5}, {"loss", 2}}}};
  const std::string expected = before +
                               "# HELP millrace_score Newest score in an evaluation task.\n"
                               "# TYPE millrace_score gauge\n"
                               "millrace_score{task=\"ppl:t\",metric=\"bits_per_byte\"} 1.5\n"
                               "millrace_score{task=\"ppl:t\",metric=\"loss\"} 2\n";
  CHECK(PrometheusText(figures) == expected);
  NewestFigures newest;
  newest.Store(figures);
  figures.scores.clear();
  newest.Store(figures);
  CHECK(newest.Text() == expected);
}

TEST_CASE("values that are not finite are written as Prometheus reads them", "[metrics]") {
  StepFigures figures = kFigures;
  figures.loss = std::numeric_limits<double>::quiet_NaN();
  figures.grad_norm = kInf;
  figures.lr = -kInf;
  const std::string samples = Samples(PrometheusText(figures));
  CHECK(samples.find("millrace_loss NaN\nmillrace_grad_norm +Inf\nmillrace_lr -Inf\n") !=
        std::string::npos);
}

TEST_CASE("before the first step the text is empty, then it is the newest step's", "[metrics]") {
  NewestFigures newest;
  CHECK(newest.Text().empty());
  newest.Store(kFigures);
  CHECK(newest.Text() == PrometheusText(kFigures));
  StepFigures next = kFigures;
  next.step = 13;
  newest.Store(next);
  CHECK(newest.Text() == PrometheusText(next));
}

}  // namespace
}  // namespace millrace
