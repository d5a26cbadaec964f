#include "tools/cli/words/verb_words.h"

#include <cmath>
#include <cstdlib>
#include <memory>

namespace millrace {
namespace {

void AddCheckpoint(CLI::App* app, std::string* checkpoint) {
  app->add_option("--checkpoint", *checkpoint,
                  "a checkpoint folder (default: the newest of run.dir)");
}

void AddWorld(CLI::App* app, std::optional<int>* world) {
  app->add_option("--world", *world, "ranks it will run on")->check(CLI::Range(1, 1 << 20));
}

}  // namespace

CLI::Validator NotNan() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value " + text + " is not a number"
                                                              : std::string();
      },
      "");
}

void AddConfiguration(CLI::App* app, ConfigArguments* arguments) {
  app->add_option("config", arguments->files, "configuration files (JSON); later ones win")
      ->required();
  app->add_option("--set", arguments->sets, "key=value, over the files; typed by the key")
      ->allow_extra_args(false)
      ->take_all();
}

void AddEval(CLI::App* app, CommandLine* line) {
  auto eval = std::make_shared<EvalArguments>();
  AddConfiguration(app, &eval->config);
  AddCheckpoint(app, &eval->checkpoint);
  CLI::Option* const task =
      app->add_option("--task", eval->tasks,
                      "scores instead of the loss: hellaswag:FILE.bin (llm.c's), "
                      "hellaswag:FILE.jsonl (lm-eval's rules), hellaswag-llmc:FILE.jsonl, ppl:PATH")
          ->allow_extra_args(false)
          ->take_all();
  app->add_option("--limit", eval->limit, "examples of each task, from the front (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->needs(task);
  app->add_option("--examples", eval->examples,
                  "file to write: a JSON line for each example of the one task")
      ->needs(task);
  app->callback([=] {
    line->command = [=] { return eval->tasks.empty() ? EvalVerb(*eval) : EvalTasksVerb(*eval); };
  });
}

void AddPlan(CLI::App* app, CommandLine* line) {
  auto plan = std::make_shared<PlanArguments>();
  AddConfiguration(app, &plan->config);
  app->add_option("--world", plan->world, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--machine", plan->machine,
                  "h100, h200, cpu, or a machine file (./NAME.json; doctor --measure writes one); "
                  "execution.backend=auto is what it has (default: cpu, for backend=cuda h100)")
      ->capture_default_str();
  // Beyond these bounds lie slips of the keyboard, and times that are no finite numbers.
  const auto rate = CLI::Range(1e-6, 1e6) & NotNan();
  app->add_option("--link", plan->link_gbs,
                  "GB/s that a rank sends within its host, in place of the machine's figure")
      ->check(rate);
  app->add_option("--ranks-per-host", plan->ranks_per_host,
                  "ranks of a host; neighbouring ranks share one (default 8; cpu: all)")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--host-link", plan->host_link_gbs,
                  "GB/s that a rank sends to other hosts (default 50; cpu: not known)")
      ->check(rate);
  app->add_flag("--json", plan->json, "one JSON object");
  app->add_flag("--text", plan->text, "the plan itself: every buffer, op and edge");
  app->add_option("--plan", plan->plan,
                  "with --text: which; train, eval, generate, or of inference prefill_N, decode_N")
      ->needs("--text");
  app->add_flag("--advise", plan->advise,
                "the five fastest plans at CONFIG's tokens per step: axes, micro batch, "
                "reshard, recomputation, prefetch");
  app->add_flag("--allocators", plan->allocators,
                "bytes of pools and arena with each memory.allocator, beside the lower bound");
  app->add_option("--html", plan->html, "write a page: memory map and timeline");
  app->add_option("--trace", plan->trace, "write a Chrome trace of the simulated step");
  app->callback([=] { line->command = [=] { return PlanVerb(*plan); }; });
}

void AddBench(CLI::App* app, CommandLine* line) {
  auto bench = std::make_shared<BenchArguments>();
  AddConfiguration(app, &bench->config);
  app->add_option("--steps", bench->steps, "timed steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--warmup", bench->warmup, "steps before them")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_flag("--json", bench->json, "one JSON line");
  app->add_flag("--ops", bench->ops, "also time by kind of op, in eager steps");
  app->add_flag("--floor", bench->floor,
                "also measure what this machine allows at best; implies --ops");
  app->add_option("--trace", bench->trace,
                  "also write a Chrome trace of a measured step of all ranks");
  app->add_option("--decode", bench->decode,
                  "time tokens of a generator instead, of so many sequences at a time: 1,8,64")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 16));
  app->add_option("--prompt-tokens", bench->prompt_tokens,
                  "with --decode: tokens of each prompt, which is timed by itself")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_flag("--update", bench->update,
                "also time norm, clip and AdamW per tensor, per flat parameter and as graphs");
  app->add_option("--graph-dot", bench->graph_dot,
                  "also write rank 0's captured step in Graphviz's language; on the CPU the "
                  "recorded list");
  app->callback([=] { line->command = [=] { return BenchVerb(*bench); }; });
}

