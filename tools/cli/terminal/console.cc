#include "tools/cli/terminal/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "runtime/run/eval/score_tasks.h"

namespace millrace {

bool StdoutIsTerminal() {
  if (const char* told = std::getenv("MILLRACE_STDOUT_TTY")) return std::string(told) == "1";
  // Without our launcher mpirun gives each rank a pseudo-terminal, whatever is at its own end.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return false;
  return isatty(STDOUT_FILENO) == 1;
}

std::string HumanBytes(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string HumanRate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.1f}", per_second);
}

std::string HumanDuration(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds + 0.5));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string StatusLine(const StepReport& r) {
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {} tok/s", r.step, r.steps,
                  r.loss, r.grad_norm, r.lr, HumanRate(r.tokens_per_s));
  if (r.mfu > 0) line += fmt::format("  mfu {:.1f}%", 100 * r.mfu);
  line += fmt::format("  mem {}  eta {}", HumanBytes(r.peak_bytes), HumanDuration(r.eta_s));
  if (r.balanced_gate) line += "  balanced gate";
  if (r.skipped > 0) line += fmt::format("  skipped {}", r.skipped);
  return line;
}

Console::Console(bool terminal, ProgramLog& log) : terminal_(terminal), log_(log) {
  log_.BeforeLine([this] { ClearBar(); });
}

Console::~Console() { log_.BeforeLine({}); }

void Console::ClearBar() {
  if (bar_.exchange(false)) std::cout << "\r\033[K" << std::flush;
}

void Console::Line(const std::string& text) {
  ClearBar();
  std::cout << text << std::endl;
}

void Console::OnResume(int64_t step, const std::string& checkpoint) {
  Line(fmt::format("resuming after step {} from {}", step, checkpoint));
}

void Console::OnStep(const StepReport& report) {
  Line(StatusLine(report));
  if (!terminal_ || report.step == report.steps) return;
  const int width = 30;
  const int filled = static_cast<int>(report.step * width / std::max<int64_t>(report.steps, 1));
  std::cout << fmt::format("[{}{}] {:3}%  eta {}", std::string(static_cast<size_t>(filled), '#'),
                           std::string(static_cast<size_t>(width - filled), '.'),
                           100 * report.step / std::max<int64_t>(report.steps, 1),
                           HumanDuration(report.eta_s))
            << std::flush;
  bar_ = true;
}

void Console::OnEval(int64_t step, double loss) {
  Line(fmt::format("step {}: held-out loss {:.4f}", step, loss));
}

void Console::OnScores(int64_t step, const std::vector<EvalScores>& scores) {
  for (const EvalScores& of : scores)
    Line(fmt::format("step {}: {}: {}", step, of.task, InWords(of)));
}

void Console::OnCheckpoint(int64_t step, const std::string& path) {
  Line(fmt::format("step {}: saved {}", step, path));
}

void Console::OnWarning(const std::string& text) { log_.Warning(LogScope::kAllRanks, text); }

}  // namespace millrace
