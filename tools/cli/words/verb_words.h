// Which words each verb takes: its options, their bounds and help. command_line.cc has the table.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/cli/verbs.h"
#include "tools/cli/words/command_line.h"

namespace millrace {

// What a command line leaves behind.
struct CommandLine {
  std::vector<std::string> launched;  // what stands behind "--" of `launch`; known before parsing
  Command command;                    // of the verb that was named
};

// The words of `app`'s verb. Once they are parsed, `line->command` runs it.
void AddEval(CLI::App* app, CommandLine* line);
void AddPlan(CLI::App* app, CommandLine* line);
void AddBench(CLI::App* app, CommandLine* line);
void AddGenerate(CLI::App* app, CommandLine* line);
void AddScore(CLI::App* app, CommandLine* line);
void AddServe(CLI::App* app, CommandLine* line);
void AddInspect(CLI::App* app, CommandLine* line);
void AddCompare(CLI::App* app, CommandLine* line);
void AddReport(CLI::App* app, CommandLine* line);
void AddDoctor(CLI::App* app, CommandLine* line);
void AddImport(CLI::App* app, CommandLine* line);
void AddExport(CLI::App* app, CommandLine* line);
void AddTokenize(CLI::App* app, CommandLine* line);
void AddDetokenize(CLI::App* app, CommandLine* line);
void AddTokenizerTrain(CLI::App* app, CommandLine* line);
void AddConfigSchema(CLI::App* app, CommandLine* line);
void AddConfigDocs(CLI::App* app, CommandLine* line);
void AddConfigShow(CLI::App* app, CommandLine* line);
void AddConfigValidate(CLI::App* app, CommandLine* line);

// CONFIG... and --set, which most verbs take.
void AddConfiguration(CLI::App* app, ConfigArguments* arguments);

// A bound has no opinion about NaN, which compares with nothing.
CLI::Validator NotNan();

}  // namespace millrace
