#include "runtime/record/step_figures.h"

#include <fmt/core.h>

#include <cmath>
#include <string_view>
#include <utility>

namespace millrace {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Number(int64_t value) { return std::to_string(value); }

template <typename T>
std::string Metric(std::string_view name, std::string_view type, std::string_view help, T value) {
  return fmt::format("# HELP millrace_{0} {1}\n# TYPE millrace_{0} {2}\nmillrace_{0} {3}\n", name,
                     help, type, Number(value));
}

// A label's value: a source is named after a path, which may hold anything.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return quoted + '"';
}

// A sample for each block or source, under one name.
template <typename Figures, typename T>
std::string PerName(std::string_view name, std::string_view type, std::string_view help,
                    std::string_view label, const std::vector<Figures>& all,
                    std::string Figures::*named, T Figures::*value) {
  std::string text =
      fmt::format("# HELP millrace_{0} {1}\n# TYPE millrace_{0} {2}\n", name, help, type);
  for (const Figures& one : all)
    text += fmt::format("millrace_{}{{{}={}}} {}\n", name, label, Quoted(one.*named),
                        Number(one.*value));
  return text;
}

std::string Loads(const std::vector<RouterFigures>& routers) {
  std::string text =
      "# HELP millrace_expert_load Pairs of token and expert of the step that chose an expert.\n"
      "# TYPE millrace_expert_load gauge\n";
  for (const RouterFigures& router : routers)
    for (size_t e = 0; e < router.loads.size(); ++e)
      text += fmt::format("millrace_expert_load{{block={},expert=\"{}\"}} {}\n",
                          Quoted(router.block), e, router.loads[e]);
  return text;
}

// Nothing about a model without experts.
std::string Routers(const StepFigures& figures) {
  if (figures.routers.empty()) return "";
  return PerName("max_load", "gauge", "Largest load of an expert over the mean load.", "block",
                 figures.routers, &RouterFigures::block, &RouterFigures::max_load) +
         PerName("router_entropy", "gauge",
                 "Entropy of the mean probabilities over experts, in nats.", "block",
                 figures.routers, &RouterFigures::block, &RouterFigures::entropy) +
         Loads(figures.routers) +
         Metric("dropped_pairs_total", "counter",
                "Pairs of token and expert that skipped steps had no room for.",
                figures.dropped_pairs) +
         Metric("waiting_batches", "gauge", "Batches of such steps that have not run again yet.",
                figures.waiting_batches) +
         // A gauge that is always 1, as exporters name what is no number.
         fmt::format(
             "# HELP millrace_gate_info What chooses experts (model.moe.gate).\n"
             "# TYPE millrace_gate_info gauge\nmillrace_gate_info{{gate=\"{}\"}} 1\n",
             figures.balanced_gate ? "balanced" : "router");
}

// Nothing about a run that blends no sources.
std::string Sources(const StepFigures& figures) {
  if (figures.sources.empty()) return "";
  return PerName("source_samples_total", "counter", "Sequences drawn from a source, all ranks.",
                 "source", figures.sources, &SourceFigures::name, &SourceFigures::samples) +
         PerName("source_epochs", "gauge", "Times that a source has been gone through.", "source",
                 figures.sources, &SourceFigures::name, &SourceFigures::epochs);
}

// Nothing about a run that scales no gradients.
std::string Scaling(const StepFigures& figures) {
  if (!figures.scaling) return "";
  return Metric("loss_scale", "gauge", "What the gradient of the step's loss was multiplied by.",
                figures.scaling->loss_scale) +
         Metric(
             "scale_downs_total", "counter",
             "Overflows of gradients, whose updates were skipped and made the loss scale smaller.",
             figures.scaling->scale_downs);
}

// Nothing about a run that has no such loss.
std::string Policy(const StepFigures& figures) {
  if (!figures.policy) return "";
  return Metric("clip_fraction", "gauge", "Targets whose ratio was clipped, of those that count.",
                figures.policy->clip_fraction) +
         Metric("ratio", "gauge", "Mean ratio of probabilities, new to old.",
                figures.policy->ratio) +
         Metric("kl", "gauge",
                "Mean divergence from the reference, else from the old policy, in nats.",
                figures.policy->kl);
}

// Nothing before the first.
std::string Scores(const StepFigures& figures) {
  if (figures.scores.empty()) return "";
  std::string text =
      "# HELP millrace_score Newest score in an evaluation task.\n# TYPE millrace_score gauge\n";
  for (const EvalScores& scores : figures.scores)
    for (const auto& [name, value] : scores.values)
      text += fmt::format("millrace_score{{task={},metric={}}} {}\n", Quoted(scores.task),
                          Quoted(name), Number(value));
  return text;
}

}  // namespace

std::string PrometheusText(const StepFigures& f) {
  std::string saves;
  if (f.saves)
    saves =
        Metric("saves_total", "counter", "Checkpoints published.", f.saves->published) +
        Metric("failed_saves_total", "counter", "Checkpoints that could not be written.",
               f.saves->failed) +
        Metric("saved_step", "gauge", "Step of the newest checkpoint.", f.saves->step) +
        Metric("save_stall_seconds", "gauge", "Time that training last waited for a checkpoint.",
               f.saves->stall_seconds) +
        Metric("save_seconds", "gauge",
               "Time from the newest checkpoint's beginning to its publication.", f.saves->seconds);
  return Metric("step", "gauge", "Training steps done.", f.step) +
         Metric("loss", "gauge", "Training loss of the step.", f.loss) +
         Metric("grad_norm", "gauge", "Norm of the gradient before clipping.", f.grad_norm) +
         Metric("lr", "gauge", "Learning rate of the step.", f.lr) +
         Metric("tokens_per_second", "gauge", "Tokens per second of the step, all ranks.",
                f.tokens_per_s) +
         Metric("step_seconds", "gauge", "Duration of the step.", f.step_seconds) +
         Metric("device_bytes", "gauge",
                "Most memory in use so far: the device of rank 0; without one its resident size.",
                f.device_bytes) +
         Metric("skipped_steps_total", "counter",
                "Updates skipped: a value was not finite, or a guard did not trust the loss.",
                f.skipped) +
         Metric("tokens_total", "counter", "Tokens trained on, all ranks.", f.tokens) +
         Metric("roll_backs_total", "counter", "Roll-backs to a checkpoint that guards have made.",
                f.roll_backs) +
         Routers(f) + Sources(f) + Policy(f) + Scaling(f) + Scores(f) + saves;
}

void NewestFigures::Store(const StepFigures& figures) {
  const std::lock_guard lock(mutex_);
  std::vector<EvalScores> newest =
      figures.scores.empty() && figures_ ? figures_->scores : figures.scores;
  figures_ = figures;
  figures_->scores = std::move(newest);
}

std::string NewestFigures::Text() const {
  std::optional<StepFigures> figures;
  {
    const std::lock_guard lock(mutex_);
    figures = figures_;
  }
  return figures ? PrometheusText(*figures) : "";
}

}  // namespace millrace