void AddGenerate(CLI::App* app, CommandLine* line) {
  auto generate = std::make_shared<GenerateArguments>();
  AddConfiguration(app, &generate->config);
  AddCheckpoint(app, &generate->checkpoint);
  app->add_option("--prompt", generate->prompts,
                  "text to continue (default: \"The \"); more than one: answers are JSON lines")
      ->allow_extra_args(false)
      ->take_all();
  app->add_option("--file", generate->file,
                  "JSON lines, an object each: prompt (text or tokens) and, over the words here, "
                  "max_tokens, temperature, top_k, top_p, min_p, seed, samples, stop, logprobs")
      ->check(CLI::ExistingFile);
  app->add_option("--tokens", generate->tokens,
                  "tokens to generate, at most (default: 200, or what there is room for)")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--temperature", generate->temperature, "0: the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0) & NotNan());
  app->add_option("--top-k", generate->top_k, "draw from so many likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--top-p", generate->top_p,
                  "then from the fewest likeliest whose probabilities add to this")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1.0) & NotNan());
  app->add_option("--min-p", generate->min_p,
                  "then from those of at least this share of the likeliest one's probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0) & NotNan());
  app->add_option("--seed", generate->seed, "the same text for the same seed")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 53) - 1));
  app->add_option("--samples", generate->samples, "answers to each prompt, with seeds of their own")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kMostSamples));
  app->add_option("--stop", generate->stop,
                  "text that ends an answer, or a token of data.tokenizer by its name, as "
                  "<|eot_id|>; may be given more than once")
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::Validator(
          [](const std::string& text) { return text.empty() ? "--stop is empty" : std::string(); },
          ""));
  app->add_option("--logprobs", generate->logprobs,
                  "also log-probabilities of so many likeliest tokens, in JSON")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  app->add_flag("--json", generate->json, "a JSON line for one prompt, too");
  app->callback([=] { line->command = [=] { return GenerateVerb(*generate); }; });
}

void AddScore(CLI::App* app, CommandLine* line) {
  auto score = std::make_shared<ScoreArguments>();
  AddConfiguration(app, &score->config);
  AddCheckpoint(app, &score->checkpoint);
  app->add_option("--input", score->input,
                  "NAME.jsonl: an object a line, with text or tokens; any other file is one text")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--stride", score->stride,
                  "of texts longer than model.seq_len + 1: windows that far apart, each scored at "
                  "its end; 0: they are refused")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 22));
  app->callback([=] { line->command = [=] { return ScoreVerb(*score); }; });
}

void AddInspect(CLI::App* app, CommandLine* line) {
  auto inspect = std::make_shared<InspectArguments>();
  app->add_option("path", inspect->path, "file or folder")->required();
  app->add_flag("--json", inspect->json, "JSON");
  app->add_flag("--verify", inspect->verify,
                "a line for each checkpoint: sound, or what is damaged; exit code 4 if any is");
  app->callback([=] { line->command = [=] { return InspectVerb(*inspect); }; });
}

void AddCompare(CLI::App* app, CommandLine* line) {
  auto compare = std::make_shared<CompareArguments>();
  app->add_option("run_a", compare->a, "run.dir of a run")->required();
  app->add_option("run_b", compare->b, "run.dir of another")->required();
  app->add_flag("--json", compare->json, "one JSON object");
  app->callback([=] { line->command = [=] { return CompareVerb(*compare); }; });
}

void AddReport(CLI::App* app, CommandLine* line) {
  auto report = std::make_shared<ReportArguments>();
  app->add_option("run_dir", report->run_dir, "run.dir of a run")->required();
  app->add_option("--out", report->out, "file to write (default: report.html in run.dir)");
  app->callback([=] { line->command = [=] { return ReportVerb(*report); }; });
}

void AddDoctor(CLI::App* app, CommandLine* line) {
  auto json = std::make_shared<bool>(false);
  auto machine_file = std::make_shared<std::string>();
  app->add_flag("--json", *json, "JSON");
  app->add_option("--measure", *machine_file,
                  "measure this host, a minute, and write a machine file for plan --machine; under "
                  "mpirun with collectives");
  app->callback([=] {
    line->command = [=] {
      return machine_file->empty() ? DoctorVerb(*json) : MeasureVerb(*machine_file);
    };
  });
}

void AddImport(CLI::App* app, CommandLine* line) {
  auto exchange = std::make_shared<ExchangeArguments>();
  AddConfiguration(app, &exchange->config);
  app->add_option("--from", exchange->folder, "Hugging Face folder: config.json, *.safetensors")
      ->required();
  app->callback([=] { line->command = [=] { return ImportVerb(*exchange); }; });
}

void AddExport(CLI::App* app, CommandLine* line) {
  auto exchange = std::make_shared<ExchangeArguments>();
  AddConfiguration(app, &exchange->config);
  app->add_option("--to", exchange->folder, "folder to write; new or empty")->required();
  AddCheckpoint(app, &exchange->checkpoint);
  app->callback([=] { line->command = [=] { return ExportVerb(*exchange); }; });
}

void AddConfigSchema(CLI::App* app, CommandLine* line) {
  app->callback([=] { line->command = ConfigSchemaVerb; });
}

void AddConfigDocs(CLI::App* app, CommandLine* line) {
  app->callback([=] { line->command = ConfigDocsVerb; });
}

void AddConfigShow(CLI::App* app, CommandLine* line) {
  auto config = std::make_shared<ConfigArguments>();
  auto world = std::make_shared<std::optional<int>>();
  auto json = std::make_shared<bool>(false);
  AddConfiguration(app, config.get());
  AddWorld(app, world.get());
  app->add_flag("--json", *json, "values only, as JSON");
  // Accepted for the sake of the name.
  app->add_flag("--origin")->description("origins are always shown");
  app->callback([=] { line->command = [=] { return ConfigShowVerb(*config, *world, *json); }; });
}

void AddConfigValidate(CLI::App* app, CommandLine* line) {
  auto config = std::make_shared<ConfigArguments>();
  auto world = std::make_shared<std::optional<int>>();
  AddConfiguration(app, config.get());
  AddWorld(app, world.get());
  app->callback([=] { line->command = [=] { return ConfigValidateVerb(*config, *world); }; });
}

}  // namespace millrace
