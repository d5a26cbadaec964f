// What a person sees while a run goes on: one line per step and a progress bar on a terminal, on
// standard output, of rank 0. Warnings go to the log (program_log.h), which shows them on standard
// error.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/run/training/training.h"
#include "tools/cli/terminal/program_log.h"

namespace millrace {

// Is the user's standard output a terminal? Under the launcher the rank cannot see it and is told
// (MILLRACE_STDOUT_TTY).
bool StdoutIsTerminal();

std::string HumanBytes(int64_t bytes);      // "1.5 GiB"
std::string HumanRate(double per_second);   // "12.3k"
std::string HumanDuration(double seconds);  // "1:05", "2:03:04"

// "step 10/300  loss 2.3456  norm 0.98  lr 3.00e-03  12.3k tok/s  mfu 41.0%  mem 120.0 MiB  eta
// 1:23", in one line
std::string StatusLine(const StepReport& report);

class Console final : public StepObserver {
 public:
  Console(bool terminal, ProgramLog& log);  // whose lines end the bar, too
  ~Console() override;
  void OnResume(int64_t step, const std::string& checkpoint) override;
  void OnStep(const StepReport& report) override;
  void OnEval(int64_t step, double loss) override;
  void OnScores(int64_t step, const std::vector<EvalScores>& scores) override;
  void OnCheckpoint(int64_t step, const std::string& path) override;
  void OnWarning(const std::string& text) override;
  // Ends the bar's line, before something else is printed.
  void ClearBar();

 private:
  void Line(const std::string& text);
  bool terminal_;
  ProgramLog& log_;
  std::atomic<bool> bar_ = false;
};

}  // namespace millrace
